"""The shipped configurations name every MIG profile that NVIDIA's own layouts have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deploy.render import with_mig_profiles
from packing.model.gpu_catalog import models, profile_names

ROOT = Path(__file__).parents[1]
LISTED = ("second-scheduler", "own-control-plane")
MIG_PARTED = (
    *("1g.5gb", "1g.5gb+me", "1g.6gb", "1g.6gb+me", "1g.10gb", "1g.10gb+me", "1g.12gb", "1g.12gb+me"),
    *("1g.18gb", "1g.18gb+me", "1g.20gb", "1g.23gb", "1g.23gb+me", "1g.24gb", "1g.24gb+gfx", "1g.24gb+me"),
    *("1g.24gb+me.all", "1g.24gb-me", "1g.34gb", "1g.34gb+me", "1g.35gb", "1g.35gb+me", "1g.36gb", "1g.45gb"),
    *("1g.47gb", "1g.67gb", "1g.70gb", "2g.10gb", "2g.12gb", "2g.12gb+me", "2g.20gb", "2g.24gb"),
    *("2g.35gb", "2g.36gb", "2g.45gb", "2g.47gb", "2g.48gb", "2g.48gb+gfx", "2g.48gb+me.all", "2g.48gb-me"),
    *("2g.67gb", "2g.70gb", "3g.20gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.72gb"),
    *("3g.90gb", "3g.93gb", "3g.95gb", "3g.135gb", "3g.139gb", "4g.20gb", "4g.24gb", "4g.40gb"),
    *("4g.47gb", "4g.48gb", "4g.71gb", "4g.72gb", "4g.90gb", "4g.93gb", "4g.95gb", "4g.96gb"),
    *("4g.96gb+gfx", "4g.135gb", "4g.139gb", "7g.40gb", "7g.80gb", "7g.94gb", "7g.96gb", "7g.141gb"),
    *("7g.144gb", "7g.180gb", "7g.186gb", "7g.189gb", "7g.269gb", "7g.278gb"),
)
"""All profiles in the files of layouts of NVIDIA/mig-parted at bd7160f4 (config-default.yaml in
deployments/systemd, deployments/container/*.yaml, examples/*.yaml)."""


@pytest.mark.parametrize("name", LISTED)
def test_kube_scheduler_asks_about_every_profile(name: str) -> None:
    configuration = yaml.safe_load((ROOT / "scheduler-config" / f"{name}.yaml").read_text())
    managed = [resource["name"] for resource in configuration["extenders"][0]["managedResources"]]
    assert len(managed) == len(set(managed))
    assert {f"nvidia.com/mig-{profile.replace('+', '.')}" for profile in MIG_PARTED} <= set(managed)


def test_the_lists_are_those_of_the_catalog() -> None:
    for file, text in with_mig_profiles().items():
        assert file.read_text() == text, "make manifests"


def test_every_profile_is_of_a_model_with_a_size_that_the_name_says() -> None:
    named = {
        name
        for model in models()
        if model.geometry
        for gib in (-(-model.memory_mib // 1024), *model.names_gib)
        for name in profile_names(model.geometry, gib)
    }
    assert named == {profile.replace("+", ".") for profile in MIG_PARTED}
