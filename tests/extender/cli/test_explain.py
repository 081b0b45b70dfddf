from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from extender.cli import main as cli
from extender.cli.explain_text import render
from extender.data import CLUSTER
from extender.explain.pod import explain
from tests.extender import apiserver
from tests.extender.apiserver import DEVICES
from tests.extender.apistore import Store
from tests.extender.builders import make_node, make_pod, make_state
from tests.extender.dra.nvidia import gpu, spec

POD = """
kind: Pod
metadata: {name: train, namespace: team}
spec: {schedulerName: stowage, containers: [{name: main, resources: {limits: {nvidia.com/gpu: %s, cpu: 4}}}]}
"""


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(POD % 8)
    return path


def test_it_says_where_a_pod_fits(pod: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(pod), "--snapshot", str(CLUSTER)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("team/train requests 4 CPUs, 8 nvidia.com/gpu\nIt fits on ")
    assert "score" not in out
    assert cli.main(["explain", str(pod), "--snapshot", str(CLUSTER), "-v"]) == 0
    assert "score 10, cost " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "protected"),
    [
        (
            "priorityClassName: stowage-interactive",
            {"below its minimum runtime": 1, "same or higher priority": 2},
        ),
        ("priorityClassName: stowage-batch", {"same or higher priority": 3}),
    ],
)
def test_a_manifest_has_the_priority_of_its_class(
    given: str, protected: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the API server would write it into the pod. docs/examples/full.json has the classes."""
    manifest = yaml.safe_load(POD % 1)
    manifest["spec"] |= yaml.safe_load(given)
    file, full = tmp_path / "pod.yaml", Path(__file__).parents[3] / "docs/examples/full.json"
    file.write_text(yaml.safe_dump(manifest))
    assert cli.main(["explain", str(file), "--snapshot", str(full), "--output", "json"]) == 0
    evictions = json.loads(capsys.readouterr().out)["evictions"]
    assert evictions["protected"] == protected


def test_json_output(pod: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(pod), "--snapshot", str(CLUSTER), "--output", "json"]) == 0
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["pod"] == "team/train"
    assert explanation["fits"] + sum(one["nodes"] for one in explanation["refusals"]) == explanation["nodes"]


def test_a_pod_comes_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((POD % 9).encode())))
    assert cli.main(["explain", "-", "--snapshot", str(CLUSTER)]) == 0
    assert "It fits on none of " in capsys.readouterr().out


def test_a_pod_of_the_cluster_is_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = json.loads(CLUSTER.read_text())
    meta = next(item["metadata"] for item in cluster["items"] if item["kind"] == "Pod")
    key = f"{meta['namespace']}/{meta['name']}"
    assert cli.main(["explain", key, "--snapshot", str(CLUSTER)]) == 0
    assert capsys.readouterr().out.startswith(key)


@pytest.mark.parametrize(
    ("text", "arguments", "error"),
    [
        (POD % 1, ["--snapshot", "nowhere.json"], "nowhere.json: cannot be read"),
        (
            "kind: Node\nmetadata: {name: a}",
            ["--snapshot", str(CLUSTER)],
            "has no pod and no pod template (Node)",
        ),
        ("x: [", ["--snapshot", str(CLUSTER)], "is not YAML"),
        (None, ["--snapshot", str(CLUSTER)], "pod.yaml: cannot be read: No such file"),
    ],
)
def test_errors_are_code_1(
    tmp_path: Path, text: str | None, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    if text is not None:
        path.write_text(text)
    assert cli.main(["explain", str(path), *arguments]) == 1
    assert error in capsys.readouterr().err


def test_the_text_says_what_would_make_it_fit() -> None:
    state = make_state(
        make_node("a"), make_node("b"), make_pod("p", 6, node_name="a"), make_pod("q", 7, node_name="b")
    )
    assert render(explain(state, make_pod("new", 4, scheduler_name="stowage"))).splitlines() == [
        "default/new requests 1 CPU, 1 GiB of memory, 4 nvidia.com/gpu",
        "It fits on none of 2 nodes: not enough free GPUs (2 of 2 nodes)",
        "  a: needs 4 nvidia.com/gpu, 2 of 8 are free",
        "",
        "What would help:",
        "  wait until default/p on a ends: that frees enough room",
        "",
        "Does not fit:",
        "  2  not enough free GPUs",
    ]


def test_the_text_of_an_invalid_request() -> None:
    text = render(explain(make_state(make_node("a")), make_pod("new", -1)))
    assert text.startswith("default/new cannot run on any node: nvidia.com/gpu")


def test_a_live_cluster_is_asked_for_its_devices_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = apiserver.ApiServer()
    for resource in ("resourceslices", "resourceclaims", "deviceclasses"):
        api.stores[DEVICES + resource] = Store()
    expression = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    of = {"metadata": {"name": "gpu"}, "spec": {"selectors": [expression]}}
    wish = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    api.stores[DEVICES + "deviceclasses"].put(of)
    api.stores[DEVICES + "resourceslices"].put({"metadata": {"name": "s"}, "spec": spec(gpu(3))})
    api.stores[DEVICES + "resourceclaims"].put({"metadata": {"namespace": "ml", "name": "c"}, "spec": wish})
    claims = [{"name": "gpu", "resourceClaimName": "c"}]
    api.put(apiserver.node("node-a"))
    api.put(apiserver.pod("p") | {"spec": {"containers": [{"name": "main"}], "resourceClaims": claims}})
    api.start()
    try:
        apiserver.source_of(api, tmp_path)
        assert cli.main(["explain", "ml/p", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 0
    finally:
        api.stop()
    assert "gpu.nvidia.com/node-a/gpu-3" in capsys.readouterr().out
