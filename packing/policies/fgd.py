"""Fragmentation gradient descent: where the expected unusable GPU grows least.

Weng et al., "Beware of Fragmentation" (USENIX ATC 2023). For a mix of request types with frequencies x_t, a
node's unusable GPU is F = sum_t x_t F_t, where F_t is all its free GPU if type t cannot run there (or wants
none), and else the free GPU on GPUs too small for one of its shares. As their simulator has it: score =
int(100 / (1 + exp(rise of F))), a single share takes the GPU with the best score, and integers make ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from packing.cost.cost_cache import CostCache, gpus_in
from packing.cost.demand import Demand, Mix, by_pods
from packing.cost.kernel_args import CachedCost
from packing.cost.slots import mix_types
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.jit import checked
from packing.model.request import ANY, WHOLE, Request
from packing.policies.fgd_kernels import MixWeights, fgd_cost
from packing.policies.gpu_choice import tightest
from packing.policies.node_sums import free_parts


class Fgd:
    """See the module's docstring. Without a known ``mix`` it is learnt from ``observe``.

    ``minimum_milli`` is ignored: what no type can use is waste anyway.
    """

    name = "fgd"

    def __init__(
        self, mix: Mix | None = None, demand: Demand | None = None, *, minimum_milli: int = 0
    ) -> None:
        self._mix = mix
        self._demand = demand or Demand()
        self._kept = CostCache()
        self._tables = Mix((), ())
        self._against: _Against | None = None

    def observe(self, request: Request) -> None:
        """Learn from an arrival."""
        self._demand.observe(request)

    def plan(self, fleet: Fleet) -> Callable[[], Mix]:
        """See ``Policy.plan``: the mix is all it needs."""
        mix = self._mix or self._demand.mix([by_pods])
        return lambda: mix

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """Use another mix from now on."""
        assert isinstance(tables, Mix)
        against = _Against(fleet, tables)  # where that fails the old ones stay in force
        self._tables, self._against = tables, against
        self._kept.forget()

    def refresh(self, fleet: Fleet) -> None:
        """See ``Policy.refresh``: there are no prices."""

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Policy.cost``."""
        return self._row(fleet, request).cost

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPU with the best score; for several, or where GPUs are named, the tightest that fit."""
        if request.uuids is not ANY:
            return tightest(fleet, request, row)
        return gpus_in(int(self._row(fleet, request).gpus[row]))

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """See ``Policy.terms``: the rise in GPUs, of which the cost is a rounded function."""
        return {"unusable GPU": float(self._row(fleet, request).terms[0, row])}

    def _row(self, fleet: Fleet, request: Request) -> CachedCost:
        if (kept := self._kept.current(fleet, request)) is not None:
            return kept
        if self._against is None or self._against.layout != fleet.layout:
            self.adopt(fleet, self._tables)
        cached, nodes, args = self._kept.outdated(fleet, request)
        against = self._against
        assert against is not None
        fgd_cost(cached, nodes, args, against.types, against.weights)
        return cached


class _Against:
    """A mix against a fleet."""

    def __init__(self, fleet: Fleet, mix: Mix) -> None:
        self.layout = fleet.layout
        self.types = mix_types(fleet, mix.requests)
        gpu = np.zeros((5, len(fleet.arrays.compute)), np.float32)
        self.weights = checked(MixWeights(np.array(mix.frequency, np.float32), gpu))


def unusable_gpu(fleet: Fleet, mix: Mix) -> float:
    """Expected free GPU, in GPUs, that the next request of the mix cannot use: F summed over the nodes."""
    parts = free_parts(fleet)
    free = parts.sum(axis=0)
    expected = 0.0
    for request, frequency in zip(mix.requests, mix.frequency, strict=True):
        part = request.shares
        able = reasons_for(fleet, replace(request, memory_bytes=0)) == 0
        crumbs = np.where(parts + 1e-6 >= part.compute_milli / WHOLE, 0, parts).sum(axis=0) if part else free
        expected += frequency * float(np.where(able, crumbs, free).sum())
    return expected
