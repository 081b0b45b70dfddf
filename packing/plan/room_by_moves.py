"""Which few pods move so that what waits fits: the cheapest that all have another place now, before anybody
leaves.

For each node the cheapest pods to leave are found as for an eviction (``VictimSearch``), without asking
whether they have another place: a bound on what any moves cost that make room there. The node of the lowest
bound is tried first. Where not all of its pods find a place, one of those that were tried must stay, so the
search goes on with each of them staying. The first set that finds its places is the cheapest, as far as
``VictimSearch`` and the greedy choice of places go.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.request import Request
from packing.victims.amounts import Holdings
from packing.victims.search import VictimSearch
from packing.victims.victims import GangCost, Victims

Flags = npt.NDArray[np.bool_]
Costs = Callable[[str], Floats]
"""What placing a pod (by key) costs on each node of the fleet as it is when it is called, infinite where the
pod does not fit or may not go: (N,)."""
MOST_QUESTIONS = 300
"""Calls of ``Costs`` for one search. One takes about half a millisecond for 1,000 nodes."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that waits. ``rows`` (N,): where room may be made for it."""

    key: str
    request: Request
    rows: Flags


@dataclass(frozen=True, slots=True)
class Movable:
    """A pod that runs and may move, with what it holds and what its move costs (more than 0). Pods of one
    ``gang`` ("": none) move together or not at all. Pods of one ``kind`` on one node find the same places."""

    key: str
    request: Request
    held: Allocation
    cost: float
    gang: str = ""
    kind: Hashable = None


@dataclass(slots=True)
class Moves:
    """What each pending pod, and each pod that moves, takes on its new node, by key, and what the moves
    cost."""

    places: dict[str, Allocation] = field(default_factory=dict)
    targets: dict[str, Allocation] = field(default_factory=dict)
    cost: float = 0.0


def cheapest_moves(
    fleet: Fleet,
    waiting: Sequence[Waiting],
    movable: Sequence[Movable],
    costs: Costs,
    *,
    most: int,
    questions: int = MOST_QUESTIONS,
    closed: Flags | None = None,
) -> Moves | None:
    """The moves after which all these pods fit, at most ``most`` of them; None if none are found. The places
    of pods that fit as they are count as taken. The fleet is as before afterwards.

    Each place of a pod that moves is free before anybody leaves, so the moves can be made in any order.

    ``closed`` (N,): nobody waits, and the room stays free. Each pod that moves must then like its new place
    best of all, or it would come back, and none may go to these rows.
    """
    with ExitStack() as changes:
        search = _Search(fleet, movable, costs, most, questions, changes, closed)
        for pod in waiting:
            if not ((closed is None and search.place(pod)) or search.make_room(pod)):
                return None
        return search.moves


def places_elsewhere(fleet: Fleet, leaving: Sequence[Movable], costs: Costs) -> dict[str, Allocation] | None:
    """What each of these pods takes elsewhere if all of them leave their nodes, by key; None if one finds no
    place that is free before anybody leaves. The fleet is as before afterwards."""
    with ExitStack() as changes:
        search = _Search(fleet, leaving, costs, len(leaving), MOST_QUESTIONS, changes, None)
        rows, targets = {pod.held.row for pod in leaving}, dict[str, Allocation]()
        for pod in sorted(leaving, key=lambda pod: (-_size(pod), pod.key)):
            if (target := search.target(pod, rows)) is None:
                return None
            targets[pod.key] = search.hold(pod.request, target, changes)
        return targets


class _Search:
    def __init__(
        self,
        fleet: Fleet,
        movable: Sequence[Movable],
        costs: Costs,
        most: int,
        questions: int,
        changes: ExitStack,
        closed: Flags | None,
    ) -> None:
        self._fleet, self._costs, self._most = fleet, costs, most
        self._questions, self._changes, self._closed = questions, changes, closed
        self._by_key = {pod.key: pod for pod in movable}
        self._gangs: defaultdict[str, list[Movable]] = defaultdict(list)
        self._on_row: defaultdict[int, list[Movable]] = defaultdict(list)
        for pod in movable:
            self._on_row[pod.held.row].append(pod)
            if pod.gang:
                self._gangs[pod.gang].append(pod)
        self._left: set[int] = set()  # the rows that pods leave
        self._nowhere: set[tuple[Hashable, int]] = set()  # kinds, and rows that they cannot leave
        self.moves = Moves()

    def place(self, waiting: Waiting) -> bool:
        """Let the pod have the best place that is free."""
        cost = self._ask(waiting.key)
        if not np.isfinite(cost).any():
            return False
        self.moves.places[waiting.key] = self.hold(
            waiting.request, _cheapest(self._fleet, cost), self._changes
        )
        return True

    def make_room(self, waiting: Waiting) -> bool:
        """Let others move for the pod."""
        search, open_sets = (
            VictimSearch(self._fleet, waiting.request),
            list[tuple[float, int, int, frozenset[str]]](),
        )
        chosen: dict[tuple[int, frozenset[str]], list[Movable]] = {}

        def bound(row: int, stay: frozenset[str]) -> None:
            if (row, stay) not in chosen and (found := self._leaving(search, row, stay)):
                chosen[row, stay] = found
                cost = sum(pod.cost for pod in found)
                heapq.heappush(open_sets, (cost, len(found), row, stay))

        for row in np.flatnonzero(waiting.rows).tolist():
            if row in self._on_row:
                bound(row, frozenset())
        while open_sets and self._questions > 0:
            cost, _, row, stay = heapq.heappop(open_sets)
            pods = chosen[row, stay]
            tried = self._try(waiting, row, pods)
            if not tried:
                self.moves.cost += cost
                return True
            for pod in tried:
                bound(row, stay | {pod.key for pod in self._with_gang(pod)})
        return False

    def _leaving(self, search: VictimSearch, row: int, stay: frozenset[str]) -> list[Movable]:
        """The cheapest pods to leave this row, wherever they go, with their gangs on other rows, the largest
        first; none if not even all are enough, or too many would leave."""
        pods = [pod for pod in self._on_row[row] if pod.key not in self.moves.targets]
        stays = [pod.key in stay or (pod.kind or pod.key, row) in self._nowhere for pod in pods]
        names = sorted({pod.gang for pod in pods if pod.gang})
        holdings = Holdings.of(self._fleet, row, [(pod.held,) for pod in pods])
        for by_number in (False, True):
            found = search.among(row, holdings, self._victims(pods, stays, names, by_number=by_number))
            if found is None:
                return []
            alone = [pods[victim] for victim in found.victims]
            leaving = {member.key: member for pod in alone for member in self._with_gang(pod)}
            if len(leaving) + len(self.moves.targets) <= self._most:
                return sorted(leaving.values(), key=lambda pod: (-_size(pod), pod.key))
        return []

    def _victims(
        self, pods: Sequence[Movable], stays: Sequence[bool], names: Sequence[str], *, by_number: bool
    ) -> Victims:
        """``by_number``: the fewest pods, and not the cheapest."""

        def cost_of(some: Sequence[Movable]) -> tuple[float, float]:
            both = sum(pod.cost for pod in some), float(len(some))
            return both[::-1] if by_number else both

        costs = np.array([cost_of([pod]) for pod in pods], np.float64).reshape(-1, 2)
        gang_of = np.array([names.index(pod.gang) if pod.gang else -1 for pod in pods], np.int64)
        gangs = [GangCost(0, cost_of(self._gangs[name])) for name in names]
        return Victims(costs, gang_of, np.array(stays, np.bool_), gangs)

    def _with_gang(self, pod: Movable) -> Sequence[Movable]:
        return self._gangs[pod.gang] if pod.gang else [pod]

    def _try(self, waiting: Waiting, row: int, leaving: Sequence[Movable]) -> Sequence[Movable]:
        """Let these pods move for the pending pod. Empty if they do; else the fleet is as it was, and one
        of these that are returned must stay."""
        rows = {pod.held.row for pod in leaving}
        with ExitStack() as changes:
            changes.enter_context(self._fleet.without([pod.held for pod in leaving]))
            if not np.isfinite(self._ask(waiting.key)[row]):
                return leaving
            place, targets = self._place_on(waiting.request, row), dict[str, Allocation]()
            if self._closed is None:
                changes.enter_context(self._fleet.holding([place]))
            for number, pod in enumerate(leaving):
                if (target := self.target(pod, rows | self._left)) is None:
                    if not number:
                        self._nowhere.add((pod.kind or pod.key, pod.held.row))
                    return leaving[: number + 1]
                targets[pod.key] = self.hold(pod.request, target, changes)
            self._changes.push(changes.pop_all().__exit__)
        self._left |= rows
        self.moves.places[waiting.key] = place
        self.moves.targets |= targets
        return ()

    def target(self, pod: Movable, left: Collection[int]) -> int | None:
        """The row of the best place for a pod that moves; ``left``: rows that pods leave."""
        cost = self._ask(pod.key).copy()
        if self._closed is None:
            cost[[*left]] = np.inf
        best = _cheapest(self._fleet, cost)
        comes_back = self._closed is not None and (best in left or self._closed[best])
        return None if comes_back or not np.isfinite(cost[best]) else best

    def _ask(self, key: str) -> Floats:
        self._questions -= 1
        return self._costs(key)

    def hold(self, request: Request, row: int, changes: ExitStack) -> Allocation:
        held = self._place_on(request, row)
        changes.enter_context(self._fleet.holding([held]))
        return held

    def _place_on(self, request: Request, row: int) -> Allocation:
        return allocation_of(self._fleet, row, request, freest_gpus(self._fleet, row, request))


def _size(pod: Movable) -> float:
    shares = sum(milli for _, milli, _ in pod.held.shares)
    return sum(count for _, count in pod.held.devices) * 1000 + shares + pod.held.cpu_milli / 1e9


def _cheapest(fleet: Fleet, cost: Floats) -> int:
    """The row of the least cost (N,), the first in the fleet's order of equal ones."""
    return int(np.lexsort((fleet.arrays.order, cost))[0])
