"""The fill tables of a mix for a fleet: half for GPUs that are cut ideally, half for the GPUs as they are.

Fill for ideal cuts prices a fleet that is cut by the best patterns, whatever is in stock. Fill for the stock
alone takes the demand that would fill what is free for what will come. Half of each loses nothing anywhere.

Solving again and again for the state as it is has a regret that does not grow with the number of arrivals:
Jasin and Kumar, "A Re-solving Heuristic with Bounded Revenue Loss for Network Revenue Management", 2012; Vera
and Banerjee, "The Bayesian Prophet", 2019; Bumpensanti and Wang, "A Re-solving Heuristic with Uniformly
Bounded Loss for Network Revenue Management", 2020.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from packing.cost.demand import Mix
from packing.cost.fill_value import FillDemand, Part, Stock, grid
from packing.fleet.arrays import Doubles, Floats, Longs
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request, Shares

STOCK = 0.5
"""Weight of the fill for the GPUs as they are."""


class FreeGpus(NamedTuple):
    """The divisible GPUs of open nodes: free compute milli, free and total MiB of memory, each (F,); and all
    the sizes of memory that GPUs of the fleet have, ascending."""

    compute: Floats
    memory: Floats
    capacity: Floats
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, fleet: Fleet) -> FreeGpus:
        """Those of the fleet as it is now, copied."""
        arrays = fleet.arrays
        used = (arrays.divisible > 0) & (arrays.blocked == 0) & (arrays.overcommitted == 0)
        sizes = sorted({int(mib) for mib in np.unique(arrays.memory_capacity[0]) if mib > 0})
        return cls(
            arrays.compute[used], arrays.memory[used], arrays.memory_capacity[used], tuple(sizes) or (0,)
        )

    def by_state(self, memory_mib: tuple[int, ...], bins: int) -> Longs:
        """How many GPUs are in each state, (K, B + 1, B + 1) for K sizes of memory."""
        i = (self.compute * bins / WHOLE + 0.5).astype(np.int64).clip(0, bins)
        j = (self.memory * bins / np.maximum(self.capacity, 1) + 0.5).astype(np.int64).clip(0, bins)
        k = (np.searchsorted(memory_mib, self.capacity, "right") - 1).clip(0)
        shape = len(memory_mib), bins + 1, bins + 1
        return np.bincount(np.ravel_multi_index((k, i, j), shape), minlength=int(np.prod(shape))).reshape(
            shape
        )


_NONE = np.zeros(0, np.float32)
NO_GPUS = FreeGpus(_NONE, _NONE, _NONE, (0,))


@dataclass(frozen=True, slots=True)
class Tables:
    """The fill tables of a mix (K, B + 1, B + 1), one per size of GPU memory in ``memory_mib`` (K,), and what
    they come from: the ``demands`` (K,), the tables for ``ideal`` cuts, and the ``stock`` of GPUs.

    ``slotted`` are the requests that have slots: those of the mix, and the combinations that the ideal cuts
    consist of. Without combinations, small requests would break the GPUs that two large ones need together,
    because each of the two still fits beside them.
    """

    mix: Mix
    slotted: Mix
    memory_mib: tuple[int, ...]
    demands: tuple[FillDemand, ...]
    ideal: Doubles
    stock: Stock
    fill: Floats

    def moved(self, gpus: FreeGpus) -> float:
        """The part of these GPUs that are in another state than those for which the tables were made."""
        now = self._stock_of(gpus)
        return float(np.abs(now - self.stock).sum()) / max(1, 2 * int(now.sum()))

    def restocked(self, gpus: FreeGpus) -> Tables:
        """The tables of the same mix for the GPUs as they are now. Pure; takes some milliseconds."""
        stock = self._stock_of(gpus)
        return replace(self, stock=stock, fill=_blended(self.demands, self.ideal, stock))

    def restocks(self, other: Tables) -> bool:
        """Whether these are tables of the same plan, for another stock."""
        return self.slotted is other.slotted

    def _stock_of(self, gpus: FreeGpus) -> Longs:
        return gpus.by_state(self.memory_mib, self.fill.shape[1] - 1)


def build_tables(mix: Mix, gpus: FreeGpus, minimum_milli: int = 0) -> Tables:
    """Solve the pattern LPs of a mix for every size of GPU memory. Pure; takes some ten milliseconds."""
    sized = [(r.shares, x) for r, x in zip(mix.requests, mix.frequency, strict=True) if r.shares]
    frequency = [x for _, x in sized]
    memory_mib = gpus.sizes if any(shares.memory_mib for shares, _ in sized) else (0,)
    parts = [[_part(shares, mib) for shares, _ in sized] for mib in memory_mib]
    bins = grid([part for of_size in parts for part in of_size])
    demands = tuple(FillDemand(of_size, frequency, bins, minimum_milli) for of_size in parts)
    found = [demand.on_empty_gpus() for demand in demands]
    ideal, stock = np.stack([table for table, _ in found]), gpus.by_state(memory_mib, bins)
    numbers = stock.sum(axis=(1, 2)) / max(1, len(gpus.compute))
    combined: defaultdict[Request, float] = defaultdict(float)
    for number, (_, combinations) in zip(numbers.tolist(), found, strict=True):
        for part, x in combinations:
            combined[_combination(part, sized[0][0].resource)] += number * x
    slotted = Mix((*mix.requests, *combined), (*mix.frequency, *combined.values()))
    return Tables(mix, slotted, memory_mib, demands, ideal, stock, _blended(demands, ideal, stock))


def _blended(demands: tuple[FillDemand, ...], ideal: Doubles, stock: Stock) -> Floats:
    present = np.stack([demand.on_stock(states) for demand, states in zip(demands, stock, strict=True)])
    return ((1 - STOCK) * ideal + STOCK * present).astype(np.float32)


def _part(shares: Shares, memory_mib: int) -> Part:
    memory_milli = shares.memory_milli + WHOLE * shares.memory_mib / max(1, memory_mib)
    return Part(shares.compute_milli, memory_milli, shares.count)


def _combination(part: Part, resource: str) -> Request:
    """Room for requests that are together on one GPU. It asks for no CPU."""
    compute, memory = round(part.compute_milli), round(part.memory_milli)
    return Request(shares=Shares(1, compute, memory_milli=memory, resource=resource))
