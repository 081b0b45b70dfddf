"""``stowage replay`` on small traces: rows, options and errors."""

import json
import subprocess
import sys

import pytest

from extender.cli import main as cli
from tests.extender.replay.test_traces import trace_files


@pytest.fixture
def files(tmp_path):
    return trace_files(tmp_path)


def replay(files, *more):
    trace = ["--nodes", f"{files}/nodes.csv", "--pods", f"{files}/pods.csv"]
    return cli.main(["replay", *trace, "--output", "json", *more])


def test_rows_have_the_documented_fields_and_repeat(files, capsys):
    rows = []
    for _ in range(2):
        assert replay(files, "--policy", "inventory,fgd", "--seeds", "1-2") == 0
        rows.append([{**row, "seconds": 0} for row in json.loads(capsys.readouterr().out)])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 4
    assert set(rows[0][0]) == {
        "trace", "policy", "seed", "allocation", "knee", "failed_pods", "fragmentation", "seconds"
    }  # fmt: skip
    assert rows[0][0]["trace"] == "pods"
    assert all(0 <= row["allocation"] <= 100 for row in rows[0])


def test_a_table_has_a_line_for_each_policy(files, capsys):
    assert replay(files, "--policy", "most-allocated,best-fit", "--seeds", "1", "--output", "table") == 0
    head, *lines = capsys.readouterr().out.strip().split("\n")
    assert head.split()[:4] == ["trace", "policy", "allocated,", "%"]
    assert [line.split()[:2] for line in lines[:2]] == [["pods", "most-allocated"], ["pods", "best-fit"]]
    assert lines[2].startswith("allocated: ")


def test_a_sample_of_the_nodes_is_enough(files, capsys):
    assert replay(files, "--seeds", "3", "--sample", "1") == 0
    assert json.loads(capsys.readouterr().out)[0]["allocation"] > 50


def test_a_timeline(files, capsys):
    assert replay(files, "--timeline") == 0
    assert json.loads(capsys.readouterr().out)[0]["wait_p95_share"] == 0


def test_bad_usage_is_one_line_and_code_2(files, capsys):
    assert cli.main(["replay", "--nodes", f"{files}/nodes.csv"]) == 2
    assert cli.main(["replay", "--timeline"]) == 2
    errors = capsys.readouterr().err.strip().split("\n")
    assert len(errors) == 2


@pytest.mark.parametrize(
    "more",
    [
        *[["--policy", "best"], ["--policy", ""], ["--seeds", "5-1"], ["--seeds", "x"], ["--seeds", "-1"]],
        *[["--policy", "random"], ["--policy", "worst-fit"], ["--policy", "mfi"]],
        *[["--seeds", "1-999999999"], ["--sample", "-1"], ["--ties", "random"], ["--output", "xml"]],
    ],
)
def test_options_that_make_no_sense_stop_before_anything_runs(files, more):
    with pytest.raises(SystemExit) as stopped:
        replay(files, *more)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            ["--timeline", "--snapshot", "x.json"],
            "of a cluster does not use --nodes, --pods, --timeline",
        ),
        (["--config", "missing.yaml"], "missing.yaml: cannot be read"),
    ],
)
def test_options_that_do_not_go_together_are_named(files, capsys, more, says):
    assert replay(files, *more) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            ["--timeline", "--seeds", "1"],
            "--timeline does not use --seeds: leave it out, or use it with --pods",
        ),
        (["--timeline", "--seeds", "42-51"], "--timeline does not use --seeds"),
        (["--timeline", "--config", "c.yaml"], "--timeline does not use --config"),
        (["--seeds", "1", "--config", "c.yaml", "--timeline"], "--timeline does not use --config, --seeds"),
        (["--allow-downgrade"], "--pods does not use --allow-downgrade: leave it out\n"),
    ],
)
def test_options_without_effect_are_refused_with_a_hint(files, capsys, more, says):
    assert replay(files, *more) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"stowage replay: {says}")
    assert captured.out == ""


def test_ranges_of_seeds_include_both_ends(files, capsys):
    assert replay(files, "--policy", "most-allocated", "--seeds", "3-5,9") == 0
    assert [row["seed"] for row in json.loads(capsys.readouterr().out)] == [3, 4, 5, 9]


def test_the_defaults_are_the_documented_ones(files, capsys):
    assert replay(files) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["seed"] for row in rows] == list(range(42, 52))
    assert {row["policy"] for row in rows} == {"inventory"}
    assert captured.err == f"stowage replay: reading {files}/nodes.csv, {files}/pods.csv\n"
    assert replay(files, "--sample", "0") == 0
    again = json.loads(capsys.readouterr().out)
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]


def test_a_smallest_slice_refuses_what_is_below_it(files, capsys):
    (files / "stowage.yaml").write_text("minimum_slice_milli: 500\n")
    only = ["--policy", "most-allocated", "--seeds", "1"]
    assert replay(files, *only, "--config", f"{files}/stowage.yaml") == 0
    [refused] = json.loads(capsys.readouterr().out)
    assert replay(files, *only) == 0
    [taken] = json.loads(capsys.readouterr().out)
    assert refused["failed_pods"] > taken["failed_pods"]


@pytest.mark.parametrize("arguments", [["--help"], ["--policy", "none"], ["--seeds", "x"]])
def test_help_and_wrong_arguments_load_no_compiler(arguments):
    program = (
        "import sys\nfrom extender.cli.main import main\n"
        "try: main(['replay', *sys.argv[1:]])\nexcept SystemExit: pass\n"
        "assert not {'numba', 'numpy', 'kubernetes', 'fastapi', 'pydantic'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
