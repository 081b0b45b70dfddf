"""The terms of the victim search: victims, their gangs, sets of them, and units that leave together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Doubles, Flags, Longs

Cost = tuple[float, ...]

_MOST_NEIGHBORS = 8
"""Maximum number of units of a set that stay in one of its neighbors, the most expensive ones."""


@dataclass(frozen=True, slots=True)
class GangCost:
    """``spare`` members may be evicted on their own. ``whole``: the cost if the gang is evicted as a whole,
    including its members on other nodes; None if it must not be."""

    spare: int
    whole: Cost | None


@dataclass(frozen=True, slots=True)
class Recount:
    """For a first cost component that is at least the sum over its victims, and may be more: ``first``
    computes it from victims and whole gangs. ``stay_first`` (A, V): victims that may add to it, and that stay
    first in one order of the search each."""

    first: Callable[[Sequence[int], Sequence[int]], float]
    stay_first: Flags


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of one node that may be evicted, as arrays: (V, C) costs (no component negative, at least one
    positive), (V,) indices of ``gangs`` (-1: none), and (V,) whether it must stay. Those that stay keep the
    columns the same for each request; their costs do not matter, and they count for no gang. ``required``
    victims are evicted in any case; ``proposed`` is a set chosen by someone else."""

    costs: Doubles
    gang_of: npt.NDArray[np.int64]
    stays: Flags
    gangs: Sequence[GangCost] = ()
    required: Collection[int] = ()
    proposed: Collection[int] = ()
    recount: Recount | None = None

    def __len__(self) -> int:
        return len(self.costs)


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Indices of the victims on this node, ascending; the gangs that are evicted as a whole (their members on
    the node are among the victims); and the cost."""

    victims: tuple[int, ...]
    gangs: tuple[int, ...]
    cost: Cost


class Units:
    """The V victims of a node, followed by the K gangs as a whole: U = V + K. Sets of them are (P, U).

    Evicting more members than the spare ones of a gang evicts the whole gang. A gang whose members are all
    spare counts as none.
    """

    def __init__(self, victims: Victims, parts: Doubles) -> None:
        """``parts`` (G, V): see ``Holdings``."""
        self._victims, self.has_gangs = len(victims), bool(victims.gangs)
        self.costs, self.everyone, self._on_gpu = victims.costs, ~victims.stays, parts > 0
        costs = self._add_gangs(victims) if self.has_gangs else self.costs
        self.required = np.zeros(len(self.costs), np.bool_)
        """(U,) victims that are evicted in any case."""
        self.required[list(victims.required)] = True
        self._fixed = self.required
        if self.has_gangs and victims.required:
            self._fixed = self.required.copy()
            self._fixed[self._victims :] = self._members @ self.required[: self._victims]
        self._by_cost = _places(costs)
        gpus = _places(parts @ costs[: self._victims])
        dearest = np.where(self._on_gpu, gpus[:, None], len(gpus)).min(axis=0, initial=len(gpus))
        self._by_gpu = dearest * len(self.costs) + self._by_cost

    def _add_gangs(self, victims: Victims) -> Doubles:
        """Returns (U, C) costs for orders: a member that cannot be evicted alone costs its part of the
        gang."""
        gangs = victims.gangs
        none = (0.0,) * victims.costs.shape[1]
        whole = np.array([gang.whole or none for gang in gangs])
        self._spare = np.array([gang.spare for gang in gangs])
        self._may_leave = np.array([gang.whole is not None for gang in gangs])
        members = self.everyone & (victims.gang_of == np.arange(len(gangs))[:, None])
        sizes = members.sum(axis=1)
        self._members = members & (sizes > self._spare)[:, None]  # (K, V)
        self.costs = np.concatenate([victims.costs, whole])
        tied = self._members[(self._spare == 0) & ~self._may_leave].any(axis=0)
        self.everyone = np.concatenate([self.everyone & ~tied, np.zeros(len(gangs), np.bool_)])
        self._on_gpu = np.concatenate([self._on_gpu, self._on_gpu @ self._members.T], axis=1)
        costs = self.costs.copy()
        for gang in (self._spare == 0).nonzero()[0].tolist():
            costs[: self._victims][self._members[gang]] = whole[gang] / max(1, sizes[gang])
        return costs

    def with_gangs(self, amounts: Doubles) -> Doubles:
        """Amounts of victims (V, R) as amounts of units (U, R)."""
        return np.concatenate([amounts, self._members @ amounts]) if self.has_gangs else amounts

    def set_of(self, victims: Collection[int]) -> Flags:
        """(U,) these victims and the required ones."""
        units = self.required.copy()
        units[list(victims)] = True
        return units

    def victims_in(self, units: Flags) -> Flags:
        """(..., V) the victims in units (..., U)."""
        if not self.has_gangs:
            return units
        found: Flags = units[..., : self._victims] | (units[..., self._victims :] @ self._members)
        return found

    def gangs_in(self, units: Flags) -> Flags:
        """(..., K) the gangs that leave as a whole."""
        return units[..., self._victims :]

    def members(self, units: Flags) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The victims in these units (U,), and the whole gangs."""
        victims, gangs = self.victims_in(units), self.gangs_in(units)
        return tuple(victims.nonzero()[0].tolist()), tuple(gangs.nonzero()[0].tolist())

    def join_gangs(self, sets: Flags) -> Flags:
        """Add the rest of each gang of which too many members leave, to the sets in place. Returns (P,) false
        where a gang must not leave as a whole."""
        alone, whole = sets[:, : self._victims], sets[:, self._victims :]
        too_many = alone.astype(np.int64) @ self._members.T > self._spare
        valid: Flags = ~(too_many & ~self._may_leave).any(axis=1)
        whole |= too_many
        alone &= ~(whole @ self._members)
        return valid

    def orders(self, stay_first: Flags | None = None) -> Longs:
        """(P, M) orders in which units may stay: the most expensive first; the same for each row of
        ``stay_first`` (A, V), after these victims; and for each GPU, those on it last, preceded by those on
        the GPUs with the most expensive pods first. If there are gangs, also with all their members first."""
        places = np.concatenate([self._by_cost[None], self._by_gpu + len(self.costs) ** 2 * self._on_gpu])
        if stay_first is not None:
            after = np.repeat(self._by_cost[None], len(stay_first), axis=0)
            after[:, : self._victims][stay_first] -= len(self.costs)
            places = np.concatenate([places, after])
        if self.has_gangs:
            in_gang = np.concatenate([self._members.any(axis=0), self._members.any(axis=1)])
            places = np.concatenate([places, places - len(self.costs) ** 3 * in_gang])
        return self._sorted(places)

    def neighbors(self, units: Flags) -> Longs:
        """(P, M) orders that lead to neighboring sets of this one (U,): one unit of the set stays first, or
        all on one GPU, then all units that are not in the set."""
        leaving = np.concatenate([self.victims_in(units), self.gangs_in(units)])
        dearest = (units & ~self._fixed).nonzero()[0]
        dearest = dearest[self._by_cost[dearest].argsort()][:_MOST_NEIGHBORS]
        alone = np.arange(len(self.costs)) == dearest[:, None]
        alone[:, : self._victims] = self.victims_in(alone)
        stay = np.concatenate([alone, self._on_gpu & leaving])
        stay = stay[stay.any(axis=1)]
        return self._sorted(self._by_gpu + len(self.costs) ** 2 * (leaving - 3 * stay))

    def cheapest_first(self) -> Longs:
        """(M,) all units that may be evicted alone, the cheapest first."""
        may_leave = self.everyone & ~self._fixed
        if self.has_gangs:
            may_leave[self._victims :] = self._may_leave
        order = (-self._by_cost).argsort()
        return order[may_leave[order]]

    def _sorted(self, places: Longs) -> Longs:
        """Units by their place in each row (P, U), without those that are evicted in any case."""
        if not self._fixed.any():
            return places.argsort(axis=1)
        order = np.where(self._fixed, np.iinfo(np.int64).max, places).argsort(axis=1)
        return np.ascontiguousarray(order[:, : np.count_nonzero(~self._fixed)])


def _places(costs: Doubles) -> Longs:
    """(N,) the rank of each cost (N, C), the highest first."""
    order = np.lexsort(costs.T[::-1])
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))[::-1]
    return places
