"""Who may be evicted for whom: priorities, queues, and the words of other systems that protect a pod."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.k8s.affinity import PINNED_OWNERS
from extender.k8s.eviction_objects import PriorityClass
from extender.k8s.objects import Pod
from extender.queues.protection import NO_PROTECTION, Protection, WhyNot, managed_by_kueue, protection_of
from extender.queues.queue import NO_QUEUE, Queues, overtime
from extender.settings import Queue

_SYSTEM_CRITICAL = 2_000_000_000
"""``SystemCriticalPriority`` in k8s.io/kubernetes, pkg/apis/scheduling: the lowest that users cannot have."""


class _Standing(NamedTuple):
    """What decides over a pod as a victim and as a preemptor. Times in Unix seconds.

    It holds for these ``rights`` and ``revision`` of the PriorityClasses. ``untouchable``: why nobody may
    evict it. ``guaranteed_until``: the end of its minimum runtime. Until ``tolerates_until`` no priority
    below ``tolerates_below`` may evict it.
    """

    rights: object
    revision: object
    queue_name: str
    queue: Queue
    untouchable: WhyNot | None
    protection: Protection
    guaranteed_until: float
    tolerates_below: int
    tolerates_until: float


class VictimSummary(NamedTuple):
    """A pod may be evicted from ``guaranteed_until`` and ``forbidden_until`` on by those of higher priority
    whose queue permits it; until ``tolerates_until`` not by a priority below ``tolerates_below``.
    ``keeps_minimum``: only if its gang keeps its minimum."""

    guaranteed_until: float
    tolerates_below: int
    tolerates_until: float
    forbidden_until: float
    keeps_minimum: bool


@dataclass(slots=True)
class Rights:
    """The rules in force. ``evict_kueue_pods``: also pods that Kueue manages may be evicted."""

    queues: Queues = field(default_factory=Queues)
    evict_kueue_pods: bool = False

    def why_not(
        self,
        preemptor: Pod,
        victim: Pod,
        now: float,
        *,
        to_equals: bool = False,
        same_gang: bool = False,
        keeps_minimum: bool = False,
        gang_started: float = math.inf,
        rounds: int = 0,
    ) -> str:
        """Why the victim may not be evicted for the preemptor, a text of ``WhyNot``; "" if it may.

        ``to_equals``: pods of equal priority, in the same queue or one that preempts it, may take over from
        one that is beyond its maximum duration. ``preemptionPolicy: Never`` does not forbid that: it is about
        "pods with lower priority" (k8s.io/api core/v1). ``same_gang``: both belong to one gang.
        ``keeps_minimum``: the caller evicts the victim only if enough members of its gang remain.
        ``gang_started``: when the first member of the victim's gang started that still runs; a gang has one
        runtime, or its author could keep it by adding members. ``rounds``: how often the victim's job was
        preempted, see ``overtime``. Times in Unix seconds.
        """
        evicting, evicted = self._standing(preemptor), self._standing(victim)
        started = min(victim.started, gang_started) if victim.started else 0.0
        late = to_equals and overtime(evicted.queue, started, now, rounds)
        if not (late and self._are_equals(preemptor, victim)):
            if preemptor.never_preempts:
                return WhyNot.NEVER
            if victim.priority >= preemptor.priority:
                return WhyNot.PRIORITY
            if not self.queues.permits(evicting.queue_name, evicted.queue_name):
                return WhyNot.QUEUE
            if now < min(evicted.guaranteed_until, gang_started + evicted.queue.min_runtime):
                return WhyNot.MIN_RUNTIME
        if same_gang or _same_job(preemptor, victim):
            return WhyNot.SAME_GANG
        if evicted.untouchable:
            return evicted.untouchable
        if preemptor.priority < evicted.tolerates_below and now < evicted.tolerates_until:
            return WhyNot.TOLERATION
        if evicted.protection.reason and now < evicted.protection.until:
            return evicted.protection.reason
        return WhyNot.GANG_MINIMUM if evicted.protection.keeps_minimum and not keeps_minimum else ""

    def gang_must_remain(self, victim: Pod) -> bool:
        """Whether the victim's gang must not leave as a whole: members beyond its minimum may still go."""
        return self._standing(victim).protection.keeps_minimum

    def _are_equals(self, preemptor: Pod, victim: Pod) -> bool:
        """Whether the preemptor may take over from the victim once that is beyond its maximum duration."""
        evicting, evicted = self._standing(preemptor), self._standing(victim)
        permits = evicted.queue_name in (evicting.queue_name, *evicting.queue.preempts)
        return victim.priority == preemptor.priority and permits

    def summary(self, victim: Pod) -> VictimSummary:
        """What ``why_not`` says of the victim to pods of higher priority, as numbers."""
        known = self._standing(victim)
        forbidden = known.protection.until if known.protection.reason else -math.inf
        return VictimSummary(
            known.guaranteed_until,
            known.tolerates_below,
            known.tolerates_until,
            math.inf if known.untouchable else forbidden,
            known.protection.keeps_minimum,
        )

    def queue_name(self, pod: Pod) -> str:
        """``Queues.name_of``, found once for each record of a pod."""
        return self._standing(pod).queue_name

    def queue_of(self, pod: Pod) -> Queue:
        return self._standing(pod).queue

    def _standing(self, pod: Pod) -> _Standing:
        """Found once for each record of a pod, as long as the PriorityClasses stay the same."""
        known = getattr(pod, "memo", None)
        if known is None or known.rights is not self or known.revision is not self.queues.classes.revision:
            known = self._find_standing(pod)
            object.__setattr__(pod, "memo", known)
        standing: _Standing = known
        return standing

    def _find_standing(self, pod: Pod) -> _Standing:
        name = self.queues.name_of(pod)
        queue = self.queues.by_name.get(name, NO_QUEUE)
        started, known_class = pod.started, self.queues.classes.get(pod.priority_class)
        return _Standing(
            self,
            self.queues.classes.revision,
            name,
            queue,
            self._untouchable(pod),
            protection_of(pod) if queue.self_protection else NO_PROTECTION,
            guaranteed_until=started + queue.min_runtime if started else -math.inf,
            tolerates_below=known_class.minimum_preemptable if known_class else 0,
            tolerates_until=_toleration_end(known_class, started) if known_class else -math.inf,
        )

    def _untouchable(self, pod: Pod) -> WhyNot | None:
        if pod.priority >= _SYSTEM_CRITICAL:
            return WhyNot.SYSTEM
        if pod.owner and pod.owner.kind in PINNED_OWNERS:
            return WhyNot.PINNED
        return WhyNot.KUEUE if not self.evict_kueue_pods and managed_by_kueue(pod) else None


def _toleration_end(known_class: PriorityClass, started: float) -> float:
    """A pod without a known start was bound just now: it tolerates for as long as it ever will."""
    if not known_class.toleration:
        return -math.inf
    return started + known_class.toleration if started else math.inf


def _same_job(one: Pod, other: Pod) -> bool:
    """Whether both have the same controller, or are in the same PodGroup of Kubernetes."""
    same_owner = one.owner and other.owner and one.owner.uid and one.owner.uid == other.owner.uid
    same_group = one.pod_group and (one.pod_group, one.namespace) == (other.pod_group, other.namespace)
    return bool(same_owner or same_group)
