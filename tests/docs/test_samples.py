"""The outputs that pages show after a command are what it prints.

docs/plan.md, replay.md and debug.md have tests of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import pytest

from ..expected import check_text
from .classes import BY_TEST
from .collect import ROOT, blocks, pages
from .run import to_the_end

SAMPLES = BY_TEST["tests/docs/test_samples.py::test_a_sample_is_what_the_command_prints"]
LEFT_OUT = "..."
"""A line that stands for any lines."""


def shown(command: str) -> Iterator[tuple[Path, str]]:
    """The pages that have it in a block ``console``, and what they show below it."""
    for page in pages():
        for block in blocks(page):
            if block.language == "console":
                for line, sample in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
                    if line == command:
                        yield page, sample


def plain(text: str) -> list[str]:
    """Its lines, with the ages of pods and the width of their column made equal: the example gets older."""
    return [re.sub(r"\b\d+[dhms] ", "AGE ", re.sub(r" +", " ", line)).rstrip() for line in text.splitlines()]


def matches(sample: str, output: str) -> bool:
    """Whether the output has all lines of the sample in this order, and others only where it says so."""
    pattern = "".join(r"(?:.*\n)*" if one == LEFT_OUT else re.escape(one) + r"\n" for one in plain(sample))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in plain(output))) is not None


@pytest.mark.parametrize("command", SAMPLES)
def test_a_sample_is_what_the_command_prints(command: str) -> None:
    samples, output = list(shown(command)), to_the_end(command, ROOT)
    assert samples
    for page, sample in samples:
        if not matches(sample, output):
            check_text(page, sample, renewed(sample, output))


def renewed(sample: str, output: str) -> str:
    """The output; of a sample with lines left out, the lines that are most like its own."""
    if LEFT_OUT not in plain(sample):
        return output
    lines, known = output.splitlines(), {*plain(output), LEFT_OUT}
    kept = (
        line if {*plain(line)} <= known else next(iter(get_close_matches(line, lines, 1)), line)
        for line in sample.splitlines()
    )
    return "".join(f"{line}\n" for line in kept)


@pytest.mark.parametrize(
    ("sample", "output", "agree"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("x  82d  y\n", "x 101d y\n", True),
        ("x  2 of 3\n", "x  2 of 4\n", False),
    ],
)
def test_the_comparison_can_fail(sample: str, output: str, agree: bool) -> None:
    assert matches(sample, output) is agree


def test_a_sample_is_renewed_line_by_line_where_it_leaves_some_out() -> None:
    output = "node a: 2 GPUs free\nnode b: none is free\nin all 2 GPUs\n"
    assert renewed("node b: no GPU is free\n...\nin all 2 GPUs\n", output) == (
        "node b: none is free\n...\nin all 2 GPUs\n"
    )
    assert renewed("node b: no GPU is free\n", output) == output
