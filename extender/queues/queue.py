"""Queues: what their pods may do to each other, and which queue a pod belongs to."""

from __future__ import annotations

import math
from collections.abc import Mapping

from extender.k8s.objects import Pod
from extender.settings import DEFAULT_QUEUES, Queue

QUEUE_LABEL = "stowage.dev/queue"
"""A label or annotation of a pod: the name of its queue."""


NO_QUEUE = Queue()
"""For pods that belong to no queue: only their priority counts, as in kube-scheduler."""


class Queues:
    """The queues of the settings, by name."""

    def __init__(self, queues: Mapping[str, Queue] = DEFAULT_QUEUES) -> None:
        self.by_name = dict(queues)
        self._by_class = {name: key for key, queue in queues.items() for name in queue.priority_classes}

    def name_of(self, pod: Pod) -> str:
        """The name of the pod's queue, "" for none."""
        named = pod.labels.get(QUEUE_LABEL) or pod.annotations.get(QUEUE_LABEL) or ""
        return named if named in self.by_name else self._by_class.get(pod.priority_class, "")

    def of(self, pod: Pod) -> Queue:
        return self.by_name.get(self.name_of(pod), NO_QUEUE)

    def may_preempt(self, preemptor: Pod, victim: Pod) -> bool:
        """Whether the queues permit it. A pod without a queue is subject to priorities only."""
        evicting, evicted = self.name_of(preemptor), self.name_of(victim)
        return not (evicting and evicted) or evicted in self.by_name[evicting].preempts


def overtime(queue: Queue, pod: Pod, now: float) -> bool:
    """Whether a pod has run longer than the maximum duration of its queue. ``now`` in Unix seconds."""
    limit = math.inf if queue.max_duration is None else queue.max_duration
    return bool(pod.started) and now - pod.started > limit
