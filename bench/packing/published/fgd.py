"""Fragmentation gradient descent (FGD): prefer the node where the expected unusable GPU grows least.

Weng et al., "Beware of Fragmentation" (USENIX ATC 2023). For a mix of request types with frequencies x_t, a
node's unusable GPU is F = sum_t x_t F_t, where F_t is all its free GPU if type t cannot run there (or
requests none), and otherwise the free GPU on GPUs too small for one of its shares. As in their simulator,
score = int(100 / (1 + exp(rise of F))), which causes ties, and a single share takes the GPU with the best
score.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bench.packing.published.fgd_kernels import MixWeights, fgd_cost
from packing.cost.demand import Demand, Mix, by_pods
from packing.cost.kernel_args import GPU_ROWS, CachedCost, mix_types
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.permitted import permitted_on
from packing.fleet.placement import tightest
from packing.jit import checked
from packing.model.request import Request
from packing.policies.interface import Due, Solve
from packing.policies.inventory import CostCache, gpus_in


class Fgd:
    """The policy of the module's docstring. If no ``mix`` is given, ``demand`` learns it."""

    name = "fgd"

    def __init__(self, mix: Mix | None = None, demand: Demand | None = None) -> None:
        self._mix = mix
        self._demand = demand or Demand()
        self._cache = CostCache()
        self._planned = Mix((), ())
        self._fleet_mix: _FleetMix | None = None

    def observe(self, request: Request) -> None:
        self._demand.observe(request)

    def update(self, fleet: Fleet, due: Due) -> Solve | None:
        """Update the mix; FGD has no prices."""
        if due is Due.PRICES:
            return None
        mix = self._mix or self._demand.mix([by_pods], fleet.names.known_set)
        return lambda: partial(self._adopt, fleet, mix)

    def _adopt(self, fleet: Fleet, mix: Mix) -> None:
        fleet_mix = _FleetMix(fleet, mix)  # if this raises, the old mix is kept
        self._planned, self._fleet_mix = mix, fleet_mix
        self._cache.forget()

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        return self._costs(fleet, request).cost

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPU with the best score; the tightest if the request may not have it."""
        best = gpus_in(int(self._costs(fleet, request).gpus[row]))
        return best if permitted_on(fleet, request, row).issuperset(best) else tightest(fleet, request, row)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """The increase of the unusable GPU, from which the score is computed."""
        return {"unusable GPU": float(self._costs(fleet, request).terms[0, row])}

    def _costs(self, fleet: Fleet, request: Request) -> CachedCost:
        if (cached := self._cache.current(fleet, request)) is not None:
            return cached
        if self._fleet_mix is None or self._fleet_mix.layout != fleet.layout:
            self._adopt(fleet, self._planned)
        cached, nodes, args = self._cache.outdated(fleet, request)
        fleet_mix = self._fleet_mix
        assert fleet_mix is not None
        fgd_cost(cached, nodes, args, fleet_mix.types, fleet_mix.weights)
        return cached


class _FleetMix:
    """The types of a mix as kernel arguments for one fleet."""

    def __init__(self, fleet: Fleet, mix: Mix) -> None:
        self.layout = fleet.layout
        self.types = mix_types(fleet, mix.requests)
        gpu = np.zeros((GPU_ROWS, len(fleet.arrays.compute)), np.float32)
        self.weights = checked(MixWeights(np.array(mix.frequency, np.float32), gpu))
