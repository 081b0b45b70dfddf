"""``stowage top``, with the bundled example and with a live API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.cli import main as cli
from extender.cli import top
from extender.cli.top import _age
from extender.data import CLUSTER
from extender.source.apiserver import from_kubeconfig
from tests.extender import apiserver
from tests.extender.builders import make_state


def test_nodes_and_waiting_pods(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--example", "--waiting", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NODE", "MODEL", "GPUS", "WHOLE", "FREE", "GIB", "FREE", "PODS", "NOTE"]
    assert lines[1].startswith("a100-01      A100 SXM4 80GB  8     6      6.0   480 of 640  1")
    free = "154 GPUs and 19 nodes entirely free; 8 GPUs on 1 closed node"
    assert f"36 nodes with 228 GPUs: 14 % in use, {free}; 5 pods pending" in " ".join(map(str.strip, lines))
    assert lines[-1] == "and 3 more pending"
    assert max(map(len, lines)) <= 100


def table(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """The lines below the heading of the first table."""
    assert cli.main(["top", "--example", *options]) == 0
    return capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]


def test_wide_shows_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--example", "-o", "wide"]) == 0
    head, first = capsys.readouterr().out.splitlines()[:2]
    wide = "ZONE GPU USE % ISLANDS MIG FREE CPU FREE HOST GIB FREE"
    assert " ".join(head.split("NOTE")[1].split()) == wide
    assert "100 100 0 0 0 0 0 0" in first


def test_a_line_for_each_model_has_the_free_instances(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(capsys, "--by", "model", "--sort", "gpus")
    assert [line.split("  ")[0] for line in lines] == [
        "H100 SXM5 80GB",
        "A100 SXM4 80GB",
        "GB200",
        "L40S",
        "T4",
    ]
    assert lines[0].split("  ", 1)[1].split() == [
        *("15", "120", "72", "95.9", "7638", "of", "8920", "13"),
        *("24x", "3g.40gb,", "24x", "2g.20gb,", "47x", "1g.10gb"),
    ]


def test_a_line_for_each_zone_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cluster = json.loads(CLUSTER.read_text())
    nodes = [one for one in cluster["items"] if one["kind"] == "Node"]
    for number, node in enumerate(nodes):
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "ab"[number % 2]
    path = tmp_path / "zones.json"
    path.write_text(json.dumps(cluster))
    assert cli.main(["top", "--snapshot", str(path), "--by", "zone", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["nodes"]) for one in found["zones"]] == [("a", 18), ("b", 18)]
    for key in ("gpus", "whole"):
        assert sum(one[key] for one in found["zones"]) == found["totals"][key]
    assert sum(one["freeGpus"] for one in found["zones"]) == pytest.approx(found["totals"]["free"], abs=0.01)


@pytest.mark.parametrize(
    ("column", "first"),
    [("name", "a100-01"), ("whole", "a100-03"), ("pods", "h100-mig-01"), ("used", "h100-01")],
)
def test_the_largest_amount_comes_first(capsys: pytest.CaptureFixture[str], column: str, first: str) -> None:
    assert table(capsys, "--sort", column)[0].startswith(first)


def test_long_names_and_notes_take_several_lines_unless_wide(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = CLUSTER.read_text().replace('"h100-', '"ip-10-0-137-201.h100-')
    path = tmp_path / "long.json"
    path.write_text(text)
    for output, fits in (("table", True), ("wide", False)):
        assert cli.main(["top", "--snapshot", str(path), "-o", output]) == 0
        assert (max(map(len, capsys.readouterr().out.splitlines())) <= 100) is fits


def test_json_has_all_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--example", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(line["gpus"] for line in found["nodes"]) == 228
    assert len(found["waiting"]) == 5


def test_an_error_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--snapshot", "nowhere.json"]) == 1
    assert "stowage top: nowhere.json: cannot be read" in capsys.readouterr().err


def test_a_policy_that_does_not_exist_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWAGE_POLICY", "tetris")
    assert cli.main(["top", "--example"]) == 1
    assert "policy: invalid value 'tetris'" in capsys.readouterr().err


@pytest.fixture
def api(tmp_path: Path) -> Iterator[apiserver.ApiServer]:
    server = apiserver.ApiServer()
    server.put(apiserver.node("node-a"))
    server.start()
    apiserver.source_of(server, tmp_path)
    yield server
    server.stop()


def test_a_watch_shows_what_changes(
    api: apiserver.ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_PAUSE", 0.05)
    state = make_state(synced=False)
    source = from_kubeconfig(tmp_path / "kubeconfig")
    seen = []
    for _ in top._states(state, source, source.list_once(), watch=True):
        seen.append(sorted(state.nodes))
        if len(seen) == 1:
            api.put(apiserver.node("node-b"))
        if len(state.nodes) == 2 or len(seen) == 400:
            break
    assert (seen[0], seen[-1]) == (["node-a"], ["node-a", "node-b"])


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (1e6, "11d")]
)
def test_ages(seconds: float, text: str) -> None:
    assert _age(seconds) == text


@pytest.mark.parametrize(
    ("created", "age"),
    [
        (None, "unknown"),
        ("1970-01-01T00:00:00Z", "unknown"),
        ("nonsense", "unknown"),
        ("2199-01-01T00:00:00Z", "0s"),
    ],
)
def test_the_age_of_a_pod_whose_creation_is_not_known(
    created: str | None, age: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"limits": {"nvidia.com/gpu": 1}}
    pod = {"kind": "Pod", "metadata": {"name": "p", "creationTimestamp": created}}
    path = tmp_path / "pods.json"
    path.write_text(json.dumps(pod | {"spec": {"containers": [{"resources": limits}]}}))
    assert cli.main(["top", "--snapshot", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        *("default/p", "1", "0", age, "1", "nvidia.com/gpu", "there", "is", "no", "node"),
    ]
