"""Queues: the rights of their pods, and the queue to which a pod belongs."""

from __future__ import annotations

from collections.abc import Mapping

from extender.k8s.admission_objects import QUEUE_LABEL as QUEUE_LABEL
from extender.k8s.admission_objects import PriorityClass
from extender.k8s.job_kinds import KUEUE_QUEUE
from extender.k8s.objects import Event, Pod, take_in
from extender.settings import DEFAULT_QUEUES, Queue

OTHER_QUEUE_LABELS = (
    KUEUE_QUEUE,
    "kueue.x-k8s.io/local-queue-name",
    "kueue.x-k8s.io/cluster-queue-name",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    "kai.scheduler/queue",
    "runai/queue",
)
"""Labels or annotations with the name of another system's queue.

Sources: Kueue pkg/controller/constants and pkg/constants (the last two are written into the pods of admitted
jobs); Volcano apis scheduling/v1beta1/labels.go (pods) and batch/v1alpha1/labels.go (pods of its jobs); KAI
pkg/common/constants and docs/migrationguides/v0.6.0 (the older name).
"""

RESTARTABLE = "stowage.dev/restartable"
"""Annotation: "true" or "false"; takes precedence over the pod's queue."""
NO_QUEUE = Queue()
"""For pods without a queue: only their priority counts, as in kube-scheduler."""
SYSTEM_CLASSES = {
    name: PriorityClass(name, value=2 * 10**9 + above)
    for name, above in (("system-cluster-critical", 0), ("system-node-critical", 1000))
}
"""Exist in every cluster (k8s.io/kubernetes, pkg/apis/scheduling/v1/helpers.go)."""


class PriorityClasses:
    """The PriorityClasses of the cluster. ``revision`` is a new object after each change."""

    def __init__(self) -> None:
        self.revision = object()
        self.by_name: dict[str, PriorityClass] = {}

    def apply(self, event: Event) -> None:
        """Apply an event of a PriorityClass."""
        after = dict(self.by_name)
        take_in(event, after)
        if after != self.by_name:
            self.by_name, self.revision = after, object()


class Queues:
    """The queues of the settings, by name. ``classes``: the PriorityClasses of the cluster."""

    def __init__(self, queues: Mapping[str, Queue] = DEFAULT_QUEUES) -> None:
        self.by_name = dict(queues)
        self.classes = PriorityClasses()
        self._by_class = {name: key for key, queue in queues.items() for name in queue.priority_classes}
        self._by_alias = {name: key for key, queue in queues.items() for name in (key, *queue.aliases)}

    def name_of(self, pod: Pod) -> str:
        """The name of the pod's queue, "" if it has none.

        The first of these that names a queue counts: the label or annotation ``stowage.dev/queue``; the queue
        of Kueue, Volcano or KAI, by name or alias; the PriorityClass.
        """
        labels, annotations = pod.labels, pod.annotations
        for named in (labels.get(QUEUE_LABEL), annotations.get(QUEUE_LABEL)):
            if named and named in self.by_name:
                return named
        for key in OTHER_QUEUE_LABELS:
            named = labels.get(key) or annotations.get(key)
            if named and named in self._by_alias:
                return self._by_alias[named]
        if pod.priority_class in self._by_class:
            return self._by_class[pod.priority_class]
        known = self.classes.by_name.get(pod.priority_class)
        return known.queue if known and known.queue in self.by_name else ""

    def queue_of(self, pod: Pod) -> Queue:
        return self.by_name.get(self.name_of(pod), NO_QUEUE)


def is_restartable(pod: Pod, queue: Queue) -> bool:
    """Whether the pod may be interrupted at any time and can therefore run on spot nodes: by its annotation,
    otherwise by its queue. Any other text of the annotation is ignored."""
    return {"true": True, "false": False}.get(pod.annotations.get(RESTARTABLE, ""), queue.restartable)
