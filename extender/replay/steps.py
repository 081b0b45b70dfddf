"""The steps of plans and replays, and their execution in order on a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from extender.trial.trial import Item, Trial
from packing.fleet.fleet import Fleet
from packing.fleet.stranded import Fragmentation

_Plan = TypeVar("_Plan")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a plan. ``node`` of ``place`` may be "": the policy chooses among all nodes that accept
    pods, as kube-scheduler does with Stowage."""

    what: Literal["cordon", "evict", "place", "remove"]
    pod: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of steps: the node of each placed pod, why each other pod did not fit, problems, removed
    nodes, the free resources after the steps (without cordoned nodes), and nodes with entirely free GPUs.
    ``held_back``: pods that the scheduler would have allocated a weaker device."""

    placed: dict[str, str]
    unplaced: dict[str, str]
    problems: tuple[str, ...]
    removed: tuple[str, ...]
    figures: Fragmentation
    free_nodes: int
    held_back: tuple[str, ...] = ()


def carry_out(
    trial: Trial,
    steps: Iterable[Step],
    before_place: Callable[[Item], None] = lambda item: None,
    *,
    start: int | None = None,
) -> Outcome:
    """Execute the steps in order, from ``start`` if given. Failed steps are problems, and are skipped."""
    if start is not None:
        trial.undo_to(start)
    trial.held_back.clear()
    items = trial.movable | {item.key: item for item in trial.waiting}
    before = _overcommitted(trial.fleet)
    problems: list[str] = []
    placed: dict[str, str] = {}
    unplaced: dict[str, str] = {}
    removed: list[str] = []
    evicted: dict[str, None] = {}
    for step in steps:
        row = trial.fleet.rows.get(step.node, -1)
        match step.what:
            case "cordon":
                trial.cordon(row)
            case "evict":
                trial.leave(items[step.pod])
                evicted[step.pod] = None
            case "place":
                item = items[step.pod]
                before_place(item)
                if trial.place(item, step.node):
                    placed[step.pod] = trial.node_of(step.pod)
                    evicted.pop(step.pod, None)
                else:
                    unplaced[step.pod] = trial.why_not(item)
                    problems.append(f"{step.pod} does not fit{' on ' + step.node if step.node else ''}")
            case "remove":
                left = sorted([*(item.key for item in trial.items_on(row)), *trial.blockers(row)])
                problems += [f"{key} is still on {step.node}" for key in left]
                removed += [] if left else [step.node]
    problems += [f"{key} was evicted and has no node" for key in evicted]
    problems += [f"{name} is over-committed" for name in sorted(_overcommitted(trial.fleet) - before)]
    return Outcome(
        placed,
        unplaced,
        tuple(problems),
        tuple(removed),
        trial.figures(),
        trial.free_nodes(),
        tuple(sorted(trial.held_back)),
    )


def largest_that_holds(
    plan: _Plan, replay: Callable[[_Plan], _Result], smaller: Callable[[_Plan, _Result], _Plan | None]
) -> tuple[_Plan, _Result]:
    """The largest part of the plan that works, and its replay. ``smaller``: without the failed steps, None if
    all succeeded or nothing can be removed."""
    result = replay(plan)
    while (less := smaller(plan, result)) is not None:
        plan, result = less, replay(less)
    return plan, result


def _overcommitted(fleet: Fleet) -> set[str]:
    """The nodes with more GPU allocated than they have, by the engine's own count."""
    specs = (fleet.specs[row] for row in np.flatnonzero(fleet.arrays.overcommitted).tolist())
    return {spec.name for spec in specs if spec}
