"""The files beside the code that publish a release: they are valid, and agree with each other."""

from __future__ import annotations

import re
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release import krew, oci

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE, VERSION = PROJECT["urls"]["Source"], PROJECT["version"]
KREW_NAME = 50
"""Characters of a short description, as krew's list shows it."""


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("krew")
    krew.write(directory, VERSION, SOURCE, f"{SOURCE}/files")
    return directory


def test_krew_finds_the_archive_that_belongs_to_the_manifest(plugin: Path) -> None:
    manifest = yaml.safe_load((plugin / "krew.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = plugin / platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == oci.digest(archive)
    assert manifest["spec"]["version"] == f"v{VERSION}"
    assert len(manifest["spec"]["shortDescription"]) <= KREW_NAME
    with tarfile.open(archive) as tar:
        programs = {platform["bin"], "kubectl_complete-stowage"}
        assert {entry.name for entry in tar} == programs | {"LICENSE"}
    assert programs == PROJECT["scripts"].keys() - {"stowage"}


def test_the_plugin_says_what_it_needs(plugin: Path, tmp_path: Path) -> None:
    with tarfile.open(next(plugin.glob("*.tar.gz"))) as tar:
        tar.extractall(tmp_path, filter="data")
    command = ["/bin/sh", str(tmp_path / "kubectl-stowage"), "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stderr.startswith("kubectl stowage needs uv")) == (2, True)
    (tmp_path / "uvx").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "uvx").chmod(0o755)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": str(tmp_path)})
    assert done.stdout.split()[1:] == [
        "--from",
        f"{SOURCE}/files/kube_stowage-{VERSION}-py3-none-any.whl",
        "kubectl-stowage",
        "version",
    ]


def test_the_chart_has_what_artifact_hub_shows() -> None:
    chart = read("deploy/chart/Chart.yaml")
    assert (chart["version"], chart["home"], chart["sources"]) == (VERSION, SOURCE, [SOURCE])
    assert all(maintainer["name"] and maintainer["url"] for maintainer in chart["maintainers"])
    assert (ROOT / chart["icon"].removeprefix(f"{SOURCE}/raw/main/")).is_file()
    changes = yaml.safe_load(chart["annotations"]["artifacthub.io/changes"])
    kinds = {"added", "changed", "deprecated", "removed", "fixed", "security"}
    assert changes
    assert all(change["kind"] in kinds and change["description"] for change in changes)


def test_the_addresses_of_the_wheel_lead_to_files() -> None:
    for address in PROJECT["urls"].values():
        assert (ROOT / address.removeprefix(SOURCE).removeprefix("/blob/main").lstrip("/")).exists()


def test_the_release_is_made_as_make_release_makes_it() -> None:
    workflow = read(".github/workflows/release.yaml")
    steps = [step.get("run", "") for step in workflow["jobs"]["release"]["steps"]]
    assert any("make release" in step for step in steps)
    assert "\nrelease:" in (ROOT / "Makefile").read_text()
    assert workflow["permissions"] == {"contents": "read"}


def test_nothing_that_builds_a_release_can_be_moved_under_its_name() -> None:
    """Tags of actions and images can be moved: commits and digests cannot."""
    workflows = [path.read_text() for path in (ROOT / ".github").rglob("*.y*ml")]
    uses = [line for text in workflows for line in re.findall(r"uses:(.*)", text)]
    assert len(uses) > 5
    assert [line for line in uses if not re.fullmatch(r" [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    bases = re.findall(r"^FROM (\S+)", (ROOT / "deploy/image/Containerfile").read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert all(re.fullmatch(r"\S+:trixie-slim@sha256:[0-9a-f]{64}", base) for base in bases)
    assert len(set(bases)) == 1


def test_dependabot_looks_where_packages_are_named() -> None:
    names = {"pip": "requirements.txt", "docker": "Containerfile", "gomod": "go.mod"}
    names["github-actions"] = ".github/workflows/*.yaml"
    for update in read(".github/dependabot.yml")["updates"]:
        for directory in update.get("directories") or [update["directory"]]:
            pattern = f"{directory}/{names[update['package-ecosystem']]}".strip("/").replace("//", "/")
            assert list(ROOT.glob(pattern)), directory
