"""Which jobs lost pods to preemption or interruption lately, and how often."""

from __future__ import annotations

from typing import Any

from extender.k8s.objects import Pod


def job_of(pod: Pod) -> str:
    """What outlives a pod that is replaced: the UID of its controller, or the pod's own key."""
    return pod.owner.uid if pod.owner else pod.key


class DisruptionLog:
    """Disruptions as the watch shows them (pods with ``disruption``), by job. Times in Unix seconds."""

    def restarts(self, pod: Pod) -> int:
        """How often the pod's job lost a pod so far."""
        return 0

    def shielded(self, pod: Pod, now: float) -> bool:
        """Whether the pod's job lost a pod so recently that it must not lose another one."""
        return False

    def evictions_last_hour(self, queue_name: str, now: float) -> int:
        """How many pods of a queue were preempted within the hour before ``now``."""
        return 0

    def dump(self) -> dict[str, Any]:
        """All that ``load`` needs, as JSON values."""
        return {}

    def load(self, dumped: object) -> None:
        """Add the disruptions of a dump. Invalid ones are ignored."""
