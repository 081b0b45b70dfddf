"""Trace files in, clear errors out; and the replay command on small files."""

import json

import pytest

from extender.cli.replay import main
from extender.replay.traces import BadTrace, read_mixes, read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,T4\nb,32000,131072,4,P100\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time
p0,4000,1024,1,460,,0,100
p1,4000,1024,2,1000,T4|P100,5,50
p2,8000,2048,0,0,,7,
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return tmp_path


def replay(files, *more):
    return main(
        ["replay", "--nodes", f"{files}/nodes.csv", "--pods", f"{files}/pods.csv", "--output", "json", *more]
    )


def test_pods_and_nodes_are_read(files):
    nodes, pods = read_nodes(files / "nodes.csv"), read_pods(files / "pods.csv")
    assert [(node.name, len(node.gpus), node.model) for node in nodes] == [("a", 2, "T4"), ("b", 4, "P100")]
    assert pods[0].request.shares.compute_milli == 460
    assert pods[1].request.models == {"T4", "P100"}
    assert pods[1].request.shares.count == 2
    assert pods[2].request.shares is None
    assert (pods[2].created, pods[2].deleted) == (7.0, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column 'name' is missing"),
        ("name,cpu_milli\np,1\n", "column 'memory_mib' is missing"),
        (PODS + "p3,x,1,0,0,,,\n", "line 5: cpu_milli: 'x' is not a whole number"),
        (PODS + "p3,1\n", "line 5: has too few cells"),
        (PODS + "p3,1,1,1,1001,,,\n", "line 5: gpu_milli: 1001 does not lie between 0 and 1000"),
        (PODS + "p3,1,1,1,0,,,\n", "line 5: 1 GPUs, but gpu_milli is 0"),
        (PODS + "p3,1,1,-1,500,,,\n", "line 5: num_gpu: -1 does not lie"),
        (PODS + "p3,1" + "0" * 30 + ",1,1,500,,,\n", "line 5: cpu_milli: 10"),
        (PODS + "p3,1,1,1,500,,nan,\n", "line 5: nan is not a time"),
        (PODS + "p3,1,1,1,500,,9,8\n", "line 5: is deleted at 8, before it is created at 9"),
        (PODS.split("p0")[0] + "p,1,1,0,0,,,\n", "no pod asks for GPU"),
        (PODS.split("p0")[0], "no pod asks for GPU"),
    ],
)
def test_a_broken_file_says_where(files, text, says):
    (files / "pods.csv").write_text(text)
    with pytest.raises(BadTrace, match=says):
        read_pods(files / "pods.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column 'sn' is missing"),
        (NODES.split("a,")[0], "no node has a GPU"),
        (NODES + "c,1,1,0,\nc,1,1,0,\n", "node 'c' is there twice"),
        (NODES + "c,1,1,65,\n", "line 4: gpu: 65 does not lie between 0 and 64"),
    ],
)
def test_a_broken_list_of_nodes_says_where(files, text, says):
    (files / "nodes.csv").write_text(text)
    with pytest.raises(BadTrace, match=says):
        read_nodes(files / "nodes.csv")


def test_a_file_from_a_spreadsheet_is_read(files):
    (files / "nodes.csv").write_text("\ufeff" + NODES.replace("\n", "\r\n"), encoding="utf-8")
    assert len(read_nodes(files / "nodes.csv")) == 2


@pytest.mark.parametrize(
    "mixes",
    [
        {"m": []},
        {"m": [{"profile": "7g", "frequency": 0}]},
        {"m": [{"profile": "5g", "frequency": 1}]},
        {"m": [{"compute": 21, "memory": 1, "frequency": 1}]},
        {"m": [{"compute": 0, "memory": 0, "frequency": 1}]},
        {"m": [{"compute": 1, "memory": 1, "frequency": float("nan")}]},
        3,
    ],
)
def test_a_broken_file_of_mixes_is_refused(tmp_path, mixes):
    path = tmp_path / "mixes.json"
    path.write_text(json.dumps({"unit": 20, "mixes": mixes}))
    with pytest.raises(BadTrace, match="not a file of request mixes"):
        read_mixes(path)


def test_mixes_of_both_kinds(tmp_path):
    path = tmp_path / "mixes.json"
    path.write_text(json.dumps({"unit": 20, "mixes": {"m": [{"compute": 5, "memory": 10, "frequency": 2}]}}))
    assert read_mixes(path)[0].work.frequency.tolist() == [1.0]
    path.write_text(json.dumps({"mixes": {"m": [{"profile": "7g", "frequency": 1}]}}))
    assert read_mixes(path)[0].work.axes.tolist() == [[1.0]]
    path.write_text('{"mixes": {"m": [{"frequency": 1}]}}')
    with pytest.raises(BadTrace, match="not a file of request mixes"):
        read_mixes(path)


def test_rows_have_the_documented_fields_and_repeat(files, capsys):
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
    table = ["--policy", "first-fit", "--seeds", "1", "--bound", "--output", "table"]
    assert replay(files, *table) == 0
    assert capsys.readouterr().out.count("bound") == 1


@pytest.mark.parametrize(
    "more",
    [
        ["--mix", "known"],
        ["--ties", "random"],
        ["--node-order", "shuffle"],
        ["--sample", "1"],
        ["--scores", "0-10", "--ties", "random"],
    ],
)
def test_every_way_of_scheduling_runs(files, capsys, more):
    assert replay(files, "--seeds", "3", *more) == 0
    assert json.loads(capsys.readouterr().out)[0]["allocation"] > 50


def test_a_timeline(files, capsys):
    assert replay(files, "--timeline") == 0
    assert json.loads(capsys.readouterr().out)[0]["wait_p95_share"] == 0


def test_bad_usage_is_one_line_and_code_2(files, capsys):
    assert main(["replay", "--nodes", f"{files}/nodes.csv"]) == 2
    assert main(["replay", "--mixes", f"{files}/missing.json"]) == 2
    assert replay(files, "--scores", "0-10", "--policy", "inventory,fgd") == 2
    errors = capsys.readouterr().err.strip().split("\n")
    assert len(errors) == 3


@pytest.mark.parametrize(
    "more",
    [
        *[["--policy", "best"], ["--policy", ""], ["--seeds", "5-1"], ["--seeds", "x"], ["--seeds", "-1"]],
        *[["--seeds", "1-999999999"], ["--arrival", "0"], ["--arrival", "nan"], ["--arrival", "1;2"]],
        *[["--sample", "-1"], ["--ties", "some"], ["--output", "xml"]],
    ],
)
def test_options_that_make_no_sense_stop_before_anything_runs(files, more):
    with pytest.raises(SystemExit) as stopped:
        replay(files, *more)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--timeline", "--plot", "x.png"], "--timeline has no use for --plot"),
        (["--timeline", "--mixes", "x.json"], "--mixes has no use for --nodes, --pods, --timeline"),
        (["--departures"], "--pods has no use for --departures"),
        (["--policy", "mfi"], "mfi packs MIG instances alone"),
        (["--seeds", "1", "--plot", "plot.what"], "--plot"),
        (["--config", "missing.yaml"], "missing.yaml: cannot be read"),
    ],
)
def test_options_that_do_not_go_together_are_named(files, capsys, more, says):
    assert replay(files, *more) == 2
    assert says in capsys.readouterr().err


def test_options_without_effect_are_said(files, capsys):
    assert replay(files, "--timeline", "--seeds", "1", "--mix", "known") == 0
    captured = capsys.readouterr()
    assert captured.err == "stowage replay: --timeline has no use for --mix, --seeds\n"
    assert len(json.loads(captured.out)) == 1


def test_a_policy_that_does_not_know_the_mix_is_named(tmp_path, capsys):
    path = tmp_path / "mixes.json"
    path.write_text(json.dumps({"mixes": {"m": [{"profile": "7g", "frequency": 1}]}}))
    assert main(["replay", "--mixes", str(path), "--policy", "dot-product", "--seeds", "1"]) == 2
    assert "m can be packed by inventory" in capsys.readouterr().err


def test_ranges_of_seeds_include_both_ends(files, capsys):
    assert replay(files, "--policy", "first-fit", "--seeds", "3-5,9") == 0
    assert [row["seed"] for row in json.loads(capsys.readouterr().out)] == [3, 4, 5, 9]


def test_the_defaults_are_the_documented_ones(files, capsys):
    assert replay(files) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["seed"] for row in rows] == list(range(42, 52))
    assert {(row["policy"], row["arrival"]) for row in rows} == {("inventory", 1.0)}
    assert captured.err == ""
    same = ["--mix", "learnt", "--ties", "fixed", "--node-order", "file", "--sample", "0"]
    assert replay(files, *same) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]


def test_a_smallest_slice_refuses_what_is_below_it(files, capsys):
    (files / "stowage.yaml").write_text("minimum_slice_milli: 500\n")
    only = ["--policy", "first-fit", "--seeds", "1"]
    assert replay(files, *only, "--config", f"{files}/stowage.yaml") == 0
    [refused] = json.loads(capsys.readouterr().out)
    assert replay(files, *only) == 0
    [taken] = json.loads(capsys.readouterr().out)
    assert refused["failed_pods"] > taken["failed_pods"]
