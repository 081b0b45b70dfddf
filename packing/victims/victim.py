"""Victims, their gangs, and sets of them: the terms of the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

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
class Victims:
    """Victims of one node as arrays: what each holds, (V, C) costs, (V,) indices of gangs, and (V,) whether
    it must stay. Those that stay keep the arrays the same for each request, so that ``Holdings`` can be
    kept; their costs do not matter, and they count for no gang."""

    held: Sequence[tuple[Allocation, ...]]
    costs: npt.NDArray[np.float64]
    gang_of: npt.NDArray[np.int64]
    stays: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, victims: Sequence[Victim]) -> Victims:
        """These victims; none of them stays."""
        width = len(victims[0].cost) if victims else 0
        flat = np.fromiter(chain.from_iterable(victim.cost for victim in victims), np.float64)
        return cls(
            [victim.held for victim in victims],
            flat.reshape(len(victims), width),
            np.array([victim.gang for victim in victims], np.int64),
            np.zeros(len(victims), np.bool_),
        )

    def __len__(self) -> int:
        return len(self.held)

    def cost_of(self, v: int) -> Cost:
        return tuple(self.costs[v].tolist())

    def only(self, kept: Sequence[int]) -> Victims:
        """Some of these victims, in this order."""
        held = [self.held[v] for v in kept]
        return Victims(held, self.costs[kept], self.gang_of[kept], self.stays[kept])


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


def set_of(
    victims: Victims, gangs: Sequence[GangCost], chosen: Collection[int], *, exact: bool = True
) -> VictimSet | None:
    """``as_set`` for victims as arrays."""
    if not gangs:
        numbers = sorted(chosen)
        return VictimSet(tuple(numbers), (), tuple(victims.costs[numbers].sum(axis=0).tolist()), exact)
    costs = [victims.cost_of(v) for v in range(len(victims))]
    return as_set(costs, victims.gang_of.tolist(), gangs, chosen, exact=exact)
