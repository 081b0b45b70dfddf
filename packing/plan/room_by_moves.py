"""The cheapest small set of pods to move so that a pending pod fits; each of them has a free place elsewhere
before any pod is moved.

For each node the cheapest pods to remove are found as for an eviction (``VictimSearch``), regardless of
whether they have another place: this is a lower bound on the cost of moves that make room there. The node
with the lowest bound is tried first. If one of its pods finds no place, at least one of the pods tried so far
must stay, so the search branches on each of them. The first set whose pods all find places is the cheapest,
within the limits of ``VictimSearch`` and the greedy choice of places.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from packing.fleet.arrays import Flags, Floats
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.request import Request
from packing.victims.amounts import Holdings
from packing.victims.search import VictimSearch
from packing.victims.victims import GangCost, Victims

Costs = Callable[[str], Floats]
"""(N,) cost of placing a pod (by key) on each node of the fleet in its state at the time of the call,
infinite where the pod does not fit or is not allowed."""
MOST_QUESTIONS = 300
"""Maximum number of calls of ``Costs`` per search. One takes about half a millisecond for 1,000 nodes."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending pod. ``rows`` (N,): where room may be made for it."""

    key: str
    request: Request
    rows: Flags


@dataclass(frozen=True, slots=True)
class Movable:
    """A running pod that may be moved, with its allocation and the cost of its move (more than 0). Pods of
    one ``gang`` ("": none) move together or not at all. Pods of one ``kind`` on one node find the same
    places."""

    key: str
    request: Request
    held: Allocation
    cost: float
    gang: str = ""
    kind: Hashable = None


@dataclass(slots=True)
class Moves:
    """The new allocation of each pending pod (``places``) and each moved pod (``targets``), by key, and the
    cost of the moves."""

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
    """Find at most ``most`` moves after which all pods in ``waiting`` fit; None if there are none. The places
    of pods that fit without moves count as taken. The fleet is restored afterwards.

    Each target is free before any pod is moved, so the moves can be made in any order.

    ``closed`` (N,): no pod is pending, and the room stays free. Each moved pod must then prefer its target to
    all other nodes, or it would return, and no target may be in these rows.
    """
    with ExitStack() as changes:
        search = _Search(fleet, movable, costs, most, questions, changes, closed)
        for pod in waiting:
            if not ((closed is None and search.place(pod)) or search.make_room(pod)):
                return None
        return search.moves


def places_elsewhere(fleet: Fleet, leaving: Sequence[Movable], costs: Costs) -> dict[str, Allocation] | None:
    """The allocations of these pods elsewhere if all of them leave their nodes, by key; None if one has no
    place that is free before any pod is moved. The fleet is restored afterwards."""
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
        self._gangs: defaultdict[str, list[Movable]] = defaultdict(list)
        self._on_row: defaultdict[int, list[Movable]] = defaultdict(list)
        for pod in movable:
            self._on_row[pod.held.row].append(pod)
            if pod.gang:
                self._gangs[pod.gang].append(pod)
        self._left: set[int] = set()  # rows that pods leave
        self._nowhere: set[tuple[Hashable, int]] = set()  # kinds, and rows that they cannot leave
        self.moves = Moves()

    def place(self, waiting: Waiting) -> bool:
        """Place the pod on the best node where it fits."""
        cost = self._ask(waiting.key)
        if not np.isfinite(cost).any():
            return False
        best = _cheapest(self._fleet, cost)
        self.moves.places[waiting.key] = self.hold(waiting.request, best, self._changes)
        return True

    def make_room(self, waiting: Waiting) -> bool:
        """Move other pods to make room for the pod."""
        search = VictimSearch(self._fleet, waiting.request)
        open_sets: list[tuple[float, int, int, frozenset[str]]] = []
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
        """The cheapest pods to remove from this row, wherever they would go, with their gangs on other rows,
        the largest first; empty if even all of them are not sufficient, or too many would have to leave."""
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
        """``by_number``: minimize the number of pods before the cost."""

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
        """Move these pods for the pending pod. Empty on success; else the fleet is restored, and one of the
        returned pods must stay."""
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
        """The row of the best place for a moved pod; ``left``: rows that pods leave."""
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
    """The row of the lowest cost (N,); among equal ones the first in the fleet's order."""
    return int(np.lexsort((fleet.arrays.order, cost))[0])
