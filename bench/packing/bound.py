"""The offline bound: the most GPU that any scheduler could allocate if it knew all arrivals in advance.

This is the node-configuration linear program (Gilmore and Gomory, 1961, for cutting stock), relaxed such that
it remains an upper bound. A pattern q is a set of requests that one node of class k (model, GPUs, CPU) can
hold; it fills L_q nodes:

    max  sum_q (sum_t v_t a_tq) L_q   subject to   sum_q a_tq L_q <= D_t,   sum_{q of k} L_q <= N_k,   L >= 0

v_t is the GPU of a request of type t, a_tq the number of them in the pattern, D_t the number of arrivals, N_k
the number of nodes of class k. Patterns are generated: with the duals pi of the first constraints, a dynamic
program over GPUs and CPU finds the best new pattern of a class, in which type t is worth v_t - pi_t. By weak
duality any pi >= 0 gives a bound,

    sum_t D_t pi_t + sum_k N_k z_k,     z_k the worth of the best pattern of class k,

so the result is a bound whenever the generation stops. It is above the true optimum because nodes may be used
fractionally, memory is left out, CPU is counted in whole units (requests rounded down), requests without GPU
take nothing, and shares of several GPUs need not be on one node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from bench.packing.bound_kernels import best_contents
from packing.fleet.arrays import Doubles, Longs
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE, Request

TOLERANCE = 1e-5
"""The generation stops when the bound is this close to the optimum over the patterns, as a fraction of the
capacity."""
_ROUNDS, _UNITS = 400, 128


@dataclass(frozen=True, slots=True, order=True)
class _Kind:
    """A request type: CPU in units, milli of each GPU, number of GPUs, and the allowed models (() for
    any)."""

    cpu: int
    milli: int
    count: int
    models: tuple[str, ...]

    @property
    def gpus(self) -> float:
        return self.count * self.milli / WHOLE


@dataclass(frozen=True, slots=True)
class _Class:
    """Nodes of one model with the same number of GPUs and units of CPU."""

    model: str | None
    gpus: int
    cpu: int


class NodeBound:
    """The bound for these nodes, all empty, and requests of these types. It keeps the patterns, so later
    calls are faster."""

    def __init__(self, nodes: Sequence[NodeSpec], requests: Iterable[Request]) -> None:
        self._unit = max(1, -(-max(node.cpu_milli for node in nodes) // _UNITS))
        counts: dict[_Class, int] = {}
        for node in nodes:
            kind = _Class(node.model, len(node.gpus), node.cpu_milli // self._unit)
            counts[kind] = counts.get(kind, 0) + 1
        self._classes = tuple(kind for kind in counts if kind.gpus)
        self._number = np.array([counts[kind] for kind in self._classes], np.float64)
        self.capacity = float(sum(kind.gpus * counts[kind] for kind in self._classes))
        self._kinds = sorted({self._kind(request)[0] for request in requests if request.shares})
        self._place = {kind: t for t, kind in enumerate(self._kinds)}
        bins = WHOLE // math.gcd(WHOLE, *(kind.milli for kind in self._kinds))
        self._gpus = np.array([kind.gpus for kind in self._kinds], np.float64)
        self._tables = {model: self._table(model, bins) for model in {kind.model for kind in self._classes}}
        self._patterns: dict[tuple[int, tuple[int, ...]], None] = {}

    def allocation(self, demand: Mapping[Request, float]) -> float:
        """The bound in GPUs; ``demand`` is the number of arrivals of each request."""
        arrived = np.zeros(len(self._kinds))
        for request, number in demand.items():
            if request.shares:
                kind, pieces = self._kind(request)
                arrived[self._place[kind]] += number * pieces
        bound = min(self.capacity, float(arrived @ self._gpus))
        for _ in range(_ROUNDS):
            optimum, duals = self._solve(arrived)
            worth, patterns = self._best_patterns(duals)
            bound = min(bound, float(arrived @ duals + self._number @ worth))
            size = len(self._patterns)
            self._patterns.update(dict.fromkeys(patterns))
            if bound - optimum <= TOLERANCE * self.capacity or len(self._patterns) == size:
                break
        return bound

    def _kind(self, request: Request) -> tuple[_Kind, int]:
        """The type of a request, and the number of pieces of that type in it."""
        shares, models = request.shares, tuple(sorted(request.models or ()))
        assert shares is not None
        if shares.count > 1 and shares.compute_milli < WHOLE:
            cpu = request.cpu_milli // shares.count // self._unit
            return _Kind(cpu, shares.compute_milli, 1, models), shares.count
        return _Kind(request.cpu_milli // self._unit, shares.compute_milli, shares.count, models), 1

    def _table(self, model: str | None, bins: int) -> _Table:
        of_model = [kind for kind in self._classes if kind.model == model]
        return _Table(self._kinds, model, bins, max(c.gpus for c in of_model), max(c.cpu for c in of_model))

    def _best_patterns(self, duals: Doubles) -> tuple[Doubles, list[tuple[int, tuple[int, ...]]]]:
        """The worth of the best pattern of each class (K,), and these patterns as (class, requests by
        type)."""
        reduced = np.maximum(self._gpus - duals, 0.0)
        for table in self._tables.values():
            table.solve(reduced)
        worth, patterns = np.zeros(len(self._classes)), []
        for k, kind in enumerate(self._classes):
            table = self._tables[kind.model]
            worth[k] = table.node[kind.gpus, kind.cpu]
            patterns.append((k, tuple(table.content(kind.gpus, kind.cpu).tolist())))
        return worth, patterns

    def _solve(self, arrived: Doubles) -> tuple[float, Doubles]:
        """The optimum over the patterns so far, in GPUs, and the duals of the requests (T,)."""
        if not self._patterns:
            return 0.0, np.zeros(len(self._kinds))
        held = np.array([pattern for _, pattern in self._patterns], np.float64)
        place = np.array([k for k, _ in self._patterns])
        nodes = np.arange(len(self._classes))[:, None] == place
        rows = np.vstack([held.T, nodes.astype(np.float64)])
        limits = np.concatenate([arrived, self._number])
        solution = linprog(-(held @ self._gpus), A_ub=rows, b_ub=limits, method="highs")
        duals = -np.asarray(solution.ineqlin.marginals)[: len(self._kinds)]
        return float(held @ self._gpus @ np.asarray(solution.x)), np.maximum(duals, 0.0)


class _Table:
    """The best contents of nodes of one model, by GPUs and units of CPU: the tables of ``best_contents``."""

    def __init__(self, kinds: Sequence[_Kind], model: str | None, bins: int, gpus: int, cpu: int) -> None:
        self._allowed = np.array([not kind.models or model in kind.models for kind in kinds], np.float64)
        self._cpu = np.array([kind.cpu for kind in kinds], np.int64)
        self._size = np.array([kind.milli * bins // WHOLE for kind in kinds], np.int64)
        self._count = np.array([kind.count for kind in kinds], np.int64)
        self._gpu = np.zeros((bins + 1, cpu + 1))
        self._pick_gpu = np.zeros((bins + 1, cpu + 1), np.int64)
        self.node = np.zeros((gpus + 1, cpu + 1))
        self._pick_node = np.zeros((gpus + 1, cpu + 1), np.int64)

    def solve(self, worth: Doubles) -> None:
        """Fill the tables for types of this ``worth`` (T,)."""
        best_contents(
            self._cpu, self._size, self._count, worth * self._allowed,
            self._gpu, self._pick_gpu, self.node, self._pick_node,
        )  # fmt: skip

    def content(self, gpus: int, cpu: int) -> Longs:
        """The requests by type (T,) on the best node with this many GPUs and units of CPU."""
        held = np.zeros(self._cpu.size, np.int64)
        while gpus:
            t = int(self._pick_node[gpus, cpu])
            if t >= 0:
                held[t] += 1
                gpus, cpu = gpus - int(self._count[t]), cpu - int(self._cpu[t])
            else:
                gpus, cpu = gpus - 1, cpu - (-1 - t)
                self._add_gpu_of_shares(-1 - t, held)
        return held

    def _add_gpu_of_shares(self, cpu: int, held: Longs) -> None:
        left = len(self._gpu) - 1
        while (t := int(self._pick_gpu[left, cpu])) >= 0:
            held[t] += 1
            left, cpu = left - int(self._size[t]), cpu - int(self._cpu[t])
