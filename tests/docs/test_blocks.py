"""Blocks have a known language, and YAML and JSON in them can be read."""

from __future__ import annotations

import json

import pytest
import yaml

from .collect import LANGUAGES, Block, blocks, commands, pages

BLOCKS = [block for page in pages() for block in blocks(page)]


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES
    assert block.text.strip()


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_can_be_read(block: Block) -> None:
    documents = [one for one in yaml.safe_load_all(block.text) if one is not None]
    assert documents
    assert all(isinstance(one, dict | list) for one in documents)


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_can_be_read(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", [*of(""), *of("sh"), *of("console")], ids=str)
def test_a_block_of_commands_has_one(block: Block) -> None:
    assert commands(block), "what nobody types is ```text"
