"""What a plan is made for: a cluster (a snapshot or live) or a trace, as often from the start as needed; and
how the steps of a plan are carried out there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from extender.k8s.objects import Node
from extender.replay.work import Work, blockers, free_nodes, overcommitted
from packing.fleet.stranded import Fragmentation, on_offer


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that somebody would do. ``node`` of ``place`` may be "": the policy chooses among all nodes
    that take pods, as kube-scheduler does with Stowage."""

    what: Literal["cordon", "evict", "place", "remove"]
    pod: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan as it was carried out, step by step: where each placed pod is, what did not work, the nodes that
    are gone, what is free then (cordoned nodes do not count), and nodes of whose GPUs nothing is taken.
    ``held_back``: pods that the scheduler would have given a weaker device."""

    placed: dict[str, str]
    problems: tuple[str, ...]
    removed: tuple[str, ...]
    figures: Fragmentation
    free_nodes: int
    held_back: tuple[str, ...] = ()


class PlanSource(Protocol):
    """A cluster or a trace."""

    name: str

    def fresh(self) -> Work:
        """The work as it is, on a fleet of its own."""

    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name; none in a trace."""


def carry_out(source: PlanSource, steps: Sequence[Step]) -> Outcome:
    """The steps, one after the other, from the start. What does not work is a problem, and left out."""
    work = source.fresh()
    items = {item.key: item for item in (*work.movable.values(), *work.waiting)}
    before = overcommitted(work.fleet)
    problems: list[str] = []
    placed: dict[str, str] = {}
    removed: list[str] = []
    evicted: dict[str, None] = {}
    for step in steps:
        row = work.fleet.rows.get(step.node, -1)
        match step.what:
            case "cordon":
                work.open[row] = False
            case "evict":
                work.lift(items[step.pod])
                evicted[step.pod] = None
            case "place":
                among = np.arange(work.open.size) == row if step.node else None
                if work.place(items[step.pod], among):
                    placed[step.pod] = work.name(work.at[step.pod].row)
                    evicted.pop(step.pod, None)
                else:
                    problems.append(f"{step.pod} finds no place{' on ' + step.node if step.node else ''}")
            case "remove":
                left = sorted([item.key for item in work.items_on(row)] + [*blockers(work, row)])
                problems += [f"{key} is still on {step.node}" for key in left]
                removed += [] if left else [step.node]
    problems += [f"{key} was evicted and has no node" for key in evicted]
    problems += [f"{name} is over-committed" for name in sorted(overcommitted(work.fleet) - before)]
    offered = on_offer(work.fleet, np.flatnonzero(~work.open).tolist())
    free = free_nodes(work.fleet, offered)
    held_back = tuple(sorted(work.held_back))
    return Outcome(placed, tuple(problems), tuple(removed), work.figures(), free, held_back)
