"""The samples in docs/replay.md are what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.run import to_the_end
from tests.expected import check_text

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/replay.md"
_SAMPLE = re.compile(r"```console\n\$ stowage (.+)\n((?:.*\n)*?)```")


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "sample"), _SAMPLE.findall(PAGE.read_text()))
def test_samples_are_what_the_command_prints(command: str, sample: str) -> None:
    check_text(PAGE, sample, to_the_end(f"stowage {command}", ROOT))


def test_there_is_a_sample() -> None:
    assert _SAMPLE.search(PAGE.read_text())
