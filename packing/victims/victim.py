"""Victims, their gangs, and sets of them: the terms of the search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
class Recount:
    """Where the first component of a set's cost is at least the sum of those of its victims, and may be more:
    ``first`` of victims and whole gangs. ``stay_first`` (A, V): victims who may add to it, and stay first in
    one order of the search each."""

    first: Callable[[Sequence[int], Sequence[int]], float]
    stay_first: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Victims:
    """Victims of one node as arrays: what each holds, (V, C) costs, (V,) indices of ``gangs``, and (V,)
    whether it must stay. Those that stay keep the arrays the same for each request, so that ``Holdings`` can
    be kept; their costs do not matter, and they count for no gang. ``required`` victims leave in any case;
    ``proposed`` is a set that somebody else has chosen."""

    held: Sequence[tuple[Allocation, ...]]
    costs: npt.NDArray[np.float64]
    gang_of: npt.NDArray[np.int64]
    stays: npt.NDArray[np.bool_]
    gangs: Sequence[GangCost] = ()
    required: Collection[int] = ()
    proposed: Collection[int] = ()
    recount: Recount | None = None

    @classmethod
    def of(
        cls,
        victims: Sequence[Victim],
        gangs: Sequence[GangCost] = (),
        required: Collection[int] = (),
        proposed: Collection[int] = (),
    ) -> Victims:
        """These victims; none of them stays. Raises ValueError where a gang of a victim is not given."""
        if any(victim.gang >= len(gangs) for victim in victims):
            raise ValueError("a victim is in a gang that is not given")
        costs = [victim.cost for victim in victims]
        width = len(next((one for one in [*costs, *(gang.whole for gang in gangs)] if one), (0.0,)))
        flat = np.fromiter(chain.from_iterable(costs), np.float64)
        return cls(
            [victim.held for victim in victims],
            flat.reshape(len(victims), width),
            np.array([victim.gang for victim in victims], np.int64),
            np.zeros(len(victims), np.bool_),
            gangs,
            required,
            proposed,
        )

    def __len__(self) -> int:
        return len(self.held)


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Indices of the victims on this node, ascending; the gangs that leave as a whole (their members on the
    node are among the victims); and the cost."""

    victims: tuple[int, ...]
    gangs: tuple[int, ...]
    cost: Cost
