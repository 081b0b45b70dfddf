"""Pods that Stowage refuses on HAMi's nodes are tried again when there is room for them, also under load."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from .audit import runs
from .background import PodWatch
from .binding import configuration
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .hami_nodes import hami_node
from .runner import RUNS
from .sharing import hami_pod
from .stowage import Stowage, applied
from .test_waiting import why_unscheduled

REGISTER, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
CORDON, LOCK = "hami.io/device-cordon", "hami.io/mutex.lock"
HALF = 40_000  # MiB: two such pods fill a GPU
WAKE_S = 8  # kube-scheduler itself may hold a pod back for podMaxBackoffSeconds, which is 2


@contextmanager
def scheduling(cluster: ControlPlane, kubeconfig: Path) -> Iterator[Stowage]:
    """A Stowage that binds, and a kube-scheduler with the shipped configuration."""
    with ExitStack() as stack:
        stack.enter_context(applied(cluster.api, "rbac-bind.yaml"))
        stowage = stack.enter_context(Stowage(cluster, kubeconfig, name="stowage-binds", BIND="true"))
        stack.enter_context(cluster.scheduler(configuration(stowage.url)))
        yield stowage


class Kubelets(PodWatch):
    """Starts the pods with the label `RUNS` some time after they are bound, and ends them later."""

    def __init__(self, api: Api, *, starts_in: float, runs_for: float) -> None:
        super().__init__(api, "kubelets")
        self._starts_in, self._runs_for = starts_in, runs_for
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._waiting_since: dict[str, float] = {}
        self._pending: dict[str, set[str]] = defaultdict(set)
        self._running: dict[str, set[str]] = defaultdict(set)
        self.ended: set[str] = set()
        self.longest_idle = 0.0

    def _take_list(self, pods: list[Object]) -> None:
        for one in pods:
            self._take("MODIFIED", one)

    def _take(self, kind: str, pod: Object) -> None:
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if kind == "DELETED" or not node or name in self._seen:
            return
        self._seen.add(name)
        with self._lock:
            self._pending[node].add(name)
            self._note_idle(node)
        threading.Timer(self._starts_in, self._start, (name, node)).start()

    def _start(self, name: str, node: str) -> None:
        self._report(name, "Running")
        with self._lock:
            self._pending[node].discard(name)
            self._running[node].add(name)
            self._note_idle(node)
        threading.Timer(self._runs_for, self._end, (name, node)).start()

    def _end(self, name: str, node: str) -> None:
        self._report(name, "Succeeded")
        with self._lock:
            self._running[node].discard(name)
            self.ended.add(name)
            self._note_idle(node)

    def _note_idle(self, node: str) -> None:
        """A node could take a pod from now on, or cannot any more."""
        now = time.monotonic()
        if (since := self._waiting_since.pop(node, None)) is not None:
            self.longest_idle = max(self.longest_idle, now - since)
        if not self._pending[node] and len(self._running[node]) < 4:
            self._waiting_since[node] = now

    def _report(self, name: str, phase: str) -> None:
        with suppress(httpx.HTTPError):  # the test is over
            self._api.patch("Pod", name, {"status": {"phase": phase}}, subresource="status")


def test_every_pod_gets_its_turn_while_nodes_are_busy(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """Three nodes that start one pod at a time, for a second each, and 48 pods, of which twelve fit."""
    for number in range(3):
        api.create(hami_node(f"hami-{number}", 2, slots=10))
    with Kubelets(api, starts_in=1, runs_for=3) as kubelets, scheduling(cluster, stowage_kubeconfig):
        started = time.monotonic()
        for number in range(48):
            one = hami_pod(f"turn-{number}", 0, HALF)
            one["metadata"]["labels"] = {RUNS: ""}
            api.create(one)
        eventually(lambda: len(kubelets.ended) == 48, within_s=240, what="every pod had its turn")
        print(f"48 pods in {time.monotonic() - started:.0f} s, longest idle {kubelets.longest_idle:.1f} s")
    assert kubelets.longest_idle < WAKE_S


CHANGES = {
    "a lock is gone": (LOCK, "2026-01-01T00:00:00Z,default,other", None),
    "a GPU is not cordoned any more": (CORDON, "GPU-n1-0,GPU-n1-1", None),
    "the plugin is back": (HANDSHAKE, "Deleted_2026.01.01 00:00:00", "Reported 2026-01-01 00:00:00"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_annotation_of_the_node_wakes_them(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, change: str
) -> None:
    """kube-scheduler tries a pod that an extender refused again at any event, also of an annotation."""
    key, closed, opened = CHANGES[change]
    one = hami_node("n1", 2, slots=10)
    one["metadata"]["annotations"][key] = closed
    api.create(one)
    with scheduling(cluster, stowage_kubeconfig):
        api.create(hami_pod("waits", 0, HALF))
        why_unscheduled(api, "waits")
        time.sleep(2)  # no other event is on its way
        api.patch("Node", "n1", {"metadata": {"annotations": {key: opened}}})
        eventually(lambda: runs(api.get("Pod", "waits")), within_s=WAKE_S, what="the pod runs")


def test_a_pod_that_fits_nowhere_is_unschedulable_though_a_node_is_busy(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """Autoscalers and the evictor act for pods with the condition Unschedulable only."""
    one = hami_node("n1", 1, slots=10)
    one["metadata"]["annotations"][LOCK] = "2026-01-01T00:00:00Z,default,other"
    api.create(one)
    with scheduling(cluster, stowage_kubeconfig):
        api.create(hami_pod("waits", 0, HALF))
        api.create(hami_pod("fits-nowhere", 0, 90_000))
        assert "device plugin is busy" in why_unscheduled(api, "waits")
        assert "device plugin is busy" not in why_unscheduled(api, "fits-nowhere")
        assert (reason(api, "waits"), reason(api, "fits-nowhere")) == ("SchedulerError", "Unschedulable")


def reason(api: Api, name: str) -> str:
    """The reason of the condition PodScheduled."""
    conditions = api.get("Pod", name)["status"]["conditions"]
    return str(next(one["reason"] for one in conditions if one["type"] == "PodScheduled"))
