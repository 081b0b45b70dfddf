"""What ``stowage replay`` prints: CSV, and what is complete after Ctrl-C."""

import csv
import json
import signal

import pytest

from tests.extender.cli.test_replay import SNAPSHOT, replay

READING = f"stowage replay: reading {SNAPSHOT}\n"
ONLY_TWO = "stowage replay: interrupted: only the 2 rows above are complete\n"


@pytest.fixture
def in_the_foreground():
    """Ctrl-C interrupts. Shells start what runs in the background with SIGINT ignored, and there the command
    leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_csv_has_a_line_for_each_policy(capsys):
    assert replay("--policy", "most-allocated,best-fit", "--output", "csv") == 0
    rows = [*csv.DictReader(capsys.readouterr().out.splitlines())]
    assert [row["policy"] for row in rows] == ["today", "most-allocated", "best-fit"]
    assert "it is a static pod or belongs to a DaemonSet: 1; " in rows[0]["pinned"]


@pytest.mark.usefixtures("in_the_foreground")
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_ctrl_c_prints_the_rows_that_are_complete(capsys, monkeypatch, output):
    def interrupted(what, part):
        if what.endswith("best-fit"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("extender.cli.replay.show_progress", interrupted)
    assert replay("--policy", "most-allocated,best-fit", "--output", output) == 130
    captured = capsys.readouterr()
    assert captured.err == READING + ONLY_TWO
    if output == "table":
        assert captured.out.startswith("INTERRUPTED: not all replays are complete:\n")
    elif output == "json":
        rows = json.loads(captured.out)
        assert [(row["policy"], row["interrupted"]) for row in rows] == [
            ("today", True),
            ("most-allocated", True),
        ]
    else:
        assert [row["interrupted"] for row in csv.DictReader(captured.out.splitlines())] == ["True", "True"]
