"""Room that is held for the waiting members of a gang once its first member is bound.

kube-scheduler places pod after pod, so other pods could take what the rest of a gang needs. From the moment
at which the watch shows the first member bound, pods of other gangs do not see the room of the members that
are missing: for a limited time, until the minimum is bound. Only members that exist and fit together get
room; it is chosen again whenever a member comes, goes or is bound. Pods of higher priority see it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from extender.cluster.allocations import Placement
from extender.k8s.objects import Pod
from extender.queues.gangs import GangTable
from extender.untrusted.limits import GANG_PLACED

log = logging.getLogger(__name__)

PlaceTogether: TypeAlias = Callable[[Sequence[Pod], int], list[Placement] | None]
"""Places for at most so many of these waiting members of a gang; None if they do not fit together."""


@dataclass(slots=True)
class Hold:
    """Room for one gang. ``since`` in seconds of the clock. ``given_up``: the time is over."""

    since: float
    placements: Sequence[Placement] = ()
    given_up: bool = False


@dataclass(slots=True)
class GangHolds:
    """The gangs that have some members bound, but not all that must run together.

    ``seconds``: how long room is held, 0 for not at all.
    """

    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _holds: dict[str, Hold] = field(default_factory=dict)

    def update(self, gangs: GangTable, is_bound: Callable[[str], bool], place: PlaceTogether) -> None:
        """Begin, renew and end the holds of the gangs that have changed. ``is_bound``: by UID."""
        for key in gangs.take_changed():
            members, gang = gangs.members(key), gangs.gang(key)
            waiting = [pod for pod in members if not (is_bound(pod.uid) or pod.deleting)]
            bound = sum(is_bound(pod.uid) for pod in members)
            if gang is None or not self.seconds or not 0 < bound < gang.together <= GANG_PLACED:
                self._holds.pop(key, None)
                continue
            hold = self._holds.setdefault(key, Hold(self.clock()))
            if not self._is_over(hold):
                promised = [pod for pod in waiting if pod.nominated_node]  # these have room already
                others = [pod for pod in waiting if not pod.nominated_node]
                missing = gang.together - bound - len(promised)
                hold.placements = (place(others, missing) if missing > 0 else None) or ()

    def expire(self) -> None:
        """Give up the holds whose time is over."""
        for key, hold in self._holds.items():
            if not hold.given_up and self._is_over(hold):
                hold.given_up, hold.placements = True, ()
                log.warning("%s: not complete after %g s, its room is no longer held", key, self.seconds)

    def placements(self, priority: int, own: str) -> list[Placement]:
        """The room that a pod of this priority does not see; ``own``: the key of its gang, "" for none."""
        return [
            placement
            for key, hold in self._holds.items()
            if key != own and not self._is_over(hold)
            for placement in hold.placements
            if placement.priority >= priority
        ]

    def describe(self, key: str) -> str:
        """What is held for a gang, in words; "" if no member is bound, or all are."""
        hold = self._holds.get(key)
        if hold is None:
            return ""
        if self._is_over(hold):
            return f"no room is held for the others any more: they were not bound within {self.seconds:g} s"
        if not hold.placements:
            return "no room is held for the others: they do not fit together now"
        left = math.ceil(hold.since + self.seconds - self.clock())
        return f"room for {len(hold.placements)} more is held for {left} s"

    @property
    def is_empty(self) -> bool:
        return not self._holds

    def _is_over(self, hold: Hold) -> bool:
        return hold.given_up or self.clock() - hold.since >= self.seconds
