"""Blocks have a known language. YAML is a manifest, settings, or a fragment named here; JSON can be read.

``tests/e2e/test_docs.py`` shows the manifests to a real API server.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from extender.settings import Settings
from extender.settings_file import load

from .collect import LANGUAGES, Block, blocks, commands, pages

FRAGMENTS = {
    "docs/air-gapped.md": {("image", "scheduler", "imagePullSecrets")},  # values of the chart
    "docs/debug.md": {("historyVolume",)},  # a value of the chart
    "docs/metrics.md": {("metadata",)},
    "docs/two-extenders.md": {("extenders",)},  # tests/e2e/test_two_extenders.py
    "docs/plan.md": {
        ("currency", "hours_per_month", "instance_types", "gpus", "spot")
    },  # tests/extender/cli/test_plan.py
}
"""The keys of fragments that are neither, by page."""
BLOCKS = [block for page in pages() for block in blocks(page)]


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES
    assert block.text.strip()


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_is_a_manifest_or_settings(block: Block, tmp_path: Path) -> None:
    documents = [one for one in yaml.safe_load_all(block.text) if one is not None]
    assert documents
    for one in documents:
        if "kind" in one:
            assert one["apiVersion"]
            assert one["kind"] == "Kustomization" or one["metadata"]["name"]
        elif one.keys() <= Settings.model_fields.keys():
            (tmp_path / "settings.yaml").write_text(yaml.safe_dump(one))
            load(tmp_path / "settings.yaml", {})
        else:
            assert tuple(one) in FRAGMENTS[block.page]


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_can_be_read(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", [*of(""), *of("sh"), *of("console")], ids=str)
def test_a_block_of_commands_has_one(block: Block) -> None:
    assert commands(block), "what nobody types is ```text"
