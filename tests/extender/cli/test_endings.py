"""How the process ends where its streams are closed or full, and at Ctrl-C: with a usual status, quietly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.examples import some

STOWAGE = [sys.executable, "-m", "extender.cli.main"]
CLUSTER = Path(__file__).parents[3] / "docs/examples/cluster.json"
COMMANDS = {
    "help": "--help",
    "version": "version",
    "top": "top --example",
    "explain": "explain training/train-16g-p5 --example",
    "audit": "audit --example",
    "plan": "plan --example",
    "replay": f"replay --snapshot {CLUSTER}",
}
STEPS = re.compile(r"^(?:stowage \w+: reading|Compiling kernels).*\n", re.MULTILINE)
PYTHONS_OWN = re.compile(r'Traceback .*\n(  File "<frozen \w+>".*\n)+KeyboardInterrupt\n')
"""What Python prints that has not come to our code yet, on a busy machine."""
FULL = "standard output: No space left on device"


def shell(arguments: str, redirections: str) -> tuple[int, str]:
    """The status, and what was said on standard error beside what is read and how far it is."""
    script = f"set -o pipefail; {' '.join(STOWAGE)} {arguments} {redirections}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, STEPS.sub("", done.stderr)


@pytest.mark.parametrize("command", some(COMMANDS, 1))
def test_a_full_disk_is_one_line(command: str) -> None:
    status, said = shell(COMMANDS[command], "> /dev/full")
    assert (status, said.splitlines()[-1:], said.count("\n")) == (1, [f"stowage: {FULL}"], 1)


@pytest.mark.parametrize("command", some(["version", "top"], 1))
def test_a_closed_output_is_nothing_to_tell(command: str) -> None:
    assert shell(COMMANDS[command], ">&-") == (0, "")


@pytest.mark.parametrize("command", some(COMMANDS, 1))
def test_a_reader_that_leaves_is_nothing_to_tell(command: str) -> None:
    assert shell(COMMANDS[command], "| head -c 1 > /dev/null") == (0, "")


@pytest.mark.parametrize("stream", some(["<&- >&- 2>&-", "2> /dev/full", ">&- 2>&-", "2>&-"], 1))
def test_an_error_that_nobody_can_read_keeps_its_status(stream: str) -> None:
    assert shell("top --snapshot nowhere.json", stream) == (1, "")
    assert shell("fly", stream) == (2, "")


def test_an_error_does_not_go_to_the_output() -> None:
    command = [*STOWAGE, "top", "--snapshot", "nowhere.json"]
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(command)} 2>&-"], capture_output=True, check=False, timeout=120
    )
    assert done.stdout == b""


def test_a_closed_input_is_empty() -> None:
    status, said = shell("explain - --example", "<&-")
    assert (status, said) == (1, "stowage explain: standard input: is empty\n")


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    name = tmp_path / "größe ±.json"
    command = [*STOWAGE, "top", "--snapshot", str(name)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr.count("\n")) == (1, 2)
    assert r"gr\u00f6\u00dfe \u00b1.json: cannot be read" in done.stderr


@pytest.mark.parametrize(("command", "after"), some([("top", 0.1), ("top", 1.5), ("replay", 0.5)], 1))
def test_ctrl_c_is_quiet_at_any_time(command: str, after: float, tmp_path: Path) -> None:
    """While it starts, while it reads what never comes, and while kernels are compiled, which takes 20 s."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    commands = COMMANDS | {"top": "top --snapshot -"}
    process = subprocess.Popen(
        [*STOWAGE, *commands[command].split()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored here
    )
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=120)
    said_by_us = PYTHONS_OWN.sub("", STEPS.sub("", said.decode()))
    assert (process.returncode, said_by_us) == (-signal.SIGINT, "")
