"""Gangs: pods that are useless without each other, and the order in which they start."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.k8s.job_kinds import JOB_KINDS, NATIVE
from extender.k8s.objects import (
    Deleted,
    Event,
    Listed,
    Pod,
    PodGroup,
    PodGroupKind,
    RequiredDomain,
    Upserted,
    is_pod_group,
)
from extender.queues.gang_words import KUEUE_WORKLOAD, NO_WORDS, GangWords, words_of
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import GANG_LEVELS, GANG_MEMBERS, GANG_STARTS

_FIELD = {"KueueWorkload": "maximumExecutionTimeSeconds"}
"""The field with the maximum run time; of other jobs ``activeDeadlineSeconds``."""
_COMES_WITHIN = 10.0
"""Seconds within which a job must be observed after its first pod: its watch may lag behind."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang: its key (unique in the cluster), its namespace and the number of members that must run.

    ``indispensable``: keys of members without which the others are useless: if one of them is evicted, all
    are. ``words``: the pods' declaration of the gang. ``together``: number of members to place all at once or
    not at all, 0 if undeclared. ``succeeded``: number of members that have succeeded, which count towards
    both numbers. ``templates``: members that its job creates, with the number of each, () if unknown.
    ``uncounted``: the job that declares the number of members and is not observed: "PyTorchJob train".
    ``group``: the object that declares it, if it is observed. ``in_domains``: some members must share
    topology domains.
    """

    key: str
    minimum: int
    namespace: str = ""
    indispensable: frozenset[str] = frozenset()
    words: GangWords = NO_WORDS
    together: int = 0
    succeeded: int = 0
    templates: tuple[tuple[Pod, int], ...] = ()
    uncounted: str = ""
    group: PodGroup | None = None
    in_domains: bool = False

    @property
    def to_place(self) -> int:
        """Number of members, of those that must be placed together, that have not succeeded."""
        return max(self.together - self.succeeded, 0)

    @property
    def to_run(self) -> int:
        """Number of members that must run, without those that have succeeded."""
        return max(self.minimum - self.succeeded, 0)


class StillToStart(NamedTuple):
    """Members of a gang that are not being deleted: those with ``room``, those without room that have no
    scheduling gates (``free``) or have some (``gated``), and the number of further members that need room
    (``missing``), negative if too many have it."""

    room: Sequence[Pod]
    free: Sequence[Pod]
    gated: Sequence[Pod]
    missing: int


class _Member(NamedTuple):
    """A member of a gang, the gang's key, and the pod's declaration."""

    pod: Pod
    gang: str
    words: GangWords


class _Ended(NamedTuple):
    """The keys with which a member that has succeeded is counted: its gang, and its stage in it."""

    gang: str
    stage: str


class _Members:
    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.running = 0
        self.stages: Counter[str] = Counter()  # roles that may run in different stages
        self.indispensable: set[str] = set()
        self.in_domains = 0  # members that require domains by themselves
        self.declared: Counter[int] = Counter()  # minimums that the pods declare
        self.first_start: float | None = None  # of the members that run, None if it must be found again
        self.gang: tuple[int, Gang | None] = -1, None  # with the version of the PodGroups that it is based on

    def change(self, pod: Pod, words: GangWords, by: int) -> None:
        """Add a member (1), or remove it (-1)."""
        if by > 0:
            self.pods[pod.key] = pod
        else:
            del self.pods[pod.key]
        self.running += by * is_running(pod)
        self.in_domains += by * bool(words.domains)
        if words.minimum is not None:
            self.declared[words.minimum] += by
            self.declared += Counter()  # without zeros
        if words.stage:
            self.stages[words.stage] += by
        if words.indispensable:
            self.indispensable ^= {pod.key}
        self.gang, self.first_start = (-1, None), None


def is_running(pod: Pod) -> bool:
    """Whether the pod is bound, and not ending."""
    return bool(pod.node_name) and not (pod.deleting or pod.disruption or pod.terminated)


class GangTable:
    """The gangs of all known pods. The cluster's state keeps it up to date.

    The members of a gang have one namespace and one priority. A gang with more than ``limits.GANG_MEMBERS``
    members does not count as a gang, so that pods cannot be protected by their number.

    Members that have succeeded count towards the minimum until they are deleted, as in Volcano
    (volcano-sh/volcano, ``ReadyTaskNum`` in ``pkg/scheduler/api/job_info.go``) and in scheduler-plugins,
    which counts all existing members (kubernetes-sigs/scheduler-plugins, ``PreFilter`` in
    ``pkg/coscheduling/core/core.go``). In KAI, a group with a succeeded member is never stale
    (NVIDIA/KAI-Scheduler, ``IsStale`` in ``pkg/scheduler/api/podgroup_info/job_info.go``). Failed members do
    not count: they are replaced.
    """

    def __init__(self) -> None:
        self._gangs: dict[str, _Members] = {}
        self._pods: dict[str, _Member | None] = {}  # None for a single pod
        self._ended: dict[str, _Ended] = {}  # by the key of a succeeded member
        self._succeeded: Counter[str] = Counter()  # members by gang, and by stage; at most GANG_MEMBERS
        self._pod_groups: dict[tuple[PodGroupKind, str], PodGroup] = {}
        self.changes = 0  # of members and PodGroups
        self._version = 0  # of the PodGroups
        self._changed: set[str] = set()
        self._served: set[str] = set()  # kinds of PodGroups that were listed

    def gang_of(self, pod: Pod) -> Gang | None:
        """The gang of a pod, None for a single pod. For a known pod, the version of the watch counts."""
        key = pod.key
        if key in self._pods:
            member = self._pods[key]
            return self._gang(self._gangs[member.gang]) if member else None
        words = words_of(pod)
        if words is None:
            return None
        if (members := self._gangs.get(_key(pod, words))) is None:  # the watch does not show it
            members = _Members()
            members.change(pod, words, 1)
        return self._gang(members)

    def domains_of(self, pod: Pod) -> tuple[RequiredDomain, ...]:
        """The topology domains that the pod must share with those other members of its gang that require the
        same, the widest first. Its PodGroup counts, else its own annotations."""
        if self.is_single(pod) or (gang := self.gang_of(pod)) is None or not gang.in_domains:
            return ()
        member = self._pods.get(pod.key)
        words = member.words if member else words_of(pod) or NO_WORDS
        group = gang.group
        declared = group.domains + group.domains_of.get(words.part, ()) if group else ()
        domains = declared or words.domains
        return domains if len(domains) <= GANG_LEVELS else (RequiredDomain(""),)

    def awaited_job(self, pod: Pod, now: float) -> str:
        """The job that declares the number of pods of this pod's gang, such as "PyTorchJob train", if it
        should be observed soon: its kind is served, and the pod is new at ``now`` (Unix seconds); otherwise
        ""."""
        gang = self.gang_of(pod)
        if gang is None or self._served.isdisjoint(gang.words.pod_groups):
            return ""
        return gang.uncounted if 0 <= now - pod.created < _COMES_WITHIN else ""

    def longest_run(self, pod: Pod) -> tuple[float, str]:
        """Maximum run time of the pod in seconds, by its job or its Kueue Workload, and the field."""
        words = words_of(pod) or NO_WORDS
        named = [(kind, words.object or words.name) for kind in words.pod_groups]
        named.append(("KueueWorkload", pod.annotations.get(KUEUE_WORKLOAD, "")))
        groups = (self._pod_groups.get((kind, f"{pod.namespace}/{name}")) for kind, name in named)
        limits = (
            (group.longest, _FIELD.get(group.kind, "activeDeadlineSeconds")) for group in groups if group
        )
        return min(limits, default=(math.inf, ""))

    def cycle_of(self, pod: Pod) -> str:
        """Key of the pods that kube-scheduler evaluates in one cycle, before it binds any of them: those of a
        native PodGroup, or those of all CompositePodGroups of the namespace, of which it evaluates one at a
        time. "" for other pods."""
        if not pod.pod_group:
            return ""
        group = self._native_group(pod)
        return f"{pod.namespace}/" if group and group.in_composite else f"{pod.namespace}/{pod.pod_group}"

    def never_tried(self, pod: Pod) -> str:
        """Why kube-scheduler does not try the members of the pod's native PodGroup, "" if it may: kubernetes,
        ``preEnqueueHierarchiesDisabled`` of ``plugins/gangscheduling`` and ``validatePodGroup`` of
        ``pkg/scheduler/schedule_one_podgroup.go`` (v1.37.2)."""
        if not pod.pod_group:
            return ""
        group = self._native_group(pod)
        if group is None:
            is_known = not self._served.isdisjoint(NATIVE)
            return "Stowage does not see its PodGroup, which kube-scheduler waits for" if is_known else ""
        if group.priority is not None and pod.priority != group.priority:
            return f"its priority is {pod.priority}, and that of its PodGroup {group.priority}"
        members = self.members(_key(pod, GangWords("PodGroup", pod.pod_group)))
        others = (member for member in members if member.scheduler_name != pod.scheduler_name)
        other = next(others, None)
        return f"{other.name} of its PodGroup has another schedulerName" if other else ""

    def never_preempts(self, pod: Pod) -> bool:
        """Whether the ``preemptionPolicy`` of the pod, or of its native PodGroup, is Never."""
        group = self._native_group(pod) if pod.pod_group else None
        return pod.never_preempts or bool(group and group.never_preempts)

    def _native_group(self, pod: Pod) -> PodGroup | None:
        name = f"{pod.namespace}/{pod.pod_group}"
        return next(filter(None, (self._pod_groups.get((kind, name)) for kind in NATIVE)), None)

    def is_single(self, pod: Pod) -> bool:
        """Whether the watch shows that the pod names no gang."""
        return pod.key in self._pods and self._pods[pod.key] is None

    def gang(self, key: str) -> Gang | None:
        """The gang with this key; None if no pod names it, or if its members count as single pods."""
        members = self._gangs.get(key)
        return self._gang(members) if members else None

    def pod_groups(self) -> list[PodGroup]:
        return list(self._pod_groups.values())

    def take_changed(self) -> set[str]:
        """Keys of the gangs whose members have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def members(self, key: str) -> Sequence[Pod]:
        """The known members of a gang that have not ended, including pending ones."""
        members = self._gangs.get(key)
        return tuple(members.pods.values()) if members else ()

    def still_to_start(
        self, gang: Gang, needed: int, has_room: Callable[[str], bool], *, but: str = ""
    ) -> StillToStart:
        """The members of a gang that must still start until ``needed`` of them have room, indispensable ones
        first. ``has_room``: whether the pod with this UID does. ``but``: key of a member that is not
        counted."""
        room, free, gated = list[Pod](), list[Pod](), list[Pod]()
        for member in sorted(self.members(gang.key), key=lambda pod: pod.key not in gang.indispensable):
            if member.key != but and not member.deleting:
                (room if has_room(member.uid) else gated if member.gates else free).append(member)
        return StillToStart(room, free, gated, needed - len(room))

    def succeeded(self) -> dict[str, int]:
        """Number of members that have succeeded, by the key of their gang, and again with their stage."""
        return dict(self._succeeded)

    def load_succeeded(self, counts: Mapping[str, int]) -> None:
        """Add the result of ``succeeded`` of another table."""
        self._succeeded.update(counts)

    def running(self, key: str) -> int:
        """Number of members that are bound and not terminating."""
        members = self._gangs.get(key)
        return members.running if members else 0

    def first_start(self, key: str) -> float:
        """Start of the first member that still runs (Unix seconds), infinite if none has started."""
        if (members := self._gangs.get(key)) is None:
            return math.inf
        if members.first_start is None:
            starts = (pod.started for pod in members.pods.values() if pod.started and is_running(pod))
            members.first_start = min(starts, default=math.inf)
        return members.first_start

    def is_replacement(self, pod: Pod) -> bool:
        """Whether the pending pod's gang has lost a member: some of its members run, fewer than must, and the
        pod was created after the first of them started."""
        gang = None if pod.node_name else self.gang_of(pod)
        if gang is None or not 0 < self.running(gang.key) < gang.to_run:
            return False
        return self.first_start(gang.key) < pod.created

    @contextmanager
    def supposing(self, pods: Iterable[Pod]) -> Iterator[None]:
        """In the block, these pods replace the known ones with the same keys, or are added."""
        pods = [pod for pod in pods if pod.key not in self._ended]
        known = {pod.key: self._pods[pod.key] for pod in pods if pod.key in self._pods}
        changed = set(self._changed)
        for pod in pods:
            self._put(pod)
        try:
            yield
        finally:
            for pod in pods:
                self._remove(pod.key)
                if (member := known.get(pod.key)) is not None:
                    self._put(member.pod)
                elif pod.key in known:
                    self._pods[pod.key] = None
            self._changed = changed

    def apply(self, event: Event) -> None:
        """Apply an event of a pod or a PodGroup; others change nothing."""
        match event:
            case Upserted(Pod() as pod):
                self._put(pod)
            case Deleted("Pod", key):
                self._remove(key)
            case Listed("Pod", keys):
                for key in (self._pods.keys() | self._ended.keys()) - keys:
                    self._remove(key)
            case _:
                self._apply_to_groups(event)

    def _apply_to_groups(self, event: Event) -> None:
        match event:
            case Upserted(PodGroup() as group):
                if self._pod_groups.get((group.kind, group.key)) != group:
                    self._pod_groups_changed()
                self._pod_groups[group.kind, group.key] = group
            case Deleted(kind, key) if is_pod_group(kind):
                if self._pod_groups.pop((kind, key), None) is not None:
                    self._pod_groups_changed()
            case Listed(kind, keys, absent=absent) if is_pod_group(kind):
                (self._served.discard if absent else self._served.add)(kind)
                for gone in [(of, key) for of, key in self._pod_groups if of == kind and key not in keys]:
                    del self._pod_groups[gone]
                self._pod_groups_changed()

    def _gang_changed(self, key: str) -> None:
        self.changes += 1
        self._changed.add(key)

    def _pod_groups_changed(self) -> None:
        self.changes += 1
        self._version += 1

    def _put(self, pod: Pod) -> None:
        key = pod.key
        if (member := self._pods.get(key)) and member.pod == pod:
            return
        words = words_of(pod)
        gang = _key(pod, words) if words else ""
        ended = _Ended(gang, _in_stage(gang, words.stage)) if words and pod.phase == "Succeeded" else None
        if ended and self._ended.get(key) == ended:
            return
        self._remove(key)
        if pod.terminated:
            if ended and self._succeeded[gang] < GANG_MEMBERS:
                self._ended[key] = _Ended(*map(sys.intern, ended))
                self._count_succeeded(ended, 1)
            return
        if words is None:
            self._pods[key] = None
            return
        self._pods[key] = _Member(pod, gang, words)
        self._gangs.setdefault(gang, _Members()).change(pod, words, 1)
        self._gang_changed(gang)

    def _count_succeeded(self, ended: _Ended, change: int) -> None:
        for key in set(ended):
            self._succeeded[key] += change
            if not self._succeeded[key]:
                del self._succeeded[key]
        if members := self._gangs.get(ended.gang):
            members.gang = -1, None
        self._gang_changed(ended.gang)

    def _remove(self, key: str) -> None:
        if ended := self._ended.pop(key, None):
            self._count_succeeded(ended, -1)
        member = self._pods.pop(key, None)
        if member is None:
            return
        members = self._gangs[member.gang]
        members.change(member.pod, member.words, -1)
        self._gang_changed(member.gang)
        if not members.pods:
            del self._gangs[member.gang]

    def _gang(self, members: _Members) -> Gang | None:
        version, gang = members.gang
        if version != self._version:
            gang = self._made_of(members)
            members.gang = self._version, gang
        return gang

    def _made_of(self, members: _Members) -> Gang | None:
        pod = next(iter(members.pods.values()))
        words = words_of(pod)
        if words is None or len(members.pods) > GANG_MEMBERS:
            return None
        name = f"{pod.namespace}/{words.object or words.name}"
        groups = (self._pod_groups.get((kind, name)) for kind in words.pod_groups)
        group = next(filter(None, groups), None)
        minimum, together = max(members.declared, default=None), None
        # Members start stage by stage, and those of earlier stages have ended.
        stages = [known for role, known in group.stages.items() if members.stages[role]] if group else []
        stage = stages[-1] if stages else None
        if group is not None and (minimum is None or not words.object):  # a replica keeps its declared size
            minimum, together = group.minimum, group.together
            if stage is not None:
                minimum = stage.pods
            if words.role:
                minimum = together = group.by_role.get(words.role)
        key = _key(pod, words)
        roles = stage.roles if stage else ("",)
        created = group.templates if group and not words.role else ()
        succeeded = sum(self._succeeded.get(_in_stage(key, role), 0) for role in roles)
        everybody = len(members.pods) + succeeded
        in_domains = members.in_domains > 0 or bool(group and (group.domains or group.domains_of))
        if group is not None and minimum == 0 and not (group.whole or in_domains):
            return None  # any number of them may run, anywhere
        awaits_job = group is None and not JOB_KINDS.keys().isdisjoint(words.pod_groups)
        whole = minimum is None or (group is not None and group.whole)
        return Gang(
            key=key,
            minimum=max(minimum or 0, everybody) if whole else minimum or 0,
            namespace=pod.namespace,
            indispensable=frozenset(members.indispensable),
            words=words,
            together=(minimum or 0) if together is None else together,
            succeeded=succeeded,
            templates=tuple((t.pod, t.copies) for t in created if stage is None or t.role in stage.roles),
            uncounted=f"{words.pod_groups[0]} {words.object or words.name}" if awaits_job else "",
            group=group,
            in_domains=in_domains,
        )


def _in_stage(gang: str, role: str) -> str:
    """What counts the succeeded members of a gang that have this role."""
    return f"{gang} in {role}" if role else gang


def _key(pod: Pod, words: GangWords) -> str:
    """Pods of another priority form another gang: they must not protect pods of lower priority."""
    priority = f" of priority {pod.priority}" if pod.priority else ""
    return f"{words.kind} {pod.namespace}/{words.name}{priority}"


_NEXT_ANSWER = 2.0
"""Seconds from the answer about one member of a gang to the answer about the next."""
_RETRIED = 12.0
"""Seconds within which kube-scheduler retries refused members (``podMaxBackoffSeconds`` is 10 by default), so
others wait for a gang that long from its first answer."""
_PATIENCE, _LONGEST_WAIT = 10.0, 20.0
"""Seconds from a gang's first refusal until it goes before those that start later, and until it waits for no
gang of that namespace."""
_AGAIN = 60.0
"""Seconds from the first answer or refusal until others, or the gang itself, wait again."""


@dataclass(slots=True)
class Start:
    """A gang that starts, or waits to start, and the ``scheduler`` that asked about it. In seconds of the
    clock: ``began``, its place in the order; ``until``, others wait for it until then, longer after another
    call; ``ends``, and until then at most; ``refused``, the first refusal for a gang of each namespace."""

    gang: str
    namespace: str
    priority: int
    scheduler: str
    began: float
    ends: float
    until: float = -math.inf
    refused: dict[str, float] = field(default_factory=dict)

    def is_over(self, now: float) -> bool:
        return now >= min(self.until, self.ends)

    def refused_lately(self, now: float) -> dict[str, float]:
        """``refused`` within a minute, if kube-scheduler goes on asking."""
        return {name: at for name, at in self.refused.items() if now < min(self.until, at + _AGAIN)}


class GangStarts:
    """The gangs that start or wait. ``clock``: monotonic seconds.

    kube-scheduler binds pod after pod, and bindings are observed with a delay: two gangs that start at the
    same time might each get a part of the resources. So a gang waits for those that started before it. Anyone
    who may create pods can declare gangs, so a namespace can hold others back with a limited number of gangs
    and for a limited time, whatever their names.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._starts: BoundedMap[str, Start] = BoundedMap(1024)

    def answered(self, gang: str, pod: Pod) -> None:
        """Record that kube-scheduler will most likely bind this member of a gang that has not started."""
        start, now = self._start_of(gang, pod), self._clock()
        start.began, start.ends = min(start.began, now), min(start.ends, now + _RETRIED)
        start.until = max(start.until, now + _NEXT_ANSWER)
        self._limit(pod.namespace)

    def refused(self, gang: str, pod: Pod, first: str) -> None:
        """Record that this member waits for a gang of the namespace ``first``."""
        start, now = self._start_of(gang, pod), self._clock()
        start.refused = {first: now, **start.refused_lately(now)}
        start.until = now + _RETRIED
        self._limit(pod.namespace)

    def ended(self, gang: str) -> None:
        """Record that enough members run, or that the gang is gone."""
        self._starts.pop(gang)

    def before(self, gang: str, priority: int) -> list[Start]:
        """The gangs that start before this one: of equal priority those that began earlier, of higher
        priority all."""
        now, own = self._clock(), self._starts.get(gang)
        refused = own.refused_lately(now) if own else {}
        began = min(refused.values(), default=now) + _PATIENCE
        if own and not own.is_over(now):
            began = own.began
        return [
            other
            for other in self._starts.values()
            if other.gang != gang and other.began <= now and not other.is_over(now)
            if (-other.priority, other.began, other.gang) < (-priority, began, gang)
            if now < refused.get(other.namespace, now) + _LONGEST_WAIT
        ]

    def _start_of(self, gang: str, pod: Pod) -> Start:
        start, now = self._starts.get(gang), self._clock()
        if start is None or now >= min(start.until, start.ends - _RETRIED + _AGAIN):
            ends = start.ends if start and now < start.ends - _RETRIED + _AGAIN else math.inf
            start = Start(gang, pod.namespace, pod.priority, pod.scheduler_name, now + _PATIENCE, ends)
            self._starts.put(gang, start, len(gang))
        return start

    def _limit(self, namespace: str) -> None:
        """Forget a gang of a namespace that has too many: one that is over, or else the last that waits."""
        own = [start for start in self._starts.values() if start.namespace == namespace]
        if len(own) > GANG_STARTS:
            now = self._clock()
            self.ended(max(reversed(own), key=lambda start: (start.is_over(now), start.ends)).gang)
