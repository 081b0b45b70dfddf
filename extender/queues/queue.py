"""Queues: what their pods may do to each other, and which queue a pod belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from extender.k8s.eviction_manifests import QUEUE_LABEL as QUEUE_LABEL
from extender.k8s.objects import Pod
from extender.queues.priority_classes import PriorityClasses
from extender.settings import DEFAULT_QUEUES, Queue
from packing.victims.takeover import longest_run

OTHER_QUEUE_LABELS = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/local-queue-name",
    "kueue.x-k8s.io/cluster-queue-name",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    "kai.scheduler/queue",
    "runai/queue",
)
"""Labels or annotations with the name of a queue of another system.

Sources: Kueue pkg/controller/constants and pkg/constants (the last two are written into the pods of admitted
jobs); Volcano apis scheduling/v1beta1/labels.go (pods) and batch/v1alpha1/labels.go (pods of its jobs); KAI
pkg/common/constants and docs/migrationguides/v0.6.0 (the older name).
"""

NO_QUEUE = Queue()
"""For pods that belong to no queue: only their priority counts, as in kube-scheduler."""


class Queues:
    """The queues of the settings, by name. ``classes`` are the PriorityClasses of the cluster."""

    def __init__(self, queues: Mapping[str, Queue] = DEFAULT_QUEUES) -> None:
        self.by_name = dict(queues)
        self.classes = PriorityClasses()
        self._by_class = {name: key for key, queue in queues.items() for name in queue.priority_classes}
        self._by_alias = {name: key for key, queue in queues.items() for name in (key, *queue.aliases)}

    def name_of(self, pod: Pod) -> str:
        """The name of the pod's queue, "" for none.

        The first that names a queue counts: the label or annotation ``stowage.dev/queue``; the queue of
        Kueue, Volcano or KAI, by name or alias; the PriorityClass.
        """
        labels, annotations = pod.labels, pod.annotations
        for named in (labels.get(QUEUE_LABEL), annotations.get(QUEUE_LABEL)):
            if named and named in self.by_name:
                return named
        for key in OTHER_QUEUE_LABELS:
            named = labels.get(key) or annotations.get(key)
            if named and named in self._by_alias:
                return self._by_alias[named]
        return self._of_class(pod.priority_class)

    def _of_class(self, name: str) -> str:
        if name in self._by_class:
            return self._by_class[name]
        known = self.classes.get(name)
        return known.queue if known and known.queue in self.by_name else ""

    def of(self, pod: Pod) -> Queue:
        return self.by_name.get(self.name_of(pod), NO_QUEUE)

    def permits(self, evicting: str, evicted: str) -> bool:
        """Whether pods of the first queue may preempt those of the second. A pod without a queue ("") is
        subject to priorities only."""
        return not (evicting and evicted) or evicted in self.by_name[evicting].preempts


def overtime(queue: Queue, started: float, now: float, rounds: int = 0) -> bool:
    """Whether a pod has run longer than the maximum duration of its queue. Times in Unix seconds, ``started``
    0 for a pod that has not started. ``rounds``: how often its job was preempted (``DisruptionLog.rounds``).
    """
    if queue.max_duration is None or not started:
        return False
    return now - started > longest_run(queue.max_duration, rounds)
