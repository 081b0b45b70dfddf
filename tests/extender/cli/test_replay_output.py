"""What ``stowage replay`` prints: CSV, and what is complete after Ctrl-C."""

import csv
import json
import signal
from pathlib import Path

import pytest

from extender.cli import main as cli
from tests.extender.cli.test_replay import replay
from tests.extender.replay.test_traces import trace_files

SNAPSHOT = Path(__file__).parents[3] / "docs/examples/cluster.json"


@pytest.fixture
def files(tmp_path):
    return trace_files(tmp_path)


ONLY_TWO = "stowage replay: interrupted: only the 2 replays above are complete\n"


def reading(files):
    return f"stowage replay: reading {files}/nodes.csv, {files}/pods.csv\n"


@pytest.fixture
def in_the_foreground():
    """Ctrl-C interrupts. Shells start what runs in the background with SIGINT ignored, and there the command
    leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_csv_has_the_units_in_its_columns(files, capsys):
    assert replay(files, "--policy", "most-allocated,best-fit", "--seeds", "1-2", "--output", "csv") == 0
    text = capsys.readouterr().out
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["policy"], row["seed"]) for row in rows] == [
        ("most-allocated", "1"), ("most-allocated", "2"), ("best-fit", "1"), ("best-fit", "2")
    ]  # fmt: skip
    assert {"allocation_percent", "knee_percent", "failed_pods", "seconds"} <= rows[0].keys()
    assert replay(files, "--timeline", "--output", "csv") == 0
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["wait_p95_share_seconds"] == "0.0"
    assert float(row["utilisation_percent"]) <= float(row["asked_percent"])
    cli.main(["replay", "--snapshot", str(SNAPSHOT), "--output", "csv"])
    [today, _] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert "it is a static pod or belongs to a DaemonSet: 1; " in today["pinned"]


@pytest.mark.usefixtures("in_the_foreground")
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_ctrl_c_prints_the_rows_that_are_complete(files, capsys, monkeypatch, output):
    def interrupted(what, part):
        if what == "pods most-allocated 3":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("extender.cli.replay.show_progress", interrupted)
    assert replay(files, "--policy", "most-allocated", "--seeds", "1-9", "--output", output) == 130
    captured = capsys.readouterr()
    assert captured.err == reading(files) + ONLY_TWO
    if output == "table":
        assert captured.out.startswith("INTERRUPTED, not all replays are here:\n")
        assert captured.out.split("\n")[2].split()[-1] == "2"  # seeds
    elif output == "json":
        assert [(row["seed"], row["interrupted"]) for row in json.loads(captured.out)] == [
            (1, True),
            (2, True),
        ]
    else:
        assert [line.split(",")[-1] for line in captured.out.split()] == ["interrupted", "True", "True"]


@pytest.mark.usefixtures("in_the_foreground")
def test_ctrl_c_before_the_first_row_prints_no_table(files, capsys, monkeypatch):
    def interrupted(what, part):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("extender.cli.replay.show_progress", interrupted)
    assert replay(files) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        f"{reading(files)}stowage replay: interrupted: no replay is complete\n",
    )
