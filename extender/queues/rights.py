"""Rules for evicting pods in favor of others: the protections of Kubernetes pods, for
``packing.victims.rights``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from extender.k8s.admission_objects import PriorityClass
from extender.k8s.affinity import PINNED_OWNERS
from extender.k8s.objects import Kind, Pod, Unlisted
from extender.queues.disruptions import DisruptionLog, job_of
from extender.queues.gang_words import KUEUE_POD_SET, KUEUE_WORKLOAD
from extender.queues.gangs import GangTable
from extender.queues.queue import NO_QUEUE, Queues
from extender.settings import Queue
from extender.untrusted.duration import DurationError, seconds
from extender.untrusted.limits import KEY, shorten
from packing.fleet.arrays import Doubles, Flags
from packing.victims.rights import (
    EvictionVerdict,
    Relations,
    Standing,
    longest_run,
    may_preempt,
    may_take_over,
    verdicts,
)

_FORBIDDEN_UNTIL = Standing._fields.index("forbidden_until")
_SYSTEM_CRITICAL = 2_000_000_000
"""``SystemCriticalPriority`` in k8s.io/kubernetes, pkg/apis/scheduling: the lowest priority that is
reserved."""
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
_PREEMPTIBILITY, _SEMI_PREEMPTIBLE = "kai.scheduler/preemptibility", "semi-preemptible"
_SAFE_TO_CONSOLIDATE = "kai.scheduler/safe-to-consolidate"
_PREEMPTABLE = "volcano.sh/preemptable"
_COOLDOWN = "volcano.sh/cooldown-time"
_QUOTA_PREEMPTIBLE = "quota.scheduling.koordinator.sh/preemptible"
_DISABLE_PREEMPTIBLE = "scheduling.koordinator.sh/disable-preemptible"
PROTECTING_WORDS = frozenset({
    *(_SAFE_TO_EVICT, _DO_NOT_DISRUPT, _PREEMPTIBILITY, _PREEMPTABLE, _COOLDOWN),
    *(_QUOTA_PREEMPTIBLE, _DISABLE_PREEMPTIBLE),
})  # fmt: skip
# As Go's strconv.ParseBool reads them.
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")


class WhyNot(StrEnum):
    """Why a pod may not be evicted for another one. Explanations are grouped by these texts. Each
    ``EvictionVerdict`` except ``FORBIDDEN``, which has many reasons, has a member with its name."""

    NEVER = "the preemptionPolicy of the pod or its PodGroup is Never"
    PRIORITY = "same or higher priority"
    QUEUE = "its queue may not be preempted by the pod's queue"
    MIN_RUNTIME = "below its minimum runtime"
    SAME_GANG = "it belongs to the pod's own job or gang"
    SYSTEM = "it is system-critical"
    UNLISTED = "PodDisruptionBudgets or PriorityClasses cannot be listed, and may protect it"
    PINNED = "it is a static pod or belongs to a DaemonSet"
    KUEUE = "Kueue manages it and evicts it itself"
    TOLERATION = "its PriorityClass tolerates preemption by this priority"
    SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict forbids it"
    DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt forbids it"
    PREEMPTIBILITY = "kai.scheduler/preemptibility forbids it"
    GANG_MINIMUM = "kai.scheduler/preemptibility protects the minimum of its gang"
    PREEMPTABLE = "volcano.sh/preemptable forbids it"
    COOLDOWN = "in its volcano.sh/cooldown-time"
    QUOTA_PREEMPTIBLE = "quota.scheduling.koordinator.sh/preemptible forbids it"
    DISABLE_PREEMPTIBLE = "scheduling.koordinator.sh/disable-preemptible forbids it"
    UNREADABLE = "its labels and annotations cannot be read completely"
    SHIELDED = "its job lost a pod recently"
    HOURLY_BOUND = "its queue has reached its hourly limit of evictions"
    STUCK = "its termination is overdue, so its room does not count"
    REFUSED = "the API server has just rejected its eviction"


class _PodRights(NamedTuple):
    """The rights of a pod, computed once per record of the pod, for these ``rights`` and this ``revision`` of
    the PriorityClasses. ``forbidden_by``: the reason for ``standing.forbidden_until``. ``keeps_minimum``: the
    pod may be evicted only if its gang keeps its minimum."""

    rights: object
    revision: object
    queue_name: str
    queue: Queue
    standing: Standing
    forbidden_by: WhyNot | None
    keeps_minimum: bool


@dataclass(slots=True)
class Rights:
    """The effective rules. ``evict_kueue_pods``: pods that Kueue manages may also be evicted. ``unlisted``:
    the kinds that count as unknown; a new ``revision`` of the PriorityClasses must follow each change."""

    queues: Queues = field(default_factory=Queues)
    evict_kueue_pods: bool = False
    unlisted: dict[Kind, Unlisted] = field(default_factory=dict)

    def queue_name(self, pod: Pod) -> str:
        """``Queues.name_of``. All rights of a pod take five times as long, and few pods are ever victims."""
        return self.queues.name_of(pod)

    def queue_of(self, pod: Pod) -> Queue:
        return self.rights_of(pod).queue

    def rights_of(self, pod: Pod) -> _PodRights:
        """The rights of a pod, computed once per record of the pod while the PriorityClasses do not
        change."""
        known = getattr(pod, "memo", None)
        if known is None or known.rights is not self or known.revision is not self.queues.classes.revision:
            known = self._find_rights(pod)
            object.__setattr__(pod, "memo", known)
        found: _PodRights = known
        return found

    def _find_rights(self, pod: Pod) -> _PodRights:
        classes, name = self.queues.classes, self.queues.name_of(pod)
        queue = self.queues.by_name.get(name, NO_QUEUE)
        protection = protection_of(pod) if queue.self_protection else NO_PROTECTION
        untouchable, of_class = self._untouchable(pod), classes.by_name.get(pod.priority_class)
        standing = Standing(
            pod.priority,
            guaranteed_until=pod.started + queue.min_runtime if pod.started else -math.inf,
            overtime_from=_overtime_from(queue, pod.started),
            forbidden_until=math.inf if untouchable else protection.until,
            tolerates_below=of_class.minimum_preemptable if of_class else 0,
            tolerates_until=_toleration_end(of_class, pod.started) if of_class else -math.inf,
        )
        why = untouchable or protection.reason
        return _PodRights(self, classes.revision, name, queue, standing, why, protection.keeps_minimum)

    def _untouchable(self, pod: Pod) -> WhyNot | None:
        if pod.priority >= _SYSTEM_CRITICAL:
            return WhyNot.SYSTEM
        if pod.owner and pod.owner.kind in PINNED_OWNERS:
            return WhyNot.PINNED
        if not self.unlisted.keys().isdisjoint(("PodDisruptionBudget", "PriorityClass")):
            return WhyNot.UNLISTED
        return WhyNot.KUEUE if not self.evict_kueue_pods and managed_by_kueue(pod) else None


class Standings(NamedTuple):
    """V pods as possible victims: ``numbers`` (7, V) as in ``Standing``, their queues and jobs, and the
    columns of the pods that name a gang or must keep the minimum of one."""

    pods: Sequence[Pod]
    numbers: Doubles
    queues: Sequence[str]
    jobs: Sequence[str]
    in_gangs: Sequence[int]


def standings_of(rights: Rights, gangs: GangTable, pods: Sequence[Pod]) -> Standings:
    """The standings of these pods, which depend neither on the time nor on the preemptor."""
    found = [rights.rights_of(pod) for pod in pods]
    numbers = np.array([k.standing for k in found], np.float64).reshape(-1, len(Standing._fields)).T
    jobs = tuple(map(job_of, pods))
    singles = (gangs.is_single(pod) and not k.keeps_minimum for pod, k in zip(pods, found, strict=True))
    in_gangs = tuple(column for column, single in enumerate(singles) if not single)
    return Standings(pods, numbers, tuple(known.queue_name for known in found), jobs, in_gangs)


class EvictionRules:
    """The rules for evicting pods in favor of one pod, at one moment (``now`` in Unix seconds).

    ``to_equals``: pods of equal priority, in the same queue or one that preempts it, may take over from a pod
    that is beyond its maximum duration. ``moved_within``: the victims are moved to another place, so pods of
    equal priority of any queue may be taken, but none of a job that lost a pod within this many seconds.
    """

    def __init__(
        self,
        rights: Rights,
        gangs: GangTable,
        disruptions: DisruptionLog,
        preemptor: Pod,
        now: float,
        *,
        to_equals: bool = False,
        moved_within: float | None = None,
    ) -> None:
        self.preemptor, self.now, self._to_equals = preemptor, now, to_equals
        self._moved_within = moved_within
        self._rights, self._gangs, self._disruptions = rights, gangs, disruptions
        self._own_gang = gangs.gang_of(preemptor)
        self._evictions_left: dict[str, float] = {}

    def verdicts(self, victims: Standings, *, ever: bool = False) -> npt.NDArray[np.int8]:
        """The ``EvictionVerdict`` of each of these bound pods (V,). ``ever``: ignore the recent losses of
        their jobs and queues, which protect them only for a short time.

        A member of a gang that must keep its minimum may be beyond the minimum: the search handles that.
        """
        numbers = victims.numbers.copy()
        job = job_of(self.preemptor)
        same_gang = np.array([other == job for other in victims.jobs], np.bool_)
        lost = self._disruptions.jobs
        hit = [column for column, other in enumerate(victims.jobs) if other in lost] if lost else ()
        for column in {*victims.in_gangs, *hit}:
            numbers[:, column] = self._standing_now(victims.pods[column], ever=ever)
            same_gang[column] |= self._in_own_gang(victims.pods[column])
        relations = self._relations(victims.queues, same_gang, ever=ever)
        never, priority = self._gangs.never_preempts(self.preemptor), self.preemptor.priority
        if self._moved_within is not None:
            relations = relations._replace(lower=np.ones(len(victims.queues), np.bool_))
            priority += 1
        for column in () if ever else self._refused_among(victims.pods):
            numbers[_FORBIDDEN_UNTIL, column] = math.inf
        return verdicts(priority, numbers, relations, self.now, never_preempts=never)

    def _refused_among(self, victims: Sequence[Pod]) -> list[int]:
        """The columns of pods whose eviction the API server has just rejected. Empty for kube-scheduler,
        which deletes pods instead."""
        if not (self._to_equals or self._moved_within is not None):
            return []
        return [i for i, pod in enumerate(victims) if self._disruptions.was_refused(pod, self.now)]

    def why_not(self, victims: Sequence[Pod]) -> list[str]:
        """For each of these bound pods, why it may not be evicted, a text of ``WhyNot``; "" if it may."""
        found = self.verdicts(standings_of(self._rights, self._gangs, victims)).tolist()
        return [
            self._text(EvictionVerdict(verdict), victim)
            for verdict, victim in zip(found, victims, strict=True)
        ]

    def may_ever_leave(self, victims: Sequence[Pod]) -> list[bool]:
        """Whether each of these bound pods may be evicted, ignoring recent losses of its job and queue."""
        found = self.verdicts(standings_of(self._rights, self._gangs, victims), ever=True).tolist()
        return [verdict == EvictionVerdict.MAY_LEAVE for verdict in found]

    def may_leave_whole(self, members: Sequence[Pod]) -> bool:
        """Whether all these members of a gang may be evicted, and none requires that its gang keeps its
        minimum."""
        keep_minimum = any(self._rights.rights_of(member).keeps_minimum for member in members)
        return not keep_minimum and not any(self.why_not(members))

    def exceeds_hourly_bound(self, victims: Iterable[Pod]) -> bool:
        """Whether these pods of a queue exceed the number that may still be evicted within this hour."""
        names = Counter(self._rights.queue_name(pod) for pod in victims if not pod.deleting)
        return any(count > self._left_this_hour(name) for name, count in names.items())

    def of_other_queues(self, victims: Iterable[Pod]) -> int:
        """Number of these pods that are not in the preemptor's queue; 0 if it has none."""
        own, name = self._rights.queue_name(self.preemptor), self._rights.queue_name
        return sum(name(pod) != own for pod in victims) if own else 0

    def _text(self, verdict: EvictionVerdict, victim: Pod) -> str:
        if verdict is EvictionVerdict.FORBIDDEN:
            if self._refused_among([victim]):
                return f"{WhyNot.REFUSED}: {shorten(victim.key, KEY)}"
            return self._rights.rights_of(victim).forbidden_by or WhyNot.GANG_MINIMUM
        return WhyNot[verdict.name] if verdict else ""

    def _standing_now(self, victim: Pod, *, ever: bool) -> Standing:
        """The standing, adjusted for the pod's gang and the history of its job.

        A gang has one runtime, from the start of its first member that still runs; otherwise its author could
        protect it by adding members.
        """
        known, gang = self._rights.rights_of(victim), self._gangs.gang_of(victim)
        gang_started = self._gangs.first_start(gang.key) if gang else math.inf
        longest, standing, rounds = known.queue.max_duration, known.standing, 0
        if longest and self._to_equals and victim.priority == self.preemptor.priority:
            rounds = self._disruptions.rounds(victim, longest)
        started = min(victim.started, gang_started) if victim.started else 0.0
        return standing._replace(
            guaranteed_until=min(standing.guaranteed_until, gang_started + known.queue.min_runtime),
            overtime_from=_overtime_from(known.queue, started, rounds),
            forbidden_until=math.inf if known.keeps_minimum and not gang else standing.forbidden_until,
            shielded_until=-math.inf
            if ever
            else self._disruptions.shielded_until(victim, self._moved_within),
        )

    def _in_own_gang(self, victim: Pod) -> bool:
        gang, own, preemptor = self._gangs.gang_of(victim), self._own_gang, self.preemptor
        if gang and own and gang.key == own.key:
            return True
        group = victim.pod_group, victim.namespace  # members of any priority
        return bool(preemptor.pod_group) and group == (preemptor.pod_group, preemptor.namespace)

    def _relations(self, queues: Sequence[str], same_gang: Flags, *, ever: bool) -> Relations:
        own = self._rights.rights_of(self.preemptor)
        name, preempts = own.queue_name, own.queue.preempts

        def of_each(holds: Callable[[str], bool]) -> Flags:
            by_queue = {queue: holds(queue) for queue in set(queues)}
            return np.array([by_queue[queue] for queue in queues], np.bool_)

        return Relations(
            of_each(lambda queue: may_preempt(name, preempts, queue)),
            self._to_equals and of_each(lambda queue: may_take_over(name, preempts, queue)),
            same_gang,
            not ever and of_each(lambda queue: self._left_this_hour(queue) < 1),
        )

    def _left_this_hour(self, queue: str) -> float:
        if queue not in self._evictions_left:
            bound = self._rights.queues.by_name.get(queue, NO_QUEUE).evictions_per_hour
            evicted = self._disruptions.evictions_last_hour(queue, self.now) if bound is not None else 0
            self._evictions_left[queue] = math.inf if bound is None else bound - evicted
        return self._evictions_left[queue]


def _overtime_from(queue: Queue, started: float, rounds: int = 0) -> float:
    """Time from which equals may take over from a pod that has started, see ``longest_run``."""
    if not started or queue.max_duration is None:
        return math.inf
    return started + longest_run(queue.max_duration, rounds)


def _toleration_end(known_class: PriorityClass, started: float) -> float:
    """End of the toleration. A pod without a known start has just been bound, so its full toleration
    remains."""
    if not known_class.toleration:
        return -math.inf
    return started + known_class.toleration if started else math.inf


class Protection(NamedTuple):
    """Why a pod may not be evicted: ``reason`` until ``until`` (Unix seconds; ``inf``: always), None if there
    is none. ``keeps_minimum``: the gang of the pod must keep its minimum; members beyond it may be
    evicted."""

    reason: WhyNot | None
    until: float = math.inf
    keeps_minimum: bool = False


NO_PROTECTION = Protection(None, -math.inf)


_FORBIDDING = (
    # kubernetes/autoscaler, cluster-autoscaler/FAQ.md
    (WhyNot.SAFE_TO_EVICT, _SAFE_TO_EVICT, ("annotations",), _TRUE),
    # KAI, docs/developer/designs/priority-preemptibility-separation and semi-preemptible
    (WhyNot.PREEMPTIBILITY, _PREEMPTIBILITY, ("labels",), ("preemptible", _SEMI_PREEMPTIBLE)),
    # Volcano, ``GetPodPreemptable`` in pkg/scheduler/api/pod_info.go
    (WhyNot.PREEMPTABLE, _PREEMPTABLE, ("annotations", "labels"), _TRUE),
    # koordinator-sh/koordinator, apis/extension/preemption.go and elastic_quota.go: labels; its pages also
    # mention annotations.
    (WhyNot.QUOTA_PREEMPTIBLE, _QUOTA_PREEMPTIBLE, ("labels", "annotations"), _TRUE),
    (WhyNot.DISABLE_PREEMPTIBLE, _DISABLE_PREEMPTIBLE, ("labels", "annotations"), _FALSE),
)
"""Labels and annotations of other systems that forbid to evict a pod: the reason, the name, the places (the
first counts), and the texts with which they do not forbid it."""


def protection_of(pod: Pod) -> Protection:
    """The longest protection by labels and annotations of other systems on the pod.

    Unreadable labels and annotations protect. A pod that has not started (``started`` is 0) has lost nothing,
    so it is protected only if the protection has no end or would begin with the start.
    """
    if pod.problem or not PROTECTING_WORDS.isdisjoint(pod.unreadable):
        return Protection(WhyNot.UNREADABLE)
    if PROTECTING_WORDS.isdisjoint(pod.labels) and PROTECTING_WORDS.isdisjoint(pod.annotations):
        return NO_PROTECTION
    found = list[Protection]()
    for reason, key, places, allowing in _FORBIDDING:
        texts = [entries[key] for entries in (getattr(pod, place) for place in places) if key in entries]
        if texts and texts[0] not in allowing:
            found.append(Protection(reason))
    longest = max((*found, _do_not_disrupt(pod), _cooldown(pod)), key=lambda end: end.until)
    return longest._replace(keeps_minimum=pod.labels.get(_PREEMPTIBILITY) == _SEMI_PREEMPTIBLE)


def declares_movable(pod: Pod) -> bool:
    """Whether the pod declares that it may be evicted although it has local data or volumes."""
    return pod.annotations.get(_SAFE_TO_EVICT) in _TRUE


def declares_consolidation(pod: Pod) -> bool:
    """Whether the pod may be evicted to run elsewhere (KAI, docs/safe-to-consolidate); others may still
    preempt it."""
    return pod.annotations.get(_SAFE_TO_CONSOLIDATE, "true") in _TRUE


def _do_not_disrupt(pod: Pod) -> Protection:
    """karpenter.sh/docs/concepts/disruption: an annotation, "true" or a time after the pod's start."""
    text = pod.annotations.get(_DO_NOT_DISRUPT, "false")
    if text in _FALSE:
        return NO_PROTECTION
    try:
        until = pod.started + seconds(text) if pod.started else math.inf
    except DurationError:
        until = math.inf
    return Protection(WhyNot.DO_NOT_DISRUPT, until)


def _cooldown(pod: Pod) -> Protection:
    """Volcano, pkg/scheduler/plugins/cdp: the label, then the annotation; only running pods are protected.

    In Volcano the time begins when the pod is scheduled, here when kubelet accepts it, moments later.
    """
    text = pod.labels.get(_COOLDOWN, pod.annotations.get(_COOLDOWN))
    if text is None:
        return NO_PROTECTION
    try:
        duration = seconds(text)
    except DurationError:
        return Protection(WhyNot.COOLDOWN)
    running = pod.started and pod.phase == "Running"
    return Protection(WhyNot.COOLDOWN, pod.started + duration) if running else NO_PROTECTION


def managed_by_kueue(pod: Pod) -> bool:
    """Whether Kueue has admitted the pod or its job.

    Sources: kubernetes-sigs/kueue pkg/constants (``ManagedByKueueLabelKey`` on plain pods, ``PodSetLabel`` in
    the pods of started jobs), apis/kueue/v1beta2/topology_types.go (``WorkloadAnnotation``).
    """
    labels = pod.labels
    return (
        labels.get("kueue.x-k8s.io/managed") == "true"
        or KUEUE_POD_SET in labels
        or KUEUE_WORKLOAD in pod.annotations
    )
