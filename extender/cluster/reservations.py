"""Places that are reserved on nodes for pods that the watch does not show there yet.

A table in docs/architecture.md lists what makes them, what ends them, and which pods may take them.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from extender.cluster.allocations import Placement
from extender.dialects.pod_request import bound_request
from extender.k8s.objects import Pod
from extender.queues.disruptions import job_of
from extender.queues.gangs import GangStarts
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import KEPT_PODS

FAILED = "SchedulerError"
"""Reason of the PodScheduled condition after a scheduling attempt that ended with an error."""
RETRIED_WITHIN = 12.0
"""Seconds within which kube-scheduler retries such a pod: ``podMaxBackoffSeconds`` is 10 by default."""
_BEFORE_BREAK = 30.0
"""Seconds before an interruption in which answers may have led to lost bindings: requests may queue."""
_UNNOTICED = 1.0
"""Seconds for which an interruption may go unnoticed."""
_IN_FLIGHT = 10.0
"""Seconds from an answer to the end of its binding, if nothing is lost."""
_AFTER_BREAK = 60.0
"""Seconds after an interruption in which kube-scheduler may still be waiting for its watch: client-go retries
every 30 s."""
_ANSWERS_KEPT = 4096
_CYCLE = 5.0
"""Seconds from an answer to the end of the cycle in which kube-scheduler evaluates a gang's members."""

_log = logging.getLogger(__name__)


class Reserved(IntEnum):
    """Reasons a pending pod has a place, strongest first."""

    SUPPOSED = 1
    # Up to 1.37, kube-scheduler clears a nomination whenever it retries the pod before the victims are gone,
    # because it finds no victims itself (``Evaluator.Preempt`` in pkg/scheduler/framework/preemption,
    # v1.36.3).
    EVICTOR = 2
    NOMINATING = 3
    STATUS = 4
    FAILED = 5


class _Place(NamedTuple):
    node: str
    expires: float = math.inf


@dataclass(slots=True)
class GangRoom:
    """Room for the missing members of a gang in this namespace (``GangHolds``), held for ``seconds``.

    ``expires`` and ``searched``: in seconds of the clock; it does not expire before there is any room.
    ``lacks``: another search is needed. ``is_over``: the time has passed, so nothing is held until the gang
    starts again. ``bound``: the members that were bound when the places were last chosen or released.
    """

    seconds: float
    namespace: str
    expires: float = math.inf
    places: list[Placement] = field(default_factory=list)
    searched: float = -math.inf
    lacks: bool = False
    is_over: bool = False
    bound: frozenset[str] = frozenset()


class MovedRoom(NamedTuple):
    """Room for the replacement of a pod that is moved here: for pods of this job (``job_of``)."""

    job: str
    place: Placement


@dataclass(slots=True)
class GangCycle:
    """Answers about the pods of a cycle, by UID, since kube-scheduler began the cycle. ``expires`` in seconds
    of the clock."""

    expires: float
    places: dict[str, Placement] = field(default_factory=dict)


class Reservations:
    """The table of reserved places. ``by_uid`` finds a pod that the watch shows. ``clock``: monotonic
    seconds.

    ``changes`` counts changes that may hide or reveal a place. ``interruption``: when the last interruption
    of the pod watch began and ended (None: it has not), None if there was none. Only then can pods be bound
    unobserved.
    """

    def __init__(self, by_uid: Callable[[str], Pod | None]) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.interruption: Callable[[], tuple[float, float | None] | None] = lambda: None
        self.changes = 0
        self.assumed = AssumedPods()
        self.gangs: dict[str, GangRoom] = {}
        self.starts = GangStarts(lambda: self.clock())
        self._moved: dict[str, MovedRoom] = {}
        self._cycles: dict[str, GangCycle] = {}
        self._by_uid = by_uid
        self._places: defaultdict[str, dict[Reserved, _Place]] = defaultdict(dict)
        self._answers: BoundedMap[str, tuple[Pod, str, float]] = BoundedMap(_ANSWERS_KEPT, KEPT_PODS)
        self._next_expiry = math.inf

    def reserve(self, uid: str, reason: Reserved, node: str) -> None:
        """Reserve a place for a known, pending pod; do nothing for any other pod."""
        if (known := self._by_uid(uid)) is not None and not known.node_name:
            self._places[uid][reason] = _Place(node)
            self.changes += 1

    def release(self, uid: str, reason: Reserved) -> None:
        if self._places.get(uid, {}).pop(reason, None) is not None:
            self.changes += 1
            if not self._places[uid]:
                del self._places[uid]

    def bound(self, before: Pod | None, pod: Pod) -> None:
        """Process a bound pod that the watch showed as ``before`` until now. It takes room that was reserved
        for its job on this node."""
        self.forget(pod.uid)
        if before is None or before.uid != pod.uid or not before.node_name:
            rooms = ((uid, room) for uid, room in self._moved.items() if room.place.node == pod.node_name)
            if uid := next((uid for uid, room in rooms if room.job == job_of(pod)), ""):
                self.release_moved(uid)

    def forget(self, uid: str) -> None:
        self.changes += self._places.pop(uid, None) is not None
        for key in [key for key, cycle in self._cycles.items() if uid in cycle.places]:
            del self._cycles[key].places[uid]
            self.changes += 1
            if not self._cycles[key].places:
                del self._cycles[key]

    def update(self, before: Pod | None, pod: Pod) -> None:
        """Process a pending pod that the watch showed as ``before`` until now.

        When an attempt fails, as all do while an extender does not answer, kube-scheduler clears the pod's
        nomination (``handleSchedulingFailure`` in its schedule_one.go), even if victims were already evicted
        for it. Another pod of the same priority could take that room before the pod is retried, so the
        nomination counts for a while longer. A Stowage process that has just started has not observed it.
        """
        old = self._places.get(pod.uid, {})
        places = {reason: place for reason, place in old.items() if reason <= Reserved.EVICTOR}
        cleared = old.get(Reserved.FAILED)
        if pod.nominated_node:
            places[Reserved.STATUS] = _Place(pod.nominated_node)
        elif pod.unscheduled == FAILED and not pod.deleting:
            if before is not None and before.uid == pod.uid and before.nominated_node:
                cleared = _Place(before.nominated_node, self.expires_in(RETRIED_WITHIN))
            if cleared is not None:
                places[Reserved.FAILED] = cleared
        if places:
            self._places[pod.uid] = places
            self.changes += 1
        else:
            self.forget(pod.uid)

    def reserve_moved(self, uid: str, room: MovedRoom) -> None:
        """Reserve room for the replacement of the pod with this UID until ``release_moved``."""
        self._moved[uid] = room
        self.changes += 1

    def release_moved(self, uid: str) -> None:
        self.changes += self._moved.pop(uid, None) is not None

    def release_all_moved(self) -> None:
        """Release all room for replacements: this replica no longer moves pods."""
        self.changes += len(self._moved)
        self._moved.clear()

    def node_of(self, uid: str) -> str:
        """The node on which a pending pod has a place, "" if it has none."""
        self.expire()
        return self._strongest(uid)

    def has(self, uid: str, reason: Reserved) -> bool:
        return reason in self._places.get(uid, ())

    def by_reason(self, reason: Reserved) -> dict[str, str]:
        """By UID, the nodes of the pods that have a place for this reason."""
        return {uid: places[reason].node for uid, places in self._places.items() if reason in places}

    @contextmanager
    def supposing(self) -> Iterator[Callable[[str, str], None]]:
        """Yield a function that reserves a hypothetical place for a pod, by UID, on a node, until the end of
        the block."""
        try:
            yield lambda uid, node: self.reserve(uid, Reserved.SUPPOSED, node)
        finally:
            for uid in self.by_reason(Reserved.SUPPOSED):
                self.release(uid, Reserved.SUPPOSED)

    @property
    def version(self) -> object:
        """Changes when a place may have become hidden or visible."""
        self.expire()
        return self.changes, {uid: node for uid, (_, node) in self.possibly_bound().items()}

    @property
    def is_empty(self) -> bool:
        """Whether no place is hidden from any pod, apart from those of assumed pods."""
        self.expire()
        has_room = any(room.places for room in self.gangs.values())
        return not (self._places or self._moved or self._cycles or has_room or self.possibly_bound())

    def hidden_from(
        self, pod: Pod, gang: str, cycle: str = "", ignored: Collection[str] = ()
    ) -> list[Placement]:
        """Places of other pods that the pod must not take. ``gang`` and ``cycle``: the keys of its own, "" if
        there is none. ``ignored``: keys of pods whose places do not count."""
        self.expire()
        unsure = self.possibly_bound()
        places = []
        answered = self._cycles[cycle].places if cycle in self._cycles else {}
        for uid in self._places:
            other = self._by_uid(uid)
            if other is None or other.priority < pod.priority or other.key == pod.key:
                continue
            # kube-scheduler nominates members that it has placed while it binds others.
            if uid in unsure or uid in answered or other.key in ignored or self.assumed.of_pod(uid):
                continue
            if not (bound := bound_request(other)).problem:
                places.append(Placement(self._strongest(uid), bound.request, priority=other.priority))
        for other, node in unsure.values():
            if other.uid != pod.uid:
                places.append(Placement(node, bound_request(other).request))
        others = answered.keys() - unsure.keys() - {pod.uid}
        places += [answered[uid] for uid in others if not self.assumed.of_pod(uid)]
        rooms = (room for room in self._moved.values() if room.job != job_of(pod))
        places += [room.place for room in rooms if room.place.priority >= pod.priority]
        return places + self.gang_places(pod.priority, gang)

    def gang_places(self, priority: int, own: str) -> list[Placement]:
        """Room of gangs, except the ``own`` one, that is hidden from a pod of this priority."""
        self.expire()
        rooms = (room for key, room in self.gangs.items() if key != own)
        return [place for room in rooms for place in room.places if place.priority >= priority]

    def asked_in_cycle(self, uid: str, cycle: str) -> None:
        """Process a call of kube-scheduler about a member. If the member already has an answer, a new cycle
        has begun."""
        if cycle in self._cycles and uid in self._cycles[cycle].places:
            del self._cycles[cycle]
            self.changes += 1

    def in_cycle(self, cycle: str) -> dict[str, str]:
        """By UID, the nodes that were answered in this cycle; empty outside of a cycle."""
        self.expire()
        answered = self._cycles.get(cycle)
        return {uid: place.node for uid, place in answered.places.items()} if answered else {}

    def expires_in(self, seconds: float) -> float:
        """Return the clock's time in this many seconds, and let ``expire`` look for expired entries then."""
        expires = self.clock() + seconds
        self._next_expiry = min(self._next_expiry, expires)
        return expires

    def expire(self) -> None:
        """Remove expired entries. Every reader of the table calls this first."""
        if (now := self.clock()) < self._next_expiry:
            return
        for uid, places in list(self._places.items()):
            for reason in [reason for reason, place in places.items() if now >= place.expires]:
                self.release(uid, reason)
        for key, room in self.gangs.items():
            if not room.is_over and now >= room.expires:
                room.is_over, room.lacks, room.places = True, False, []
                self.changes += 1
                text = "%s: not complete after %g s, its room is no longer held"
                _log.warning(text, key, room.seconds)
        for key in [key for key, cycle in self._cycles.items() if now >= cycle.expires]:
            del self._cycles[key]
            self.changes += 1
        times = [cycle.expires for cycle in self._cycles.values()]
        times += [place.expires for places in self._places.values() for place in places.values()]
        times += [room.expires for room in self.gangs.values() if not room.is_over]
        self._next_expiry = min(times, default=math.inf)

    def answered(self, pod: Pod, node: str, cycle: str = "") -> None:
        """Record that kube-scheduler will most likely bind the pod to this node. ``cycle``: the key of the
        cycle in which it evaluates the pod, "" if there is none. Only the other pods of the cycle see this
        place as taken."""
        size = min(pod.size + len(node), KEPT_PODS // 16)
        self._answers.put(pod.uid, (pod, node, self.clock()), size)
        if cycle and not (bound := bound_request(pod)).problem:
            members = self._cycles.setdefault(cycle, GangCycle(0.0))
            members.places[pod.uid] = Placement(node, bound.request, priority=pod.priority)
            members.expires = self.expires_in(_CYCLE)
            self.changes += 1

    def lately_answered(self, uid: str) -> str:
        """The node to which kube-scheduler may be binding a pod, by an answer of the last minute, or ""."""
        _, node, at = self._answers.get(uid) or (None, "", -math.inf)
        return node if self.clock() - at < _AFTER_BREAK else ""

    def possibly_bound(self) -> dict[str, tuple[Pod, str]]:
        """By UID, pods that kube-scheduler may have bound while the API server was unreachable, and their
        nodes.

        A binding whose answer is lost may have happened. kube-scheduler treats it as failed and forgets the
        pod until its own watch recovers; pods that it binds in the meantime are not in our watch yet. So
        after an outage each cache lacks pods of the other, and both sides may over-allocate. Therefore the
        answered nodes count as allocated for a while, until the watch shows the outcome for the pods.
        """
        if (interruption := self.interruption()) is None:
            return {}
        now, (began, ended) = self.clock(), interruption
        if ended is not None and now - ended > _AFTER_BREAK:
            return {}
        found = {}
        for pod, node, at in self._answers.values():
            lost = ended is None and began - _BEFORE_BREAK <= at <= began + _UNNOTICED
            if lost or at >= now - _IN_FLIGHT:
                known = self._by_uid(pod.uid)
                is_gone = known is None and ended is not None
                if not (is_gone or (known and known.node_name) or self.assumed.of_pod(pod.uid)):
                    found[pod.uid] = pod, node
        return found

    @contextmanager
    def without_possibly_bound(self) -> Iterator[None]:
        """Inside the block, no pod counts as possibly bound."""
        interruption, self.interruption = self.interruption, lambda: None
        try:
            yield
        finally:
            self.interruption = interruption

    def problems(self) -> dict[str, str]:
        """By key, pods with a place and an unreadable request: they count nowhere."""
        found = {}
        for uid in self._places:
            pod = self._by_uid(uid)
            if pod is not None and not self.assumed.of_pod(uid) and (problem := bound_request(pod).problem):
                found[pod.key] = f"request cannot be read: {problem}"
        return found

    def _strongest(self, uid: str) -> str:
        places = self._places.get(uid)
        return places[min(places)].node if places else ""


TIME_TO_LIVE = 60.0
"""Seconds after which an assumed pod is looked up. kube-apiserver aborts a request after the same time
(``--request-timeout``): a binding that has not happened by then never will."""
SHOWN_WITHIN = 5.0
"""The same for a pod with a confirmed binding: the watch shows almost all within milliseconds."""


@dataclass(slots=True)
class AssumedPod:
    """One pod on one node. ``pod`` is the pod as bound: with its node, and with ``assignment``, the
    annotations that name its GPUs.

    ``since``: when the binding was last requested or answered, in seconds of the caller's clock.
    ``in_flight``: number of bindings without an answer yet. ``outcome_unknown``: a binding was never
    answered, and may have happened. ``confirmed``: the binding has happened.
    """

    pod: Pod
    since: float
    assignment: Mapping[str, str] = field(default_factory=dict)
    in_flight: int = 0
    outcome_unknown: bool = False
    confirmed: bool = False

    @property
    def key(self) -> str:
        """Its key in ``Allocations``, which differs from the key of the pod that the watch shows."""
        return f"{self.pod.key} {self.pod.uid}@{self.pod.node_name}"


class AssumedPods:
    """Bindings that were requested of the API server and that the watch does not show yet. A pod has several
    while it is unknown which of them happened.

    The API server makes a binding or rejects it, or its answer is lost; the watch shows a binding after the
    answer. An assumed pod is forgotten when

    - the watch shows the pod bound, deleted or ended;
    - the binding has happened, and a list that began later does not contain the pod;
    - the API server rejects the binding, or makes another binding of the same pod;
    - it is overdue, and a lookup at the API server shows the state of the pod.
    """

    def __init__(self) -> None:
        self._by_uid: defaultdict[str, dict[str, AssumedPod]] = defaultdict(dict)
        self._by_key: dict[str, AssumedPod] = {}

    def __iter__(self) -> Iterator[AssumedPod]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    def of_pod(self, uid: str) -> list[AssumedPod]:
        return list(self._by_uid[uid].values()) if uid in self._by_uid else []

    def on_node(self, uid: str, node: str) -> AssumedPod | None:
        return self._by_uid[uid].get(node) if uid in self._by_uid else None

    def by_key(self, key: str) -> AssumedPod | None:
        return self._by_key.get(key)

    def insert(self, assumed: AssumedPod) -> None:
        """Add an assumed binding, or replace the one of this pod to this node."""
        self._by_uid[assumed.pod.uid][assumed.pod.node_name] = assumed
        self._by_key[assumed.key] = assumed

    def delete(self, assumed: AssumedPod) -> None:
        del self._by_key[assumed.key]
        del self._by_uid[assumed.pod.uid][assumed.pod.node_name]
        if not self._by_uid[assumed.pod.uid]:
            del self._by_uid[assumed.pod.uid]

    def overdue(self, now: float) -> list[AssumedPod]:
        """Assumed pods without bindings in flight that the watch has not shown for too long."""
        return [
            assumed
            for assumed in self
            if not assumed.in_flight
            and now - assumed.since >= (SHOWN_WITHIN if assumed.confirmed else TIME_TO_LIVE)
        ]

    def oldest(self, now: float) -> float:
        """Seconds since the oldest was last requested or answered; 0 if there are none."""
        return max((now - assumed.since for assumed in self), default=0.0)


class RetryOrder:
    """The order after an interruption: pods of higher priority are placed first. An interruption ends with
    the first request, and with each request that could only be answered with an error.

    While its extender fails, every attempt of kube-scheduler fails. It then clears the nomination of the pod
    and puts it into its backoff queue, each pod for a different time. So a pod of low priority may be retried
    first and take the room that victims have just freed. Until the pods of higher priority have been retried,
    such a pod is rejected with an error, which puts it back into the backoff queue.
    """

    def __init__(self) -> None:
        self._ends = math.inf
        self._tried: set[str] = set()

    def interrupted(self, now: float) -> None:
        """Enforce the order from ``now`` (monotonic seconds) for ``RETRIED_WITHIN`` seconds."""
        self._ends = now + RETRIED_WITHIN
        self._tried.clear()

    def must_wait(self, failed: Iterable[Pod], pod: Pod, now: float) -> bool:
        """Whether a pod of higher priority whose last attempt ``failed`` has not been retried since.
        Otherwise this pod counts as retried."""
        if self._ends == math.inf:
            self.interrupted(now)
        if now >= self._ends:
            self._tried.clear()
            return False
        if any(self._goes_first(other, pod) for other in failed):
            return True
        self._tried.add(pod.uid)
        return False

    def _goes_first(self, other: Pod, pod: Pod) -> bool:
        return (
            other.priority > pod.priority
            and other.scheduler_name == pod.scheduler_name
            and not other.deleting
            and other.uid not in self._tried
        )
