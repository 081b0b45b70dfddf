"""Who may be evicted for whom: queues, and the words of other systems that protect a pod."""

from __future__ import annotations

from dataclasses import dataclass, field

from extender.k8s.objects import Pod
from extender.queues.queue import Queues, overtime


@dataclass(slots=True)
class Rights:
    """The rules in force."""

    queues: Queues = field(default_factory=Queues)

    def why_not(self, preemptor: Pod, victim: Pod, now: float, *, to_equals: bool = False) -> str:
        """Why the victim may not be evicted for the preemptor, "" if it may. A text of a small closed set.

        ``to_equals``: pods of equal priority may take over from one that is beyond its maximum duration.
        ``now`` in Unix seconds.
        """
        queue = self.queues.of(victim)
        if preemptor.never_preempts:
            return "the pod's preemptionPolicy is Never"
        if to_equals and victim.priority == preemptor.priority and overtime(queue, victim, now):
            return ""
        if victim.priority >= preemptor.priority:
            return "not of lower priority"
        if not self.queues.may_preempt(preemptor, victim):
            return "its queue may not be preempted by the pod's queue"
        if victim.started and now - victim.started < queue.min_runtime:
            return "below its minimum runtime"
        return ""
