"""What ``stowage replay`` prints and draws: CSV, plots, and what is complete after Ctrl-C."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from extender.cli import main as cli
from tests.extender.cli.test_replay import QUEUED, replay
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


DRAWN = [
    ["--policy", "most-allocated,best-fit", "--seeds", "1-2"],
    ["--timeline", "--policy", "most-allocated,inventory"],
    ["--timeline", "--queues", "--seeds", "1"],
]


@pytest.mark.parametrize("more", DRAWN)
@pytest.mark.parametrize(("name", "start"), [("plot.png", b"\x89PNG"), ("plot.SVG", b"<?xml")])
def test_what_is_replayed_can_be_drawn(files, capsys, more, name, start):
    (files / "pods.csv").write_text(QUEUED)
    assert replay(files, *more, "--plot", f"{files}/{name}") == 0
    assert (files / name).read_bytes().startswith(start)
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    assert captured.err == f"{reading(files)}stowage replay: drew {files}/{name}\n"


def test_a_snapshot_can_be_drawn(tmp_path, capsys):
    path = tmp_path / "plot.svg"
    arguments = ["--snapshot", str(SNAPSHOT), "--policy", "best-fit", "--plot", str(path)]
    assert cli.main(["replay", *arguments]) == 0
    drawn = path.read_text()
    assert "<!-- no placement frees -->" in drawn  # the bound
    assert "<!-- 1 (+1) -->" in drawn  # a whole node more


def test_names_are_drawn_as_they_are(files, capsys):
    """No formulas of TeX, and nothing that acts in the program that shows the picture."""
    pods = (files / "pods.csv").rename(files / "$x^2$ \\\x1b\u202e.csv")
    arguments = ["--nodes", f"{files}/nodes.csv", "--pods", str(pods), "--seeds", "1"]
    assert cli.main(["replay", *arguments, "--plot", f"{files}/plot.svg"]) == 0
    drawn = (files / "plot.svg").read_text()
    assert r"$x^2$ \\u001b\u202e" in drawn
    assert all(char.isprintable() or char == "\n" for char in drawn)
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("plot.jpg", "expected a name that ends in .png or .svg"),
        ("none/plot.png", "cannot be written: No such file or directory"),
        ("folder.png", "cannot be written: Is a directory"),
    ],
)
def test_where_to_draw_is_checked_before_anything_runs(files, capsys, name, says):
    (files / "folder.png").mkdir()
    (files / "pods.csv").write_text("this is read later")
    assert replay(files, "--plot", f"{files}/{name}") == 2
    assert says in capsys.readouterr().err


def test_a_plot_is_kept_until_the_next_one_is_drawn(files, capsys):
    (files / "plot.png").write_text("old")
    (files / "pods.csv").write_text("no trace")
    assert replay(files, "--plot", f"{files}/plot.png") == 2
    assert (files / "plot.png").read_text() == "old"
    assert replay(files, "--plot", f"{files}/other.png") == 2
    assert not (files / "other.png").exists()


def test_without_matplotlib_the_error_says_how_to_get_it(files):
    program = (
        "import sys\nsys.modules['matplotlib'] = None\n"
        "from extender.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    arguments = ["replay", "--nodes", f"{files}/nodes.csv", "--pods", f"{files}/pods.csv", "--plot", "x.png"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "stowage replay: --plot needs matplotlib: pip install 'kube-stowage[plot]'\n"


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
