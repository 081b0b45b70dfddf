"""The samples in docs/replay.md are what the commands print.

``python -m tests.extender.cli.test_replay_docs`` writes them anew.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from extender.cli import main as cli

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/replay.md"
_SAMPLE = re.compile(r"```console\n\$ stowage (.+)\n((?:.*\n)*?)```")


def printed(command: str) -> str:
    """What the command prints to standard output when it runs in the project's directory."""
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(command.split()) == 0
    return out.getvalue()


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "sample"), _SAMPLE.findall(PAGE.read_text()))
def test_samples_are_what_the_command_prints(command: str, sample: str) -> None:
    assert printed(command) == sample


def test_there_is_a_sample() -> None:
    assert _SAMPLE.search(PAGE.read_text())


if __name__ == "__main__":
    text = _SAMPLE.sub(lambda m: f"```console\n$ stowage {m[1]}\n{printed(m[1])}```", PAGE.read_text())
    PAGE.write_text(text)
