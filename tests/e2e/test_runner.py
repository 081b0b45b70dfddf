"""The runner and kube-controller-manager, without Stowage."""

import sys
from pathlib import Path

import httpx
import pytest

from .controlplane.__main__ import PLAIN
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .runner import Runner
from .workload import budget, job, node, pod, process_pod

GPU = "nvidia.com/gpu"
TRAINS = """
import os, signal, sys, time
from pathlib import Path
state = Path(os.environ["STATE"]) / "runs"
def stop(*_):
    if sys.argv[1] == "saves":
        state.write_text(state.read_text() + "stopped ")
        sys.exit(143)
signal.signal(signal.SIGTERM, stop)
state.write_text((state.read_text() if state.exists() else "") + "started ")
if state.read_text().count("started") < 2:
    time.sleep(60)
"""


def trains(name: str, how: str) -> Object:
    command = [sys.executable, "-c", TRAINS, how]
    return process_pod(name, {GPU: 1}, command, env={"STATE": "/state"}, volumes={"state": "/state"})


def test_a_job_gets_another_pod_that_finds_the_state(cluster: ControlPlane, api: Api, tmp_path: Path) -> None:
    api.create(node("n1", {GPU: 1}))
    with Runner(api, tmp_path), cluster.scheduler(PLAIN), cluster.controller_manager():
        api.create(job("trains", trains("", "saves")))
        eventually(lambda: history(tmp_path) == "started ", within_s=30, what="the process runs")
        (first,) = api.list("Pod")["items"]
        api.evict(first["metadata"]["name"])
        eventually(lambda: complete(api, "trains"), within_s=30, what="the job is complete")
    assert history(tmp_path) == "started stopped started "
    (second,) = api.list("Pod")["items"]
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["status"]["phase"] == "Succeeded"


def test_a_process_that_ignores_sigterm_is_killed(cluster: ControlPlane, api: Api, tmp_path: Path) -> None:
    api.create(node("n1", {GPU: 1}))
    with Runner(api, tmp_path), cluster.scheduler(PLAIN):
        api.create(trains("stubborn", "ignores"))
        eventually(lambda: history(tmp_path) == "started ", within_s=30, what="the process runs")
        api.delete("Pod", "stubborn", grace_s=1)
        eventually(lambda: not api.list("Pod")["items"], within_s=10, what="the pod is gone")
    assert history(tmp_path) == "started "


def allowed(api: Api) -> int | None:
    """How many evictions the budget allows."""
    status = api.get("PodDisruptionBudget", "serves")["status"]
    count: int | None = status.get("disruptionsAllowed")
    return count


def test_a_budget_refuses_the_second_eviction(cluster: ControlPlane, api: Api) -> None:
    api.create(node("n1", {GPU: 2}))
    for name in ("p1", "p2"):
        api.create(pod(name, {GPU: 1}, on="n1", labels={"app": "serves"}))
    api.create(budget("serves", {"app": "serves"}, min_available=1))
    with cluster.controller_manager():
        eventually(lambda: allowed(api) == 1, within_s=30, what="the budget has a status")
        api.evict("p1")
        with pytest.raises(httpx.HTTPStatusError, match="429"):
            api.evict("p2")


def history(directory: Path) -> str:
    file = directory / "state" / "runs"
    return file.read_text() if file.exists() else ""


def complete(api: Api, name: str) -> bool:
    conditions = api.get("Job", name)["status"].get("conditions", ())
    return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)
