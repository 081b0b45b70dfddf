"""The few moves that free the most whole GPUs, or nodes. Those with the fewest pods to move come first.

Moves free GPUs only where Stowage assigns them: a device plugin allocates whole GPUs, so moving a pod frees
one GPU and takes another. Moves can free nodes of either kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from extender.plan.report import UNKNOWN, Cell, Gain, Progress, Report, Table
from extender.replay.steps import Step, carry_out, largest_that_holds
from extender.trial.trial import Item, Trial, largest_first
from extender.untrusted.visible import many
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import whole_gpus

Free = Literal["gpus", "nodes"]
_FREE = {"gpus": "GPUs entirely free", "nodes": "nodes with no GPU in use"}
_WHAT = {"gpus": "GPU", "nodes": "node"}
_TARGETS = 16
"""Maximum nodes tried per pod, the cheapest first."""
_TRIES = 400
"""Maximum GPUs, or nodes, that are tried."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A GPU (``gpu`` of the node of ``row``), or a node (``gpu`` is -1), that could become free."""

    row: int
    gpu: int
    pods: frozenset[str]


class Freed(NamedTuple):
    """A freed GPU or node, and the pods moved off it together, each with its new node."""

    what: str
    moves: tuple[tuple[Item, str], ...]


def units_of(trial: Trial, free: Free) -> list[Unit]:
    """GPUs or nodes that moves could free: all their pods are movable."""
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
    """The GPUs of its node that a pod holds (-1 for counted devices)."""
    return {gpu for gpu, *_ in held.shares} | ({-1} if held.devices else set())


def plan_moves(trial: Trial, most: int, free: Free) -> list[Freed]:
    """The units that at most ``most`` moves free, in order of the moves."""
    units, emptied, freed, moved = units_of(trial, free), set[int](), list[Freed](), set[str]()
    for _ in range(min(_TRIES, len(units))):
        unit = min(units, key=lambda unit: len(unit.pods - moved))
        units.remove(unit)
        items = largest_first(trial.movable[pod] for pod in unit.pods - moved)
        if len(moved) + len(items) > most:
            break
        before, whole = trial.savepoint(), _whole(trial, free)
        closed = emptied | ({unit.row} if free == "nodes" else set())
        if trial.relocate(items, partial(_place, trial, closed=closed, free=free)) or (
            _whole(trial, free) <= whole
        ):
            trial.undo_to(before)
            continue
        emptied, moved = closed, moved | {item.key for item in items}
        what = trial.name(unit.row) if unit.gpu < 0 else f"GPU {unit.gpu} of {trial.name(unit.row)}"
        freed.append(Freed(what, tuple((item, trial.node_of(item.key)) for item in items)))
    return freed


def _whole(trial: Trial, free: Free) -> int:
    """Number of GPUs, or nodes, that are entirely free and on offer."""
    if free == "nodes":
        return trial.free_nodes()
    return int((whole_gpus(trial.fleet.arrays) & trial.offered()).sum())


def _place(trial: Trial, item: Item, closed: Collection[int], free: Free) -> bool:
    """Place the pod where it takes no entirely free unit, on no ``closed`` row. Another GPU of its own node
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


def steps_of(freed: Iterable[Freed]) -> list[Step]:
    """The steps of these moves. The pods of one GPU or node are evicted together."""
    steps: list[Step] = []
    for _, moves in freed:
        steps += [Step("evict", item.key) for item, _ in moves]
        steps += [Step("place", item.key, target) for item, target in moves]
    return steps


def moves_report(name: str, trial: Trial, most: int, free: Free, progress: Progress) -> Report:
    """The moves, promised and replayed. ``trial`` must not be used afterwards."""
    progress("moves", 0.0)
    today, start = trial.figures().whole if free == "gpus" else trial.free_nodes(), trial.savepoint()
    freed, outcome = largest_that_holds(
        plan_moves(trial, most, free),
        lambda some: carry_out(trial, steps_of(some), start=start),
        lambda some, outcome: some[:-1] if outcome.problems and some else None,
    )
    progress("moves", 1.0)
    replayed = outcome.figures.whole if free == "gpus" else outcome.free_nodes
    rows: list[tuple[Cell, ...]] = []
    for what, moves in freed:
        for item, target in moves:
            frees = what if item is moves[-1][0] else ""
            place = outcome.placed.get(item.key, "no place")
            rows.append((len(rows) + 1, item.key, trial.name(item.home), target, place, frees))
    sentences = [f"{many(len(rows), 'move')} would free {many(len(freed), _WHAT[free])}."]
    if not freed and free == "gpus":  # free GPUs can be consolidated even where no move frees one
        sentences = [
            "No move frees a whole GPU: every GPU in use is allocated whole by a device plugin, or its pods "
            "fit nowhere else."
        ]
        nodes = plan_moves(trial, most, "nodes")
        count = many(sum(len(node.moves) for node in nodes), "move")
        sentences += [f"With --free nodes, {count} would free {many(len(nodes), 'node')}."] if nodes else []
    elif not freed:
        sentences = [f"No node can be freed with at most {many(most, 'move')}."]
    return Report(
        f"At most {many(most, 'move')} to free {_WHAT[free]}s: {name}",
        sentences,
        [Table("moves", "Moves", ("move", "pod", "from", "to", "replayed", "frees"), rows)],
        [
            Gain(_FREE[free], today, today + len(freed), replayed),
            Gain("pods that moved", 0, len(rows), len(outcome.placed)),
        ],
        outcome.problems,
        [UNKNOWN],
    )
