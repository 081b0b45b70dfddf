"""How many pods and GPUs of each queue wait and run, kept up to date with every pod of the watch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from extender.cluster.gpu_amounts import GpuAmounts
from extender.dialects.pod_request import bound_request, request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.queues.queue import Queues
from packing.fleet.fleet import Fleet


@dataclass(frozen=True, slots=True)
class QueueUse:
    """One queue. ``oldest``: when the pod was created that has waited longest, in Unix seconds; None if none
    waits."""

    waiting_pods: int = 0
    waiting_gpus: float = 0.0
    oldest: float | None = None
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class _Counted:
    uid: str
    queue: str
    gpus: float
    waits: bool
    created: float


class QueueUsage:
    """GPU pods by queue, "" for none. ``on_bound`` is called with the queue and the seconds since its
    creation when a pod that waited gets a node."""

    def __init__(self, queues: Queues, fleet: Fleet, now: Callable[[], float] = time.time) -> None:
        self.on_bound: Callable[[str, float], None] = lambda queue, seconds: None
        self._queues, self._amounts, self._now = queues, GpuAmounts(fleet), now
        self._pods: dict[str, _Counted] = {}
        self._waiting: dict[str, dict[str, float]] = {}  # by queue and key, when it was created
        self._waiting_gpus: Counter[str] = Counter()
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
        if counted.waits:
            self._waiting.setdefault(counted.queue, {})[pod.key] = counted.created
        (self._waiting_gpus if counted.waits else self._gpus)[counted.queue] += counted.gpus  # type: ignore[assignment]
        bound = before is not None and before.waits and before.uid == pod.uid and pod.node_name
        if bound and pod.created:
            self.on_bound(counted.queue, max(0.0, self._now() - pod.created))

    def remove(self, key: str) -> None:
        counted = self._pods.pop(key, None)
        if counted is None:
            return
        if counted.waits:
            del self._waiting[counted.queue][key]
        (self._waiting_gpus if counted.waits else self._gpus)[counted.queue] -= counted.gpus  # type: ignore[assignment]

    def by_queue(self) -> dict[str, QueueUse]:
        """All queues of the settings, and "" for pods without one."""
        return {name: self._of(name) for name in (*self._queues.by_name, "")}

    def reread(self, pods: Mapping[str, Pod], batch: int) -> Iterator[None]:
        """Count all pods again if PriorityClasses or resources of nodes have changed; yields after each
        ``batch`` of them."""
        now = self._queues.classes.revision, self._amounts.resources
        if now == self._read_with:
            return
        self._read_with = now
        for number, key in enumerate(list(self._pods), 1):
            if (pod := pods.get(key)) is not None:
                self.put(pod)
            if number % batch == 0:
                yield

    def _of(self, queue: str) -> QueueUse:
        waiting = self._waiting.get(queue, {})
        return QueueUse(
            len(waiting),
            max(0.0, self._waiting_gpus[queue]) if waiting else 0.0,
            min(waiting.values(), default=None),
            max(0.0, self._gpus[queue]),
        )

    def _counted(self, pod: Pod) -> _Counted | None:
        """None for a pod that neither has nor waits for a GPU. With scheduling gates it waits for others."""
        waits = not pod.node_name
        if waits and (pod.deleting or pod.gates):
            return None
        try:
            request = request_of(pod) if waits else bound_request(pod).request
        except RequestError:  # it waits, and nobody knows for how much
            return _Counted(pod.uid, self._queues.name_of(pod), 0.0, waits, pod.created)
        if not request.wants_gpu:
            return None
        gpus = self._amounts.of(request)
        return _Counted(pod.uid, self._queues.name_of(pod), gpus, waits, pod.created)
