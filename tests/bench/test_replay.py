"""``python -m bench.packing.replay`` on small files: every option of the published protocol."""

import json

import pytest

from bench.packing.replay import main
from tests.bench.test_traces import trace_files


@pytest.fixture
def files(tmp_path):
    return trace_files(tmp_path)


def replay(files, *more):
    trace = ["--nodes", f"{files}/nodes.csv", "--pods", f"{files}/pods.csv"]
    return main(["trace", *trace, "--output", "json", *more])


def test_rows_have_their_fields_and_repeat(files, capsys):
    rows = []
    for _ in range(2):
        assert replay(files, "--policy", "inventory,fgd", "--seeds", "1-2", "--arrival", "0.5,1.0") == 0
        rows.append([{**row, "seconds": 0} for row in json.loads(capsys.readouterr().out)])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 8
    assert set(rows[0][0]) == {
        "trace", "policy", "seed", "arrival", "allocation", "knee", "failed_pods", "fragmentation", "seconds"
    }  # fmt: skip
    assert rows[0][0]["trace"] == "pods"
    assert all(0 <= row["allocation"] <= 100 for row in rows[0])


def test_the_bound_has_rows_of_its_own_that_no_policy_exceeds(files, capsys):
    more = ["--policy", "inventory,best-fit", "--seeds", "1-2", "--arrival", "0.5,1.0", "--bound"]
    assert replay(files, *more) == 0
    rows = json.loads(capsys.readouterr().out)
    bounds = {(row["seed"], row["arrival"]): row for row in rows if row["policy"] == "bound"}
    assert len(bounds) == 4
    assert len(rows) == 12
    for row in rows:
        assert row.keys() == bounds[1, 1.0].keys()
        assert row["allocation"] <= bounds[row["seed"], row["arrival"]]["allocation"] <= 100
    assert bounds[1, 1.0]["failed_pods"] is None
    table = ["--policy", "most-allocated", "--seeds", "1", "--bound", "--output", "table"]
    assert replay(files, *table) == 0
    assert capsys.readouterr().out.count("bound") == 1


@pytest.mark.parametrize(
    "more",
    [
        *[["--mix", "known"], ["--ties", "random"], ["--node-order", "shuffle"], ["--sample", "1"]],
        ["--scores", "0-10", "--ties", "random"],
    ],
)
def test_every_way_of_scheduling_runs(files, capsys, more):
    assert replay(files, "--seeds", "3", *more) == 0
    assert json.loads(capsys.readouterr().out)[0]["allocation"] > 50


@pytest.mark.nightly
def test_the_defaults_are_those_of_the_service(files, capsys):
    assert replay(files) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["seed"] for row in rows] == list(range(42, 52))
    assert {(row["policy"], row["arrival"]) for row in rows} == {("inventory", 1.0)}
    assert captured.err == ""
    same = ["--mix", "learned", "--ties", "fixed", "--node-order", "file", "--sample", "0"]
    assert replay(files, *same) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]


def test_bad_usage_is_one_line_and_code_2(files, capsys):
    assert main(["mixes", f"{files}/missing.json"]) == 2
    assert replay(files, "--scores", "0-10", "--policy", "inventory,fgd") == 2
    errors = capsys.readouterr().err.strip().split("\n")
    assert len(errors) == 2


@pytest.mark.parametrize(
    "more",
    [
        *[["--policy", "best"], ["--policy", "mfi"], ["--ties", "some"], ["--departures"]],
        *[["--arrival", "0"], ["--arrival", "nan"], ["--arrival", "1;2"], ["--arrival", "1.5"]],
        *[["--seeds", "x"], ["--sample", "-1"]],
    ],
)
def test_options_that_make_no_sense_stop_before_anything_runs(files, more):
    with pytest.raises(SystemExit) as stopped:
        replay(files, *more)
    assert stopped.value.code == 2


def test_arrivals_in_per_cent_are_refused_with_a_hint(files, capsys):
    with pytest.raises(SystemExit):
        replay(files, "--arrival", "50,100")
    assert (
        "multiples of the capacity up to 1.3, such as 1.0,1.3 (for 50,100 %: 0.5,1)"
        in capsys.readouterr().err
    )


def test_a_policy_that_does_not_know_the_mix_is_named(tmp_path, capsys):
    path = tmp_path / "mixes.json"
    path.write_text(json.dumps({"mixes": {"m": [{"profile": "7g", "frequency": 1}]}}))
    assert main(["mixes", str(path), "--policy", "dot-product", "--seeds", "1"]) == 2
    assert "m can be packed by inventory" in capsys.readouterr().err
