"""An eviction plan: for a pod that fits nowhere, which pods to evict on which node, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extender.cluster.state import PossiblyBound, State
from extender.k8s.objects import Pod


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """The victims on one node, highest priority first, and the members of their gangs on ``other_nodes``
    that leave with them.

    ``cost``: see docs/preemption.md; compared lexicographically. ``pdb_violations``: how many of the victims
    violate a PodDisruptionBudget. ``exact``: whether no cheaper set exists on this node.
    """

    node: str
    victims: tuple[Pod, ...]
    cost: tuple[float, ...]
    pdb_violations: int = 0
    other_nodes: tuple[Pod, ...] = ()
    exact: bool = True


def plan_evictions(
    state: State,
    pod: Pod,
    nodes: Sequence[str],
    now: float,
    *,
    to_equals: bool = False,
    whole_gangs: bool = False,
    possibly_bound: PossiblyBound = (),
) -> list[EvictionPlan]:
    """The plans of all nodes on which evictions make the pod fit, the best first.

    ``to_equals``: also pods of equal priority beyond their maximum duration may be evicted. ``whole_gangs``:
    gangs with members on other nodes may leave as a whole (kube-scheduler only evicts on one node).
    """
    raise NotImplementedError
