"""Trace files in, clear errors out; and the replay command on small files."""

import json

import pytest

from extender.replay_cli import main
from extender.traces import BadTrace, read_mixes, read_nodes, read_pods

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
    [("name,cpu_milli\np,1\n", "column 'num_gpu' is missing"), (PODS + "p3,x,1,0,0,,,\n", "line 5")],
)
def test_a_broken_file_says_where(files, text, says):
    (files / "pods.csv").write_text(text)
    with pytest.raises(BadTrace, match=says):
        read_pods(files / "pods.csv")


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
        "trace", "policy", "seed", "arrival", "allocation", "failed_pods", "fragmentation", "seconds"
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
    "more", [["--mix", "known"], ["--ties", "random"], ["--node-order", "shuffle"], ["--sample", "1"]]
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
    errors = capsys.readouterr().err.strip().split("\n")
    assert len(errors) == 2
    with pytest.raises(SystemExit):
        replay(files, "--policy", "best")
