"""The few moves that free the most whole GPUs, or nodes: found on the fleet, carried out on the engine.

GPUs become whole where they are placed one by one: a GPU behind a device plugin is whole or given as a whole,
so moving its pod frees one and takes one. Nodes become free everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from extender.plan.answers import UNKNOWN
from extender.plan.drain import Progress
from extender.plan.report import Gain, Report, Table, many
from extender.plan.source import PlanSource, Step, carry_out
from extender.replay.work import Item, Work, free_nodes, weight
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import on_offer, whole_gpus
from packing.plan.few_moves import Pods, free_most

Free = Literal["gpus", "nodes"]
_TARGETS = 16
"""Nodes that are tried for one pod, the cheapest first."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A GPU (``gpu`` of the node of ``row``), or a node (``gpu`` is -1), that could become free."""

    row: int
    gpu: int
    pods: Pods


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that moves, and what becomes free once it and those before it have moved."""

    pod: str
    origin: str
    target: str
    frees: str


def units_of(work: Work, free: Free) -> list[Unit]:
    """What could become free: the movable pods that are in the way, where nothing else is."""
    on_row = _holders(work)
    found = []
    for row in work.gpu_rows:
        spec = work.fleet.specs[row]
        assert spec is not None
        by_gpu = on_row[row]
        stuck = _stuck(work, row)
        if free == "nodes":
            pods = frozenset(pod for pods in by_gpu.values() for pod in pods)
            if pods and not stuck:
                found.append(Unit(row, -1, pods))
            continue
        for gpu in range(len(spec.gpus)):
            if spec.gpus[gpu].divisible and by_gpu.get(gpu) and gpu not in stuck and -1 not in stuck:
                found.append(Unit(row, gpu, frozenset(by_gpu[gpu])))
    return sorted(found, key=lambda unit: sum(weight(work.movable[str(pod)]) for pod in unit.pods))


def _holders(work: Work) -> defaultdict[int, defaultdict[int, list[str]]]:
    """By row and GPU (-1: counted devices) the movable pods."""
    found: defaultdict[int, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, held in work.at.items():
        for gpu in _gpus(held):
            found[held.row][gpu].append(key)
    return found


def _gpus(held: Allocation) -> set[int]:
    return {gpu for gpu, *_ in held.shares} | ({-1} if held.devices else set())


def _stuck(work: Work, row: int) -> set[int]:
    """The GPUs of a row that pods hold which cannot move (-1: counted devices)."""
    staying = work.staying_on.get(row, {}).values()
    return {gpu for one in staying if one.held for gpu in _gpus(one.held)}


class _Trial:
    """Moves on the fleet of the work."""

    def __init__(self, work: Work, units: list[Unit], free: Free) -> None:
        self._work, self._units, self._free = work, units, free
        self._done: list[list[tuple[Item, Allocation]]] = []
        self._freed: list[Unit] = []

    @property
    def homes(self) -> dict[str, int]:
        return {item.key: held.row for done in self._done for item, held in done}

    def free(self, unit: int) -> bool:
        one, work = self._units[unit], self._work
        before = self._whole()
        items = [work.movable[str(pod)] for pod in one.pods if pod not in self.homes]
        done = [(item, work.lift(item)) for item in items]
        placed = []
        for item in sorted(items, key=lambda item: (-weight(item), item.key)):
            if not self._place(item, one):
                break
            placed.append(item)
        self._done.append(done)
        self._freed.append(one)
        if len(placed) == len(items) and self._whole() > before:
            return True
        self._undo(placed)
        return False

    def take_back(self) -> None:
        self._undo([item for item, _ in self._done[-1]])

    def _undo(self, placed: list[Item]) -> None:
        for item in placed:
            self._work.lift(item)
        for item, held in self._done.pop():
            self._work.restore(item, held)
        self._freed.pop()

    def _whole(self) -> int:
        """GPUs, or nodes, that are entirely free and on offer."""
        fleet = self._work.fleet
        offered = on_offer(fleet, np.flatnonzero(~self._work.open).tolist())
        if self._free == "nodes":
            return free_nodes(fleet, offered)
        return int((whole_gpus(fleet.arrays) & offered).sum())

    def _place(self, item: Item, unit: Unit) -> bool:
        """Place the pod where nothing that is free is lost, and on no node that becomes free."""
        work = self._work
        cost = work.costs(item)
        cost[[one.row for one in (*self._freed, unit)]] = np.inf
        rows = np.flatnonzero(np.isfinite(cost))
        for row in rows[np.lexsort((work.fleet.arrays.order[rows], cost[rows]))][:_TARGETS].tolist():
            before = self._whole()
            if not work.put(item, row):
                continue
            if self._whole() >= before:
                return True
            work.lift(item)
        return False


def plan_moves(work: Work, moves: int, free: Free) -> tuple[list[Move], int, int]:
    """The moves in order, how much they free, and a bound that no other so few moves exceed."""
    units = units_of(work, free)
    trial = _Trial(work, units, free)
    found = free_most([unit.pods for unit in units], moves, trial)
    said: list[Move] = []
    for number in found.units:
        unit, before = units[number], trial.homes
        trial.free(number)
        homes = {pod: row for pod, row in trial.homes.items() if pod not in before}
        what = work.name(unit.row) if unit.gpu < 0 else f"GPU {unit.gpu} of {work.name(unit.row)}"
        for place, (pod, row) in enumerate(homes.items(), 1):
            frees = what if place == len(homes) else ""
            said.append(Move(pod, work.name(row), work.name(work.at[pod].row), frees))
    return said, len(found.units), found.at_most


def moves_report(source: PlanSource, work: Work, moves: int, free: Free, progress: Progress) -> Report:
    """The moves, promised and replayed. ``work`` is used up."""
    progress("moves", 0.0)
    today = _measured(work, free)
    said, gain, bound = plan_moves(work, moves, free)
    steps = [step for one in said for step in (Step("evict", one.pod), Step("place", one.pod, one.target))]
    outcome = carry_out(source, steps)
    progress("moves", 1.0)
    figures = outcome.figures
    replayed = figures.whole if free == "gpus" else outcome.free_nodes
    what = "GPU" if free == "gpus" else "node"
    report = Report(f"At most {many(moves, 'move')} for more free {what}s: {source.name}")
    report.sentences = _sentences(len(said), gain, bound, moves, what)
    rows = tuple(
        (n, one.pod, one.origin, one.target, outcome.placed.get(one.pod, "no place"), one.frees)
        for n, one in enumerate(said, 1)
    )
    report.tables = [Table("moves", "Moves", ("move", "pod", "from", "to", "replayed", "frees"), rows)]
    report.gains = [
        Gain(f"{what}s entirely free", today, today + gain, replayed),
        Gain("pods that moved", 0, len(said), sum(one.pod in outcome.placed for one in said)),
    ]
    report.differences = list(outcome.problems)
    report.notes = [UNKNOWN]
    return report


def _measured(work: Work, free: Free) -> int:
    if free == "gpus":
        return work.figures().whole
    return free_nodes(work.fleet, on_offer(work.fleet, np.flatnonzero(~work.open).tolist()))


def _sentences(said: int, gain: int, bound: int, moves: int, what: str) -> list[str]:
    if not gain and what == "GPU":
        return [
            "No move frees a whole GPU: every GPU in use is given out whole by a device plugin, or its pods "
            "find no place. --free nodes brings free GPUs together on nodes."
        ]
    if not gain:
        return [f"No {many(moves, 'move')} free a node."]
    text = f"{many(said, 'move')} would free {many(gain, what)}."
    if gain >= bound:
        return [f"{text} No choice of at most {many(moves, 'move')} frees more."]
    return [
        f"{text} At most {bound} could be free after {many(moves, 'move')}; whether that many can is open."
    ]
