"""The terms of the victim search: victims, their gangs, and units.

A *unit* leaves at once: one of the V victims, or one of the K gangs as a whole. A set of units is a row of
U = V + K flags, the victims first. While no more than the spare members of a gang leave, each of them is a
unit in the set. If more leave, the gang takes their place in the set, and all its members leave.

An *order* is a row of numbers of units: those that stay with the highest priority first.
"""

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
    """The units of a node: ``costs`` (U, C), and (U,) the sets that are evicted at first (``everyone``) and
    in any case (``required``).

    A gang whose members are all spare counts as none.
    """

    def __init__(self, victims: Victims, parts: Doubles) -> None:
        """``parts`` (G, V): see ``Holdings``."""
        self._victims, self.has_gangs = len(victims), bool(victims.gangs)
        self.costs, self.everyone, self._on_gpu = victims.costs, ~victims.stays, parts > 0
        costs = self._add_gangs(victims) if self.has_gangs else self.costs
        self.required = np.zeros(len(self.costs), np.bool_)
        self.required[list(victims.required)] = True
        self._fixed = self.required  # and the gangs of these victims
        if self.has_gangs and victims.required:
            self._fixed = self.required.copy()
            self._fixed[self._victims :] = self._members @ self.required[: self._victims]
        gpus, self._base = len(parts), 1 + max(self._on_gpu.shape)  # more than any rank
        self._by_cost, by_gpu = _ranks(costs), _ranks(parts @ costs[: self._victims])
        dearest = np.where(self._on_gpu, by_gpu[:, None], gpus).min(axis=0, initial=gpus)
        self._by_gpu = dearest * self._base + self._by_cost
        """(U,) the place of each unit by its most expensive GPU, then by its own cost."""

    def _add_gangs(self, victims: Victims) -> Doubles:
        """Append the gangs to the units. Returns the costs (U, C) by which units are ordered: a member that
        cannot be evicted alone costs its part of the gang."""
        gangs, none = victims.gangs, (0.0,) * victims.costs.shape[1]
        self._spare = np.array([gang.spare for gang in gangs])
        self._may_leave = np.array([gang.whole is not None for gang in gangs])
        members = ~victims.stays & (victims.gang_of == np.arange(len(gangs))[:, None])
        sizes = members.sum(axis=1)
        self._members = members & (sizes > self._spare)[:, None]  # (K, V)
        self._on_gpu = np.concatenate([self._on_gpu, self._on_gpu @ self._members.T], axis=1)
        must_stay = self._members[(self._spare == 0) & ~self._may_leave].any(axis=0)
        self.everyone = np.concatenate([~victims.stays & ~must_stay, np.zeros(len(gangs), np.bool_)])
        whole = np.array([gang.whole or none for gang in gangs])
        self.costs = np.concatenate([victims.costs, whole])
        costs = self.costs.copy()
        for gang in (self._spare == 0).nonzero()[0].tolist():
            costs[: self._victims][self._members[gang]] = whole[gang] / max(1, sizes[gang])
        return costs

    def with_gangs(self, amounts: Doubles) -> Doubles:
        """Amounts of victims (V, R) as amounts of units (U, R)."""
        return np.concatenate([amounts, self._members @ amounts]) if self.has_gangs else amounts

    def victims_in(self, units: Flags) -> Flags:
        """(V,) the victims in a set of units."""
        if not self.has_gangs:
            return units
        victims: Flags = units[: self._victims] | (units[self._victims :] @ self._members)
        return victims

    def members(self, units: Flags) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The victims in a set of units, and the gangs that leave as a whole."""
        victims, gangs = self.victims_in(units), units[self._victims :]
        return tuple(victims.nonzero()[0].tolist()), tuple(gangs.nonzero()[0].tolist())

    def join_gangs(self, sets: Flags) -> Flags:
        """In sets (P, U), replace members by their gang, in place, where too many leave. Returns (P,) false
        where a gang must not leave as a whole."""
        alone, whole = sets[:, : self._victims], sets[:, self._victims :]
        too_many = alone.astype(np.int64) @ self._members.T > self._spare
        valid: Flags = ~(too_many & ~self._may_leave).any(axis=1)
        whole |= too_many
        alone &= ~(whole @ self._members)
        return valid

    def orders(self, stay_first: Flags | None = None) -> Longs:
        """(P, M) orders of all units: the most expensive first; for each GPU, the units on it last, and
        before them those on the most expensive GPUs first; for each row of ``stay_first`` (A, V), the most
        expensive after these victims. If there are gangs, also all of these orders with the gangs and their
        members first."""
        places = np.concatenate([self._by_cost[None], self._by_gpu + self._base**2 * self._on_gpu])
        if stay_first is not None:
            after = np.repeat(self._by_cost[None], len(stay_first), axis=0)
            after[:, : self._victims][stay_first] -= self._base
            places = np.concatenate([places, after])
        if self.has_gangs:
            in_gang = np.concatenate([self._members.any(axis=0), self._members.any(axis=1)])
            places = np.concatenate([places, places - self._base**3 * in_gang])
        return self._sorted(places)

    def neighbors(self, units: Flags) -> Longs:
        """(P, M) orders that lead to neighboring sets of this one (U,): first an expensive unit of the set,
        or all of its units on one GPU, then the units outside of the set, then the others in it."""
        in_set = np.concatenate([self.victims_in(units), units[self._victims :]])
        dearest = (units & ~self._fixed).nonzero()[0]
        dearest = dearest[self._by_cost[dearest].argsort()][:_MOST_NEIGHBORS]
        alone = np.arange(len(self.costs)) == dearest[:, None]
        if self.has_gangs:
            alone[:, : self._victims] |= alone[:, self._victims :] @ self._members
        first = np.concatenate([alone, self._on_gpu & in_set])
        first = first[first.any(axis=1)]
        return self._sorted(self._by_gpu + self._base**2 * (in_set - 3 * first))

    def _sorted(self, places: Longs) -> Longs:
        """The units by their place in each row (P, U), without those that are evicted in any case."""
        if not self._fixed.any():
            return places.argsort(axis=1)
        places[:, self._fixed] = np.iinfo(np.int64).max
        return np.ascontiguousarray(places.argsort(axis=1)[:, : np.count_nonzero(~self._fixed)])

    def cheaper_units(self, cost: Cost) -> Flags:
        """(P, U) each unit that costs less and may be evicted alone, with the required ones."""
        may_leave = self.everyone & ~self._fixed
        if self.has_gangs:
            may_leave[self._victims :] = self._may_leave
        costs, limit = self.costs.tolist(), [*cost]
        alone = [unit for unit in may_leave.nonzero()[0].tolist() if costs[unit] < limit]
        sets: Flags = self.required | (np.arange(len(costs)) == np.array(alone, np.int64)[:, None])
        return sets


def _ranks(costs: Doubles) -> Longs:
    """(N,) the rank of each cost (N, C), 0 for the highest."""
    order = np.lexsort(costs.T[::-1])
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))[::-1]
    return ranks
