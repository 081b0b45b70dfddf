"""The cheapest pods of a node to evict, so that a request fits there at device level.

A *victim* is a pod that may be evicted; what it costs is a vector that is compared lexicographically, the
first component first. Members of a *gang* may leave one by one as long as enough of them remain (``spare``);
beyond that the whole gang leaves, at the gang's cost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request

Cost = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may be evicted: what it holds of the node (several allocations while a binding is assumed),
    its cost (all of one length, no component negative, at least one positive), and the index of its gang."""

    held: tuple[Allocation, ...]
    cost: Cost
    gang: int = -1


@dataclass(frozen=True, slots=True)
class GangCost:
    """``spare`` members may leave on their own. ``whole``: the cost if the gang leaves as a whole, with its
    members on other nodes; None if it must not."""

    spare: int
    whole: Cost | None


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Indices of the victims on this node, ascending; the gangs that leave as a whole (their members on the
    node are among the victims); the cost; and whether no cheaper set exists (else the search was cut)."""

    victims: tuple[int, ...]
    gangs: tuple[int, ...]
    cost: Cost
    exact: bool = True


def cheapest_victims(
    fleet: Fleet,
    row: int,
    request: Request,
    victims: Sequence[Victim],
    gangs: Sequence[GangCost] = (),
    required: Collection[int] = (),
) -> VictimSet | None:
    """The cheapest set, with all ``required`` victims in it, after whose eviction the request fits on the
    node; None if not even all of them are enough. The fleet is unchanged afterwards."""
    best: VictimSet | None = None
    for size in range(len(victims) + 1):
        for chosen in combinations(range(len(victims)), size):
            if not set(required) <= set(chosen):
                continue
            found = _as_set(victims, gangs, chosen)
            if found is None or (best is not None and best.cost <= found.cost):
                continue
            if _fits_without(fleet, row, request, [victims[v] for v in chosen]):
                best = found
    return best


def _as_set(
    victims: Sequence[Victim], gangs: Sequence[GangCost], chosen: tuple[int, ...]
) -> VictimSet | None:
    """The cost of evicting exactly these victims; None if a gang would be left as a useless rest."""
    width = len(victims[0].cost) if victims else 0
    total, whole = [0.0] * width, []
    for number, gang in enumerate(gangs):
        members = {v for v, victim in enumerate(victims) if victim.gang == number}
        leaving = members.intersection(chosen)
        if len(leaving) > gang.spare:
            if gang.whole is None or leaving != members:
                return None
            whole.append(number)
            total = [a + b for a, b in zip(total, gang.whole, strict=True)]
    for v in chosen:
        if victims[v].gang not in whole:
            total = [a + b for a, b in zip(total, victims[v].cost, strict=True)]
    return VictimSet(chosen, tuple(whole), tuple(total))


def _fits_without(fleet: Fleet, row: int, request: Request, evicted: Sequence[Victim]) -> bool:
    with fleet.without([held for victim in evicted for held in victim.held]):
        return bool(reasons_for(fleet, request)[row] == Reason.FITS)
