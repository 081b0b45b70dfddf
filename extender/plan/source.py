"""What a plan is made for: a cluster (a snapshot or live) or a trace, as often from the start as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from extender.k8s.objects import Node
from extender.plan.work import Work
from packing.fleet.stranded import Fragmentation


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
    are gone, what is free then (cordoned nodes do not count), and nodes of whose GPUs nothing is taken."""

    placed: dict[str, str]
    problems: tuple[str, ...]
    removed: tuple[str, ...]
    figures: Fragmentation
    free_nodes: int


class PlanSource(Protocol):
    """A cluster or a trace."""

    name: str

    def fresh(self) -> Work:
        """The work as it is, on a fleet of its own."""

    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name; none in a trace."""

    def carry_out(self, steps: Sequence[Step]) -> Outcome:
        """The steps, one after the other, from the start. What does not work is a problem, and left out."""
