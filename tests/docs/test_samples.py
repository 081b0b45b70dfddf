"""The outputs that pages show after a command are what it prints.

``python -m tests.docs.test_samples`` shows what has changed. docs/plan.md, replay.md and debug.md have tests
of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .classes import BY_TEST
from .collect import ROOT, blocks, pages
from .run import to_the_end

SAMPLES = BY_TEST["tests/docs/test_samples.py::test_a_sample_is_what_the_command_prints"]
LEFT_OUT = "..."
"""A line that stands for any lines."""


def shown() -> Iterator[tuple[str, str]]:
    """Each command in a block ``console``, and what the page shows below it."""
    for page in pages():
        for block in blocks(page):
            if block.language == "console":
                yield from re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)


def plain(text: str) -> list[str]:
    """Its lines, with the ages of pods and the width of their column made equal: the example gets older."""
    return [re.sub(r"\b\d+[dhms] ", "AGE ", re.sub(r" +", " ", line)).rstrip() for line in text.splitlines()]


def matches(sample: str, output: str) -> bool:
    """Whether the output has all lines of the sample in this order, and others only where it says so."""
    pattern = "".join(r"(?:.*\n)*" if one == LEFT_OUT else re.escape(one) + r"\n" for one in plain(sample))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in plain(output))) is not None


@pytest.mark.parametrize("command", SAMPLES)
def test_a_sample_is_what_the_command_prints(command: str) -> None:
    samples, output = [sample for line, sample in shown() if line == command], to_the_end(command, ROOT)
    assert samples
    assert all(matches(sample, output) for sample in samples), output


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


def main() -> None:
    for command, sample in shown():
        if command in SAMPLES and not matches(sample, output := to_the_end(command, ROOT)):
            print(f"$ {command}\n{output}")


if __name__ == "__main__":
    main()
