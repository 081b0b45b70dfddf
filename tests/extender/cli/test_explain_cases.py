"""What people get wrong about a pod, and what ``stowage explain`` tells them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from extender.cli import main as cli

MANIFEST = """
kind: Pod
metadata: {{name: train, namespace: team{annotations}}}
spec: {{schedulerName: stowage{more}, containers: [{{name: main, resources: {{limits: {{{limits}}}}}}}]}}
"""
CONFIG = """
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
users: [{name: u, user: {}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:%s"}}]
"""
JOB = """
kind: Job
metadata: {name: fine, namespace: team}
spec:
  template:
    spec: {schedulerName: stowage, containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""
NODE = {
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "9"}},
}
RUNNING = {
    "kind": "Pod",
    "metadata": {"name": "runs", "namespace": "team"},
    "spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}], "nodeName": "n"},
    "status": {"phase": "Running"},
}


class Case:
    """Runs ``stowage explain`` on a manifest, by default with the bundled example."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self._capsys = path, capsys

    def explain(self, limits: str, *args: str, annotations: str = "", more: str = "") -> str:
        return self.explain_text(MANIFEST.format(limits=limits, annotations=annotations, more=more), *args)

    def explain_text(self, text: str, *args: str) -> str:
        self.path.write_text(text)
        return self.output(str(self.path), *(args or ("--example",)))

    def output(self, *args: str) -> str:
        assert self.run(*args) == 0
        return self._capsys.readouterr().out

    def run(self, *args: str) -> int:
        wide = () if {"-o", "--output"} & {*args} else ("-o", "wide")  # the tests compare whole lines
        return cli.main(["explain", *args, *wide])

    def error(self, *args: str) -> str:
        assert self.run(*args) == 1
        return self._capsys.readouterr().err


@pytest.fixture
def case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Case:
    return Case(tmp_path / "pod.yaml", capsys)


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_without_a_cluster_nothing_is_answered(case: Case) -> None:
    case.path.write_text(MANIFEST.format(limits="nvidia.com/gpu: 1", annotations="", more=""))
    assert "no cluster: pass --kubeconfig FILE, --snapshot FILE" in case.error(str(case.path))


def test_a_dead_api_server_is_asked_once(case: Case, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    (tmp_path / "config").write_text(CONFIG % port)
    error = case.error("team/train", "--kubeconfig", str(tmp_path / "config"))
    assert f" at https://127.0.0.1:{port}: " in error
    assert "Connection refused" in error


def test_workloads_and_several_pods(case: Case) -> None:
    pod = MANIFEST.format(limits="nvidia.com/gpu: 1", annotations="", more="")
    out = case.explain_text(f"{pod}---\n{JOB}")
    assert "team/train requests 1 nvidia.com/gpu" in out
    assert "\n\nJob fine:\nteam/fine requests 1 nvidia.com/gpu\nIt fits on " in out
    both = json.loads(case.explain_text(f"{pod}---\n{JOB}", "--example", "--output", "json"))
    assert [one["pod"] for one in both] == ["team/train", "team/fine"]


def test_amounts_in_the_wrong_unit(case: Case) -> None:
    out = case.explain("nvidia.com/gpu: 1, nvidia.com/gpumem: 8Gi")
    assert "'8Gi' requests 8,589,934,592 MiB. For 8Gi of memory write 8192." in out
    out = case.explain("nvidia.com/gpu: 500m")
    assert "train cannot run on any node: nvidia.com/gpu: quantity '500m' is not a whole number" in out
    assert "Kubernetes does not divide nvidia.com/gpu." in out


def test_the_nodes_by_name(case: Case) -> None:
    out = case.explain("nvidia.com/gpu: 8, cpu: 1", "--example", "--node", "h100-01", "--node", "a100-02")
    assert out.splitlines() == [
        "team/train fits on none of 2 nodes",
        "  a100-02  not enough free GPUs  needs 8 nvidia.com/gpu, 7 of 8 are free",
        "  h100-01  not enough free GPUs  needs 8 nvidia.com/gpu, 0 of 8 are free",
    ]
    assert len(case.explain("nvidia.com/gpu: 8", "--example", "--all", "-o", "wide").splitlines()) == 37
    error = case.error(str(case.path), "--example", "--node", "h100_01")
    assert "there is no node h100_01; did you mean h100-01?" in error


def test_tables_fit_100_columns_unless_wide(case: Case) -> None:
    for output, fits in (("text", True), ("wide", False)):
        out = case.explain("nvidia.com/gpu: 17, cpu: 500, memory: 9Ti", "--example", "-o", output)
        assert (max(map(len, out.splitlines())) <= 100) is fits


def test_a_pod_that_runs(case: Case, tmp_path: Path) -> None:
    cluster = str(tmp_path / "cluster.json")
    Path(cluster).write_text(json.dumps({"kind": "List", "items": [NODE, RUNNING]}))
    assert "\nRunning on n. If it had to be placed again:\n" in case.output("runs", "--snapshot", cluster)
    assert "did you mean team/runs?" in case.error("team/run", "--snapshot", cluster)


def test_a_snapshot_without_pods_or_nodes(case: Case, tmp_path: Path) -> None:
    files = {"nodes": json.dumps(NODE), "none": json.dumps({"kind": "List", "items": []})}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    out = case.explain("nvidia.com/gpu: 1", "--snapshot", str(tmp_path / "nodes"))
    assert out.startswith("No pods found")
    out = case.explain("nvidia.com/gpu: 1", "--snapshot", str(tmp_path / "none"))
    assert out.startswith("No nodes found")


def test_the_default_scheduler_is_mentioned(case: Case) -> None:
    text = MANIFEST.format(limits="nvidia.com/gpu: 1", annotations="", more="")
    text = text.replace("schedulerName: stowage, ", "")
    assert "Its schedulerName is default-scheduler: Stowage is called only if" in case.explain_text(text)
