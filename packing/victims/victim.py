"""Victims, their gangs, and sets of them: the terms of the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from packing.fleet.node_usage import Allocation

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


def as_set(
    costs: Sequence[Cost],
    gang_of: Sequence[int],
    gangs: Sequence[GangCost],
    chosen: Collection[int],
    *,
    exact: bool = True,
) -> VictimSet | None:
    """The cost of evicting exactly these victims; None if a gang would be left as a useless rest.

    ``gang_of`` is the index of each victim's gang, -1 for none.
    """
    victims = tuple(sorted(chosen))
    whole: list[int] = []
    for number, leaving in sorted(Counter(gang_of[v] for v in victims if gang_of[v] >= 0).items()):
        if leaving > gangs[number].spare:
            if gangs[number].whole is None or leaving < sum(gang == number for gang in gang_of):
                return None
            whole.append(number)
    parts = [cost for number in whole if (cost := gangs[number].whole) is not None]
    parts += [costs[v] for v in victims if gang_of[v] not in whole]
    none = (0.0,) * (len(costs[0]) if costs else 0)
    total = tuple(map(sum, zip(*parts, strict=True))) if parts else none
    return VictimSet(victims, tuple(whole), total, exact)
