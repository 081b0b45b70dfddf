"""40 Jobs a minute with limits use every GPU that becomes free, and a Job that needs a whole node starts at
its reservation. Meanwhile only Jobs that end before start on that node."""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from .background import InThread
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, applied, scheduler_configuration
from .workload import job, node, pod

NAMESPACE, SHIELD = "stowage-system", "stowage-shield"
AFTER, LONG, SHORT = 15, 100, 5
"""Seconds: the wait before a reservation, and two run times. Their limits are a second longer."""
EVERY = 1.5


class SmallJobs(InThread):
    """Creates a Job of one GPU every 1.5 s, of which every second one is short."""

    def __init__(self, api: Api) -> None:
        super().__init__("small jobs")
        self._api = api

    def _run(self) -> None:
        for number in itertools.count():
            kind, seconds = ("short", SHORT) if number % 2 else ("long", LONG)
            small = job(f"{kind}-{number}", pod("", {GPU: 1}, runs_for=f"{seconds}s"))
            small["spec"]["activeDeadlineSeconds"] = seconds + 1
            self._api.create(small)
            if self._over.wait(EVERY):
                return


@contextmanager
def reserving(cluster: ControlPlane, kubeconfig: Path) -> Iterator[Stowage]:
    settings = {
        "RESERVE": "limits",
        "RESERVE_AFTER_SECONDS": str(AFTER),
        "EVICTOR_LEASE": f"{NAMESPACE}/stowage-evictor",
        "SHIELD_CONFIGMAP": f"{NAMESPACE}/{SHIELD}",
    }
    with (
        applied(cluster.api, "rbac-evictor.yaml"),
        Stowage(cluster, kubeconfig, name="stowage-reserves", **settings) as stowage,
    ):
        yield stowage


def test_a_large_job_starts_at_its_reservation(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    for number in range(3):
        api.create(node(f"n{number}", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    with reserving(cluster, stowage_kubeconfig) as stowage:
        configuration = scheduler_configuration(stowage.url) | {"podMaxBackoffSeconds": 1}
        with (
            cluster.controller_manager(["job-controller"]),
            cluster.scheduler(configuration),
            SmallJobs(api),
        ):
            time.sleep(LONG)
            api.create(job("train", pod("", {GPU: 8})))
            eventually(lambda: bool(_reserved(api)), within_s=AFTER + 60, what="nodes are reserved")
            reserved = _reserved(api)[0]
            eventually(lambda: _start(api, "train") > 0, within_s=2 * LONG, what="the large job starts")
    _, _, _, (name,), _, since, at, *_ = reserved
    started = _start(api, "train")
    print(f"reserved for {at - since:.0f} s, started after {started - since:.0f} s")
    assert abs(started - at) <= 0.1 * (at - since) + EVERY, (since, at, started)
    meanwhile = [
        one["metadata"]["name"]
        for one in api.list("Pod")["items"]
        if one["spec"].get("nodeName") == name and since + 1 < _seconds(one) < started
    ]
    assert meanwhile, "no Job that ends in time uses the node"
    assert all(pod_name.startswith("short") for pod_name in meanwhile), meanwhile


def _reserved(api: Api) -> list[Any]:
    """The reservations in the ConfigMap."""
    data = api.get("ConfigMap", SHIELD, NAMESPACE).get("data") or {}
    stored = json.loads(data.get("disruptions.json", "{}"))
    found: list[Any] = stored.get("reserved", {}).get("current", [])
    return found


def _start(api: Api, name: str) -> float:
    """When the pod of a Job was bound, 0 before that; Unix seconds."""
    pods = [one for one in api.list("Pod")["items"] if one["metadata"]["name"].startswith(f"{name}-")]
    return _seconds(pods[0]) if pods and pods[0]["spec"].get("nodeName") else 0.0


def _seconds(one: Object) -> float:
    """When kube-scheduler bound the pod."""
    for condition in one["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
    return 0.0
