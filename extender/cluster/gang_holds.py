"""Room that is held for the waiting members of a gang once its first member is bound.

kube-scheduler places pod after pod, so other pods could take what the rest of a gang needs. From the moment
at which the watch shows the first member bound, other pods do not see the room of the members that are
missing: for a limited time, until the minimum is bound. Only members that exist and fit together get room.
Pods of higher priority see it.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from extender.cluster.allocations import Placement
from extender.cluster.gang_simulation import WaitingMembers, waiting_members
from extender.k8s.objects import Pod
from extender.queues.gangs import Gang, GangTable
from extender.untrusted.limits import GANG_HELD, GANG_READ
from packing.model.request import Request

log = logging.getLogger(__name__)

PlaceTogether: TypeAlias = Callable[
    [Sequence[WaitingMembers], Sequence[Placement]], Sequence[Placement] | None
]
"""Places for these members of a gang that has these places already; None if they do not fit together."""

_PAUSE = 1.0
"""Seconds between two searches for room for one gang: its author can change it as often as he likes."""


@dataclass(slots=True)
class Hold:
    """Room for one gang. ``since`` and ``searched`` in seconds of the clock. ``bound``: the members that were
    bound when the places were chosen, or released last."""

    since: float
    places: list[Placement] = field(default_factory=list)
    searched: float = -math.inf
    given_up: bool = False
    bound: frozenset[str] = frozenset()


@dataclass(slots=True)
class GangHolds:
    """The gangs that have some members bound, but not all that must run together.

    ``seconds``: how long room is held, 0 for not at all. All gangs together have at most
    ``limits.GANG_HELD`` places.
    """

    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _holds: dict[str, Hold] = field(default_factory=dict)

    def update(self, gangs: GangTable, is_bound: Callable[[str], bool], place: PlaceTogether) -> None:
        """Begin, renew and end the holds of the gangs that have changed. ``is_bound``: by UID."""
        for key in gangs.take_changed():
            gang = gangs.gang(key)
            if gang is None or not self.seconds or not 0 < gangs.running(key) < gang.to_place:
                self._holds.pop(key, None)
                continue
            hold = self._holds.setdefault(key, Hold(self.clock()))
            members = gangs.members(key)
            if not self._is_over(hold) and len(members) <= GANG_READ:
                self._renew(hold, gang, members, is_bound, place)

    def expire(self) -> None:
        """Give up the holds whose time is over."""
        for key, hold in self._holds.items():
            if not hold.given_up and self._is_over(hold):
                hold.given_up, hold.places = True, []
                log.warning("%s: not complete after %g s, its room is no longer held", key, self.seconds)

    def places(self, priority: int, own: str) -> list[Placement]:
        """The room that a pod of this priority does not see; ``own``: the key of its gang, "" for none."""
        return [
            place
            for key, hold in self._holds.items()
            if key != own and not self._is_over(hold)
            for place in hold.places
            if place.priority >= priority
        ]

    def describe(self, key: str) -> str:
        """What is held for a gang, in words; "" if no member is bound, or all that must be."""
        hold = self._holds.get(key)
        if hold is None:
            return ""
        if self._is_over(hold):
            return f"no room is held for the others any more: they were not bound within {self.seconds:g} s"
        if not hold.places:
            return "no room is held for the others: they are not there, too many, or do not fit together"
        left = math.ceil(hold.since + self.seconds - self.clock())
        return f"room for {len(hold.places)} more is held for {left} s"

    @property
    def is_empty(self) -> bool:
        """Whether no room is held: gangs that got none, or have given up, cost nobody anything."""
        return not any(hold.places for hold in self._holds.values())

    def _is_over(self, hold: Hold) -> bool:
        return hold.given_up or self.clock() - hold.since >= self.seconds

    def _renew(
        self,
        hold: Hold,
        gang: Gang,
        members: Sequence[Pod],
        is_bound: Callable[[str], bool],
        place: PlaceTogether,
    ) -> None:
        """Release places that no waiting member needs any more, and search for those that are missing."""
        bound = {pod.key: pod.node_name for pod in members if is_bound(pod.uid)}
        waiting = [pod for pod in members if pod.key not in bound and not pod.deleting]
        unpromised = [pod for pod in waiting if not pod.nominated_node]  # the others have room already
        missing = gang.to_place - len(bound) - (len(waiting) - len(unpromised))
        wanted = waiting_members(unpromised, max(missing, 0))
        counts: Counter[Request] = Counter()
        for one in wanted:
            counts[one.request] += one.count
        hold.places = _kept(hold.places, counts, [bound[key] for key in bound.keys() - hold.bound])
        hold.bound = frozenset(bound)
        lacking = _without(wanted, Counter(place.request for place in hold.places))
        if not lacking or self.clock() - hold.searched < _PAUSE:
            return
        hold.searched = self.clock()
        total = sum(len(one.places) for one in self._holds.values()) + sum(one.count for one in lacking)
        found = place(lacking, hold.places) if total <= GANG_HELD else None
        hold.places = [] if found is None else [*hold.places, *found]


def _kept(places: Sequence[Placement], counts: Counter[Request], nodes: list[str]) -> list[Placement]:
    """At most so many places for each request. Those on ``nodes``, where members have just been bound, are
    released first."""
    taken = Counter(nodes)
    released_first = []
    for place in places:
        released_first.append(taken[place.node] > 0)
        taken[place.node] -= 1
    left, kept = Counter(counts), []
    for _, place in sorted(zip(released_first, places, strict=True), key=lambda one: one[0]):
        if left[place.request] > 0:
            left[place.request] -= 1
            kept.append(place)
    return kept


def _without(wanted: Sequence[WaitingMembers], having: Counter[Request]) -> list[WaitingMembers]:
    """The wanted members that have no place yet."""
    lacking = []
    for one in wanted:
        count = max(one.count - having[one.request], 0)
        having[one.request] -= one.count - count
        if count:
            lacking.append(replace(one, count=count))
    return lacking
