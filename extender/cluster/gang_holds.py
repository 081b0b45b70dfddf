"""Room that is held for the waiting members of a gang once its first member is bound.

kube-scheduler places pod after pod, so other pods could take what the rest of a gang needs. From the moment
at which the watch shows the first member bound, other pods do not see the room of the members that are
missing: for a limited time, until the minimum is bound. Only members that exist and fit together get room.
Pods of higher priority see it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from extender.cluster.allocations import Placement
from extender.cluster.gang_simulation import WaitingMembers, waiting_members
from extender.cluster.reservations import GangRoom, Reservations
from extender.k8s.objects import Pod
from extender.queues.gangs import Gang, GangTable
from extender.untrusted.limits import GANG_HELD, GANG_READ
from packing.model.request import Request

PlaceTogether: TypeAlias = Callable[
    [Sequence[WaitingMembers], Sequence[Placement]], Sequence[Placement] | None
]
"""Places for these members of a gang that has these places already; None if they do not fit together."""

_PAUSE = 1.0
"""Seconds between two searches for room for one gang: its author can change it as often as he likes."""


class GangHolds:
    """Keeps room for the gangs that have some members bound, but not all that must run together.

    ``seconds``: how long room is held, 0 for not at all. All gangs together have at most
    ``limits.GANG_HELD`` places.
    """

    def __init__(
        self,
        reservations: Reservations,
        gangs: GangTable,
        is_bound: Callable[[str], bool],
        place: PlaceTogether,
    ) -> None:
        """``is_bound``: whether the pod of this UID is bound."""
        self.seconds = 0.0
        self._reservations, self._gangs = reservations, gangs
        self._is_bound, self._place = is_bound, place

    def update(self) -> None:
        """Begin, renew and end the room of the gangs that have changed."""
        self._reservations.expire()
        for key in self._gangs.take_changed():
            rooms, gang = self._reservations.gangs, self._gangs.gang(key)
            self._reservations.changes += 1
            if gang is None or not self.seconds or not 0 < self._gangs.running(key) < gang.to_place:
                rooms.pop(key, None)
                continue
            if (room := rooms.get(key)) is None:
                expires = self._reservations.expires_in(self.seconds)
                room = rooms[key] = GangRoom(self.seconds, expires)
            members = self._gangs.members(key)
            if not room.is_over and len(members) <= GANG_READ:
                self._renew(room, gang, members)

    def describe(self, key: str) -> str:
        """What is held for a gang, in words; "" if no member is bound, or all that must be."""
        self._reservations.expire()
        room = self._reservations.gangs.get(key)
        if room is None:
            return ""
        if room.is_over:
            return f"no room is held for the others any more: they were not bound within {self.seconds:g} s"
        if not room.places:
            return "no room is held for the others: they are not there, too many, or do not fit together"
        left = math.ceil(room.expires - self._reservations.clock())
        return f"room for {len(room.places)} more is held for {left} s"

    def _renew(self, room: GangRoom, gang: Gang, members: Sequence[Pod]) -> None:
        """Release places that no waiting member needs any more, and search for those that are missing."""
        bound = {pod.key: pod.node_name for pod in members if self._is_bound(pod.uid)}
        waiting = [pod for pod in members if pod.key not in bound and not pod.deleting]
        unpromised = [pod for pod in waiting if not pod.nominated_node]  # the others have room already
        missing = gang.to_place - len(bound) - (len(waiting) - len(unpromised))
        wanted = waiting_members(unpromised, max(missing, 0))
        counts: Counter[Request] = Counter()
        for one in wanted:
            counts[one.request] += one.count
        room.places = _kept(room.places, counts, [bound[key] for key in bound.keys() - room.bound])
        room.bound = frozenset(bound)
        lacking = _without(wanted, Counter(place.request for place in room.places))
        now = self._reservations.clock()
        if not lacking or now - room.searched < _PAUSE:
            return
        room.searched = now
        held = sum(len(one.places) for one in self._reservations.gangs.values())
        total = held + sum(one.count for one in lacking)
        found = self._place(lacking, room.places) if total <= GANG_HELD else None
        room.places = [] if found is None else [*room.places, *found]


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
