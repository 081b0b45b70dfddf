"""A small cluster under load: pods of several queues arrive, are placed by a real Stowage, run and end.

The API server is that of the tests, the nodes are those of the demo, some of them spot nodes. This process
acts as kube-scheduler and kubelet. So that every panel has data, one node is cordoned, one is being
repartitioned, some pods are preempted, and some request more than any node has.
"""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from itertools import count
from typing import Any

from bench.client import extender_args
from bench.demo_cluster import nodes
from bench.service import Running, kubeconfig_of, stowage
from extender.demo.pods import stream
from tests.extender.apiserver import ApiServer
from tests.extender.apistore import Store

Manifest = dict[str, Any]
SETTINGS = {
    "STOWAGE_BIND": "true",
    "STOWAGE_LEADER_ELECTION": "gpu/stowage",
    "STOWAGE_DEMAND": '[{weight: 1, resources: {"nvidia.com/gpu": "8", cpu: "64"}}]',
}
"""Settings with ``bind`` and a Lease, and with a demand that differs from the arrivals."""
_QUEUES = ("interactive", "batch", "batch", "backfill", "")
_SEED = 20_261_122
_MOST_WAITING = 15
_CPU_POD = {
    "metadata": {"name": "compile", "namespace": "research", "uid": "compile"},
    "spec": {"nodeName": "h100-10", "containers": [{"resources": {"requests": {"cpu": "216"}}}]},
    "status": {"phase": "Running"},
}
_RUNTIME = 8.0, 25.0  # seconds


class Cluster:
    """The cluster and its scheduler; call ``step`` regularly."""

    def __init__(self, api: ApiServer, port: int) -> None:
        self._api, self._url = api, f"http://127.0.0.1:{port}/scheduler/"
        self._random = random.Random(_SEED)
        self._arrivals = self._endless()
        self._waiting: list[Manifest] = []
        self._ends: list[tuple[float, Manifest]] = []
        self.answered = 0

    def step(self) -> None:
        """One pod arrives, all pending pods are tried once, and some pods end."""
        pod = next(self._arrivals)
        self._api.put(pod)
        self._waiting.append(pod)
        time.sleep(0.01)  # until Stowage's watch observes the pod
        self._waiting = [one for one in self._waiting if not self._schedule(one)]
        while len(self._waiting) > _MOST_WAITING:
            self._delete(self._waiting.pop(0))
        now = time.monotonic()
        for _, ended in [one for one in self._ends if one[0] < now]:
            self._end(ended)
        self._ends = [one for one in self._ends if one[0] >= now]

    def disturb(self) -> None:
        """Cordon one node, repartition another, and use up the CPU of a third."""
        cordoned, changing = (deepcopy(self._api.nodes.objects[name]) for name in ("l40s-06", "h100-mig-03"))
        cordoned["spec"]["unschedulable"] = True
        changing["metadata"]["labels"]["nvidia.com/mig.config.state"] = "pending"
        self._api.put(cordoned)
        self._api.put(changing)
        self._api.put(_CPU_POD)

    def _schedule(self, pod: Manifest) -> bool:
        """Schedule like kube-scheduler. Returns whether the pod was bound."""
        names = [*self._api.nodes.objects]
        fitting = self._post("filter", extender_args(pod, names)).get("NodeNames") or []
        if not fitting:
            self._preempt(pod)
            return False
        scores = self._post("prioritize", extender_args(pod, fitting))
        node = max(scores, key=lambda one: one["Score"])["Host"]
        metadata = pod["metadata"]
        binding = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"],
                   "PodUID": metadata["uid"], "Node": node}  # fmt: skip
        if self._post("bind", json.dumps(binding).encode()).get("Error"):
            return False
        bound = deepcopy(self._api.pods.objects[f"{metadata['namespace']}/{metadata['name']}"])
        bound["status"] = {"phase": "Running", "startTime": _now()}
        self._api.put(bound)
        self._ends.append((time.monotonic() + self._random.uniform(*_RUNTIME), bound))
        return True

    def _preempt(self, pod: Manifest) -> None:
        names = self._random.sample([*self._api.nodes.objects], 3)
        victims = {name: {"Pods": [], "NumPDBViolations": 0} for name in names}
        message = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        self._post("preempt", json.dumps(message).encode())

    def _post(self, verb: str, body: bytes) -> Any:  # noqa: ANN401 - any JSON
        request = urllib.request.Request(self._url + verb, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                self.answered += 1
                return json.load(answer)
        except urllib.error.HTTPError:  # preempt waits for its kernels
            return {}

    def _end(self, pod: Manifest) -> None:
        """One pod in eight does not end by itself but is preempted."""
        if self._random.random() < 1 / 8:
            preempted = deepcopy(pod)
            preempted["metadata"]["deletionTimestamp"] = _now()
            preempted["status"]["conditions"] = [
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                 "lastTransitionTime": _now()}
            ]  # fmt: skip
            self._api.put(preempted)
        self._delete(pod)

    def _delete(self, pod: Manifest) -> None:
        self._api.delete(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")

    def _endless(self) -> Iterator[Manifest]:
        for cycle in count(1):
            for pod in stream(_SEED + cycle):
                metadata = pod["metadata"]
                metadata["name"] += f"-{cycle}"
                metadata["uid"] = f"{metadata['namespace']}-{metadata['name']}"
                metadata["creationTimestamp"] = _now()
                metadata["ownerReferences"] = [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": "j",
                     "controller": True}
                ]  # fmt: skip
                if queue := self._random.choice(_QUEUES):
                    metadata["labels"]["stowage.dev/queue"] = queue
                yield pod


@contextmanager
def loaded_cluster() -> Iterator[tuple[Cluster, Running]]:
    """A cluster and a ready Stowage."""
    api = ApiServer()
    for path in list(api.stores):
        api.stores[path] = Store(page_size=500)
    api.nodes, api.pods = api.stores.values()
    for node in nodes():
        if node["metadata"]["name"].startswith("l40s"):
            node["metadata"]["labels"]["karpenter.sh/capacity-type"] = "spot"
        api.put(node)
    api.start()
    try:
        with stowage(kubeconfig_of(int(api.url.rpartition(":")[2])), SETTINGS) as running:
            yield Cluster(api, running.port), running
    finally:
        api.stop()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
