"""The few moves that free the most whole GPUs, or nodes, those with the fewest pods in their way first.

GPUs become whole where they are placed one by one: a GPU behind a device plugin is whole or given as a whole,
so moving its pod frees one and takes one. Nodes become free everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from extender.plan.report import UNKNOWN, Gain, Progress, Report, Table
from extender.replay.steps import Step, carry_out, largest_that_holds
from extender.replay.trial import Item, Trial, largest_first
from extender.untrusted.visible import many
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import whole_gpus

Free = Literal["gpus", "nodes"]
_FREE = {"gpus": "GPUs entirely free", "nodes": "nodes with no GPU in use"}
_TARGETS = 16
"""Nodes that are tried for one pod, the cheapest first."""
_TRIES = 400
"""GPUs, or nodes, that are tried."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A GPU (``gpu`` of the node of ``row``), or a node (``gpu`` is -1), that could become free."""

    row: int
    gpu: int
    pods: frozenset[str]


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that moves, and what becomes free once it and those before it have moved."""

    pod: str
    origin: str
    target: str
    frees: str


def units_of(trial: Trial, free: Free) -> list[Unit]:
    """What could become free: the movable pods that are in the way, where nothing else is."""
    on_row: defaultdict[int, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for key, held in trial.held.items():
        for gpu in _gpus(held):
            on_row[held.row][gpu].add(key)
    found = []
    for row in trial.gpu_rows:
        spec, by_gpu = trial.fleet.specs[row], on_row[row]
        assert spec is not None
        stuck = {
            gpu for staying in trial.staying_on[row].values() if staying.held for gpu in _gpus(staying.held)
        }
        if free == "nodes":
            pods = frozenset[str]().union(*by_gpu.values())
            if pods and not stuck:
                found.append(Unit(row, -1, pods))
        elif -1 not in stuck:
            for gpu, gpu_spec in enumerate(spec.gpus):
                if gpu_spec.divisible and by_gpu[gpu] and gpu not in stuck:
                    found.append(Unit(row, gpu, frozenset(by_gpu[gpu])))
    return sorted(found, key=lambda unit: sum(trial.movable[pod].gpus for pod in unit.pods))


def _gpus(held: Allocation) -> set[int]:
    """The GPUs of its node that a pod holds (-1: counted devices)."""
    return {gpu for gpu, *_ in held.shares} | ({-1} if held.devices else set())


def plan_moves(trial: Trial, moves: int, free: Free) -> tuple[list[Move], int]:
    """At most so many moves in order, and how much they free."""
    today, units, emptied = _whole(trial, free), units_of(trial, free), set[int]()
    said: list[Move] = []
    for _ in range(min(_TRIES, len(units))):
        moved = {move.pod for move in said}
        unit = min(units, key=lambda unit: len(unit.pods - moved))
        units.remove(unit)
        items = largest_first(trial.movable[pod] for pod in unit.pods - moved)
        if len(said) + len(items) > moves:
            break
        before, whole = trial.savepoint(), _whole(trial, free)
        closed = emptied | ({unit.row} if free == "nodes" else set())
        place = partial(_place, trial, closed=closed, free=free)
        if trial.relocate(items, place) or _whole(trial, free) <= whole:
            trial.undo_to(before)
            continue
        emptied = closed
        what = trial.name(unit.row) if unit.gpu < 0 else f"GPU {unit.gpu} of {trial.name(unit.row)}"
        for item in items:
            frees = what if item is items[-1] else ""
            said.append(Move(item.key, trial.name(item.home), trial.node_of(item.key), frees))
    return said, _whole(trial, free) - today


def _whole(trial: Trial, free: Free) -> int:
    """GPUs, or nodes, that are entirely free and on offer."""
    if free == "nodes":
        return trial.free_nodes()
    return int((whole_gpus(trial.fleet.arrays) & trial.offered()).sum())


def _place(trial: Trial, item: Item, closed: Collection[int], free: Free) -> bool:
    """Place the pod where nothing that is free is lost, and on no ``closed`` row. Another GPU of its own node
    is as good as one elsewhere."""
    cost, before, whole = trial.costs(item), trial.savepoint(), _whole(trial, free)
    cost[[*closed]] = np.inf
    rows = np.flatnonzero(np.isfinite(cost))
    for row in rows[np.lexsort((trial.fleet.arrays.order[rows], cost[rows]))][:_TARGETS].tolist():
        if trial.place_on(item, row):
            if _whole(trial, free) >= whole:
                return True
            trial.undo_to(before)
    return False


def by_unit(moves: Sequence[Move]) -> list[Sequence[Move]]:
    """The moves after which something becomes free, for each GPU or node."""
    ends = [end for end, move in enumerate(moves, 1) if move.frees]
    return [moves[begin:end] for begin, end in pairwise([0, *ends])]


def steps_of(units: Iterable[Sequence[Move]]) -> list[Step]:
    """The pods that are in the way of one GPU or node leave together."""
    steps: list[Step] = []
    for moves in units:
        steps += [Step("evict", move.pod) for move in moves]
        steps += [Step("place", move.pod, move.target) for move in moves]
    return steps


def moves_report(name: str, trial: Trial, moves: int, free: Free, progress: Progress) -> Report:
    """The moves, promised and replayed. ``trial`` is used up."""
    progress("moves", 0.0)
    today, start = trial.figures().whole if free == "gpus" else trial.free_nodes(), trial.savepoint()
    planned, _ = plan_moves(trial, moves, free)
    units, outcome = largest_that_holds(
        by_unit(planned),
        lambda some: carry_out(trial, steps_of(some), start=start),
        lambda some, outcome: some[:-1] if outcome.problems and some else None,
    )
    said, gain = [move for unit in units for move in unit], len(units)
    progress("moves", 1.0)
    replayed = outcome.figures.whole if free == "gpus" else outcome.free_nodes
    what = "GPU" if free == "gpus" else "node"
    rows = [
        (n, move.pod, move.origin, move.target, outcome.placed.get(move.pod, "no place"), move.frees)
        for n, move in enumerate(said, 1)
    ]
    return Report(
        f"At most {many(moves, 'move')} for more free {what}s: {name}",
        [_sentence(len(said), gain, moves, what), *_other_way(trial, moves, free, gain)],
        [Table("moves", "Moves", ("move", "pod", "from", "to", "replayed", "frees"), rows)],
        [
            Gain(_FREE[free], today, today + gain, replayed),
            Gain("pods that moved", 0, len(said), sum(move.pod in outcome.placed for move in said)),
        ],
        outcome.problems,
        [UNKNOWN],
    )


def _other_way(trial: Trial, moves: int, free: Free, gain: int) -> list[str]:
    """Whether free GPUs can be brought together on nodes where no move frees one. Then nothing has moved."""
    if gain or free == "nodes":
        return []
    said, nodes = plan_moves(trial, moves, "nodes")
    return [f"With --free nodes {many(len(said), 'move')} would free {many(nodes, 'node')}."] if nodes else []


def _sentence(said: int, gain: int, moves: int, what: str) -> str:
    if not gain and what == "GPU":
        return (
            "No move frees a whole GPU: every GPU in use is allocated whole by a device plugin, or its pods "
            "find no place."
        )
    if not gain:
        return f"No {many(moves, 'move')} free a node."
    return f"{many(said, 'move')} would free {many(gain, what)}."
