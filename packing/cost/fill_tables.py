"""The fill tables of a mix for a fleet: the value of the free part of a GPU.

Filling GPUs is a cutting-stock problem (Gilmore and Gomory, 1961). A pattern is a multiset of requests that
fit together into the free part of one GPU. With x_t requests of type t served, and y_ps GPUs in state s cut
by pattern p:

    max  sum_t v_t x_t    subject to   x_t <= d_t,   x_t <= sum_ps p_t y_ps,   sum_p y_ps <= n_s

v_t is the GPU of one request, d_t the demand and n_s the number of GPUs in state s; a state is a free amount
of compute and memory. Patterns may be used fractionally. The duals w_t of the second rows are the worth of a
request as a filler: v_t for rare ones, 0 for abundant ones. The best pattern for a state at these worths is a
knapsack, which generates the columns.

The LP for a mix that arrives at ``OVERLOAD`` times the capacity yields the worth of each request type. The
value of a GPU with s free is that of the best pattern that fits in s:

    phi(s) = max over patterns p that fit in s of sum_t p_t w_t

A table is the mean of the values for ideally cut GPUs and for the GPUs in their present state. Fill for ideal
cuts prices a fleet that is cut by the best patterns, regardless of the stock. Fill for the stock alone
assumes that the future demand is just what fills the free space. The mean of both loses nothing on any trace.

Re-solving repeatedly for the present state has a regret that does not grow with the number of arrivals: Jasin
and Kumar, "A Re-solving Heuristic with Bounded Revenue Loss for Network Revenue Management", 2012; Vera and
Banerjee, "The Bayesian Prophet", 2019; Bumpensanti and Wang, "A Re-solving Heuristic with Uniformly Bounded
Loss for Network Revenue Management", 2020.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from packing.cost.demand import Mix
from packing.cost.knapsack_kernels import knapsack
from packing.fleet.arrays import Doubles, Floats, Longs
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request, Shares

_ROUNDS = 200
_TOLERANCE = 1e-7


class Filling(NamedTuple):
    """The ``worth`` (T,) of each type, the best worth by free compute and memory as ``table``
    (B + 1, B + 1), and the ``patterns`` (P, T) with the number of GPUs ``used`` (P,) that are cut by each."""

    worth: Doubles
    table: Doubles
    patterns: Longs
    used: Doubles


def fill_stock(
    sizes: Longs,
    values: Doubles,
    demand: Doubles,
    bins: int,
    states: Longs,
    numbers: Doubles,
) -> Filling:
    """Solve the pattern LP by column generation.

    ``sizes`` (T, 2) in bins, ``values`` (T,) in GPUs, ``demand`` (T,) requests; ``states`` (S, 2) free bins
    and ``numbers`` (S,) of GPUs.
    """
    table = np.zeros((bins + 1, bins + 1))
    pick = np.empty((bins + 1, bins + 1), np.int64)
    at = states[:, 0], states[:, 1]
    worth, per_gpu = np.where(demand > 0, values, 0.0), np.zeros(len(states))
    columns: dict[tuple[int, bytes], Longs] = {}
    used = np.zeros(0)
    for _ in range(_ROUNDS):
        knapsack(sizes, worth, table, pick)
        better = np.flatnonzero(table[at] > per_gpu + _TOLERANCE)
        known = len(columns)
        for s in better.tolist():
            pattern = _pattern(pick, sizes, *states[s])
            columns.setdefault((s, pattern.tobytes()), pattern)
        if len(columns) == known:  # nothing is better, or only by less than the solver's tolerance
            break
        worth, per_gpu, used = _solve(list(columns), list(columns.values()), values, demand, numbers)
    patterns = np.array(list(columns.values()), np.int64).reshape(-1, len(sizes))
    return Filling(worth, table, patterns, used)


def _solve(
    keys: list[tuple[int, bytes]],
    patterns: list[Longs],
    values: Doubles,
    demand: Doubles,
    numbers: Doubles,
) -> tuple[Doubles, Doubles, Doubles]:
    """The LP over these columns: the worth of each type, the value of a GPU in each state, and the use of
    each column."""
    from scipy.optimize import linprog  # half a second, which commands that learn no mix do not spend

    kinds, columns = len(values), len(keys)
    held = np.array(patterns)
    column, kind = np.nonzero(held)
    matrix = np.zeros((kinds + len(numbers), kinds + columns))
    matrix[np.arange(kinds), np.arange(kinds)] = 1.0
    matrix[kind, kinds + column] = -held[column, kind].astype(np.float64)
    matrix[[kinds + s for s, _ in keys], kinds + np.arange(columns)] = 1.0
    upper = np.concatenate([demand, np.full(columns, np.inf)])
    bounds = np.column_stack([np.zeros(upper.size), upper])
    gains = np.concatenate([-values, np.zeros(columns)])
    solution = linprog(  # type: ignore[call-overload]  # its stubs know no bounds as an array
        gains, matrix, np.concatenate([np.zeros(kinds), numbers]), bounds=bounds, method="highs"
    )
    duals = -np.asarray(solution.ineqlin.marginals)
    return duals[:kinds].clip(0.0, values), duals[kinds:], np.asarray(solution.x)[kinds:]


def _pattern(pick: Longs, sizes: Longs, i: int, j: int) -> Longs:
    pattern = np.zeros(len(sizes), np.int64)
    while (t := pick[i, j]) >= 0:
        pattern[t] += 1
        i, j = i - sizes[t, 0], j - sizes[t, 1]
    return pattern


OVERLOAD = 1.01
"""Arrivals in the LP as a multiple of capacity: slightly more than fits, so that the LP has to choose. With a
larger value it plans for the best requests only, although the others arrive too. On the two-dimensional mixes
1.03 is 0.1 points worse, 1.5 is 0.7 worse, and 0.95 is 0.3 worse. Of the openb traces only multigpu40 and
multigpu50 are sensitive to it, and gain up to 0.1 over 1.1."""
_FINEST = 128
_MOST_STATES = 256
"""Maximum number of GPU states in the LP; those with the least free GPU in total are left out."""

Stock = Longs
"""Number of GPUs by free amount, (B + 1, B + 1) over bins of compute and memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one GPU that a request takes: thousandths of its compute and memory, and the number of such
    parts."""

    compute_milli: float
    memory_milli: float
    count: int = 1

    @property
    def gpu(self) -> float:
        return (self.compute_milli + self.memory_milli) / 2000


def grid(parts: Sequence[Part]) -> int:
    """Bins per axis: exact if all sizes share a unit of at least 1/128 GPU, else 100."""
    sizes = [round(size) for part in parts for size in (part.compute_milli, part.memory_milli)]
    unit = math.gcd(1000, *sizes)
    return 1000 // unit if 1000 // unit <= _FINEST else 100


class FillDemand:
    """The shares of a mix on GPUs of one memory size; ``parts`` are their amounts of one GPU. ``frequency``
    is that of the requests; a request of k parts contributes k of them. The rest of a GPU with less than
    ``minimum_milli`` of compute or memory has no value."""

    def __init__(
        self, parts: Sequence[Part], frequency: Sequence[float], bins: int, minimum_milli: int = 0
    ) -> None:
        self.bins = bins
        self._sizes, self._values, self._arrivals = _by_size(parts, frequency, bins)
        self._per_arrival = float(self._arrivals @ self._values)
        self._least = math.ceil(minimum_milli * bins / 1000)

    def on_empty_gpus(self) -> tuple[Doubles, list[tuple[Part, float]]]:
        """phi for ideally cut GPUs as a table (bins + 1, bins + 1) over free compute and memory, in GPUs; and
        the combinations of two or more parts in the optimal patterns, with their frequency."""
        if not self._sizes.size:
            return self._no_value(), []
        found = self._fill(np.full((1, 2), self.bins), np.ones(1))
        return self._usable(found.table), self._combinations(found)

    def on_stock(self, stock: Stock) -> Doubles:
        """phi for GPUs in these states. The demand is the amount that would fill the free space."""
        states = np.argwhere(stock)
        numbers = stock[tuple(states.T)].astype(np.float64)
        if len(states) > _MOST_STATES:
            kept = np.sort(np.argsort(-numbers * states.mean(axis=1), kind="stable")[:_MOST_STATES])
            states, numbers = states[kept], numbers[kept]
        if not (self._sizes.size and states.any()):
            return self._no_value()
        return self._usable(self._fill(states, numbers).table)

    def _fill(self, states: Longs, numbers: Doubles) -> Filling:
        free = float(numbers @ states.mean(axis=1)) / self.bins
        demand = OVERLOAD * free * self._arrivals / self._per_arrival
        return fill_stock(self._sizes, self._values, demand, self.bins, states, numbers)

    def _combinations(self, found: Filling) -> list[tuple[Part, float]]:
        combined = []
        for pattern, used in zip(found.patterns, found.used, strict=True):
            if used > 1e-6 and pattern.sum() > 1:
                compute, memory = (pattern @ self._sizes * 1000 / self.bins).tolist()
                combined.append((Part(compute, memory), float(used) * self._per_arrival / OVERLOAD))
        return combined

    def _usable(self, table: Doubles) -> Doubles:
        table[: self._least], table[:, : self._least] = 0.0, 0.0
        return table

    def _no_value(self) -> Doubles:
        return np.zeros((self.bins + 1, self.bins + 1))


def _by_size(parts: Sequence[Part], frequency: Sequence[float], bins: int) -> tuple[Longs, Doubles, Doubles]:
    """Distinct sizes in bins (at least one), their values in GPUs, and their frequency."""
    arrivals: defaultdict[tuple[int, int], float] = defaultdict(float)
    weighed: defaultdict[tuple[int, int], float] = defaultdict(float)
    for part, x in zip(parts, frequency, strict=True):
        size = _bins(part.compute_milli, bins), _bins(part.memory_milli, bins)
        if max(size) <= bins and max(size) > 0:
            arrivals[size] += x * part.count
            weighed[size] += x * part.count * part.gpu
    ordered = sorted(arrivals)
    counts = np.array([arrivals[size] for size in ordered])
    values = np.array([weighed[size] / arrivals[size] for size in ordered])
    return np.array(ordered, np.int64).reshape(-1, 2), values, counts


def _bins(milli: float, bins: int) -> int:
    return max(1, round(milli * bins / 1000)) if milli > 0 else 0


STOCK = 0.5
"""Weight of the fill for the GPUs in their present state."""


class FreeGpus(NamedTuple):
    """The divisible GPUs of open nodes: free compute milli, free and total MiB of memory, each (F,); and the
    distinct memory sizes of the fleet's GPUs, ascending."""

    compute: Floats
    memory: Floats
    capacity: Floats
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, fleet: Fleet) -> FreeGpus:
        """A copy of the fleet's present state."""
        arrays = fleet.arrays
        used = (arrays.divisible > 0) & (arrays.blocked == 0) & (arrays.overcommitted == 0)
        sizes = sorted({int(mib) for mib in np.unique(arrays.memory_capacity[0]) if mib > 0})
        return cls(
            arrays.compute[used], arrays.memory[used], arrays.memory_capacity[used], tuple(sizes) or (0,)
        )

    def by_state(self, memory_mib: tuple[int, ...], bins: int) -> Longs:
        """Number of GPUs in each state, (K, B + 1, B + 1) for K memory sizes."""
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
    """The fill tables of a mix (K, B + 1, B + 1), one per GPU memory size in ``memory_mib`` (K,), and their
    inputs: the ``demands`` (K,), the tables for ``ideal`` cuts, and the ``stock`` of GPUs.

    ``slotted`` are the requests that have slots: those of the mix, and the combinations in the ideal cuts.
    Without combinations, small requests would fragment the GPUs that two large ones could share, because each
    of the large ones alone still fits next to them.
    """

    mix: Mix
    slotted: Mix
    memory_mib: tuple[int, ...]
    demands: tuple[FillDemand, ...]
    ideal: Doubles
    stock: Stock
    fill: Floats

    def moved(self, gpus: FreeGpus) -> float:
        """The fraction of these GPUs whose state differs from the one for which the tables were built."""
        now = self._stock_of(gpus)
        return float(np.abs(now - self.stock).sum()) / max(1, 2 * int(now.sum()))

    def restocked(self, gpus: FreeGpus) -> Tables:
        """The tables of the same mix for the present state of the GPUs. Pure; takes a few milliseconds."""
        stock = self._stock_of(gpus)
        return replace(self, stock=stock, fill=_blended(self.demands, self.ideal, stock))

    def restocks(self, other: Tables) -> bool:
        """Whether these tables belong to the same plan, for another stock."""
        return self.slotted is other.slotted

    def _stock_of(self, gpus: FreeGpus) -> Longs:
        return gpus.by_state(self.memory_mib, self.fill.shape[1] - 1)


def build_tables(mix: Mix, gpus: FreeGpus, minimum_milli: int = 0) -> Tables:
    """Solve the pattern LPs of a mix for every GPU memory size. Pure; takes tens of milliseconds."""
    sized = [(r.shares, x) for r, x in zip(mix.requests, mix.frequency, strict=True) if r.shares]
    frequency = [x for _, x in sized]
    memory_mib = gpus.sizes if any(shares.memory_mib for shares, _ in sized) else (0,)

    def part_of(shares: Shares, mib: int) -> Part:
        memory_milli = shares.memory_milli + WHOLE * shares.memory_mib / max(1, mib)
        return Part(shares.compute_milli, memory_milli, shares.count)

    parts = [[part_of(shares, mib) for shares, _ in sized] for mib in memory_mib]
    bins = grid([part for of_size in parts for part in of_size])
    demands = tuple(FillDemand(of_size, frequency, bins, minimum_milli) for of_size in parts)
    found = [demand.on_empty_gpus() for demand in demands]
    ideal, stock = np.stack([table for table, _ in found]), gpus.by_state(memory_mib, bins)
    numbers = stock.sum(axis=(1, 2)) / max(1, len(gpus.compute))
    combined: defaultdict[Request, float] = defaultdict(float)
    for number, (_, combinations) in zip(numbers.tolist(), found, strict=True):
        for part, x in combinations:
            compute, memory = round(part.compute_milli), round(part.memory_milli)
            on_one_gpu = Shares(1, compute, memory_milli=memory, resource=sized[0][0].resource)
            combined[Request(shares=on_one_gpu)] += number * x
    slotted = Mix((*mix.requests, *combined), (*mix.frequency, *combined.values()))
    return Tables(mix, slotted, memory_mib, demands, ideal, stock, _blended(demands, ideal, stock))


def _blended(demands: tuple[FillDemand, ...], ideal: Doubles, stock: Stock) -> Floats:
    present = np.stack([demand.on_stock(states) for demand, states in zip(demands, stock, strict=True)])
    return ((1 - STOCK) * ideal + STOCK * present).astype(np.float32)
