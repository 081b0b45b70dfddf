"""How many GPUs the pods of each queue have, kept up to date with every pod of the watch, and how long pods
waited for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from extender.cluster.demand import gpus_of
from extender.dialects.pod_request import bound_request, request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.queues.queue import Queues
from packing.fleet.fleet import Fleet


@dataclass(frozen=True, slots=True)
class _Counted:
    uid: str
    queue: str
    gpus: float
    waits: bool


class QueueUsage:
    """GPU pods by queue, "" for none. ``on_bound`` is called with the queue and the seconds since its
    creation when a pod that waited gets a node."""

    def __init__(self, queues: Queues, fleet: Fleet, now: Callable[[], float] = time.time) -> None:
        self.on_bound: Callable[[str, float], None] = lambda queue, seconds: None
        self._queues, self._fleet, self._now = queues, fleet, now
        self._pods: dict[str, _Counted] = {}
        self._gpus: Counter[str] = Counter()
        self._read_with: tuple[object, int] = None, 0

    def put(self, pod: Pod) -> None:
        """Count a pod as the watch shows it."""
        before = self._pods.get(pod.key)
        self.remove(pod.key)
        counted = self._counted(pod)
        if counted is None:
            return
        self._pods[pod.key] = counted
        self._gpus[counted.queue] += counted.gpus  # type: ignore[assignment]
        bound = before is not None and before.waits and before.uid == pod.uid and pod.node_name
        if bound and pod.created:
            self.on_bound(counted.queue, max(0.0, self._now() - pod.created))

    def remove(self, key: str) -> None:
        if counted := self._pods.pop(key, None):
            self._gpus[counted.queue] -= counted.gpus  # type: ignore[assignment]

    def gpus_by_queue(self) -> dict[str, float]:
        """Of all queues of the settings, and of "" for pods without one."""
        return {name: max(0.0, self._gpus[name]) for name in (*self._queues.by_name, "")}

    def reread(self, pods: Mapping[str, Pod], batch: int) -> Iterator[None]:
        """Count all pods again if PriorityClasses or resources of nodes have changed; yields after each
        ``batch`` of them."""
        now = self._queues.classes.revision, len(self._fleet.names.resources)
        if now == self._read_with:
            return
        self._read_with = now
        for number, key in enumerate(list(self._pods), 1):
            if (pod := pods.get(key)) is not None:
                self.put(pod)
            if number % batch == 0:
                yield

    def _counted(self, pod: Pod) -> _Counted | None:
        """None for a pod that neither has nor waits for a GPU. With scheduling gates it waits for others."""
        queue, waits = self._queues.name_of(pod), not pod.node_name
        if not waits:
            request = bound_request(pod).request
            gpus = gpus_of(self._fleet, request)
            return _Counted(pod.uid, queue, gpus, waits) if request.wants_gpu else None
        if pod.deleting or pod.gates:
            return None
        try:
            return _Counted(pod.uid, queue, 0.0, waits) if request_of(pod).wants_gpu else None
        except RequestError:
            return _Counted(pod.uid, queue, 0.0, waits)
