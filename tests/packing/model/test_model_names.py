"""Names of GPU models: words in a row, whatever separates them, found as the regular expressions say."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing.model.request import ModelName, Models, model_text


def pattern(name: str, *, whole: bool) -> str:
    """What a name means, as a regular expression."""
    words = "[-_ ]*".join(map(re.escape, re.split(r"[-_ ]+", name)))
    return rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])" if whole else words


texts = st.text("aA1b-_ (é", max_size=12)
names = texts.filter(lambda name: name.strip("-_ "))


@given(names, texts, st.booleans())
def test_a_name_is_found_where_its_pattern_matches(name: str, text: str, whole: bool) -> None:
    found = ModelName.of(name, whole=whole).found_in(model_text(text))
    assert found == bool(re.search(pattern(name, whole=whole), text, re.IGNORECASE))


@given(st.lists(names, min_size=1, max_size=3), texts, st.booleans())
def test_a_part_of_a_text_is_found(parts: list[str], text: str, whole: bool) -> None:
    name = "-".join(parts)
    inside = f"{text}{name}{text}"
    found = ModelName.of(name, whole=whole).found_in(model_text(inside))
    assert found == bool(re.search(pattern(name, whole=whole), inside, re.IGNORECASE))
    assert found or whole


@pytest.mark.parametrize(
    ("name", "whole", "text", "found"),
    [
        ("A10", True, "NVIDIA-A10", True),
        ("A10", True, "NVIDIA-A100-SXM4-40GB", False),
        ("A10", False, "NVIDIA-A100-SXM4-40GB", True),
        ("a100 sxm4", True, "NVIDIA-A100-SXM4-40GB", True),
        ("RTX 4090", True, "GeForce RTX4090", True),
        ("RTX4090", True, "GeForce RTX 4090", False),
        ("H100-80GB", True, "NVIDIA H100 (H100_80GB)", True),
        ("-T4-", True, "Tesla-T4", True),
    ],
)
def test_names(name: str, whole: bool, text: str, found: bool) -> None:
    assert ModelName.of(name, whole=whole).found_in(model_text(text)) is found


@pytest.mark.parametrize("name", ["", "-", "_ -"])
def test_separators_alone_are_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="separators"):
        ModelName.of(name)


def test_one_of_every_group_and_none_that_is_denied() -> None:
    some = Models(
        (frozenset({ModelName.of("A100"), ModelName.of("H100")}), frozenset({ModelName.of("80GB")})),
        frozenset({ModelName.of("PCIe")}),
    )
    assert some.permits("NVIDIA-H100-80GB-HBM3")
    assert not some.permits("NVIDIA-A100-80GB-PCIe")
    assert not some.permits("NVIDIA-A100-SXM4-40GB")
    assert not some.permits("")
    assert Models().permits("")
    assert not Models(deny=some.deny).permits("")
