"""Additional policies for the comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bench.packing.published.dot_product import DotProduct
from bench.packing.published.fgd import Fgd
from bench.packing.published.gpu_clustering import GpuClustering
from bench.packing.published.gpu_packing import GpuPacking
from bench.packing.published.least_squares import LeastSquares
from packing.cost.demand import MEASURES, Demand, Mix, by_pods
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.placement import fitting_with_free_part, freest
from packing.model.request import Request
from packing.policies.baselines import Baseline, largest_node
from packing.policies.interface import Policy
from packing.policies.registry import POLICIES as SERVICE_POLICIES


class FirstFit(Baseline):
    """The first node in a fixed order where the request fits."""

    name = "first-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        return np.zeros(fleet.arrays.capacity, np.float32)


class Tightest(Baseline):
    """The node with the least free GPU; among equals, the one with the least free CPU."""

    name = "tightest"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        cpu_max, _ = largest_node(fleet)
        free: Floats = fleet.arrays.free_parts().sum(axis=0) + fleet.arrays.cpu / (1000 * cpu_max)
        return free


class WorstFit(Baseline):
    """The node with the most free GPU, and its freest GPU: the opposite of packing."""

    name = "worst-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        free: Floats = fleet.arrays.free_parts().sum(axis=0)
        return -free

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        return freest(fleet, request, row)


class Random(Baseline):
    """A random fitting node and a random fitting GPU, seeded by the state of the fleet so that runs are
    reproducible."""

    name = "random"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        seed = int(fleet.arrays.generation.sum())
        return np.random.default_rng(seed).random(fleet.arrays.capacity, np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        gpus = [gpu for _, gpu in fitting_with_free_part(fleet, request, row)]
        count = len(freest(fleet, request, row))
        drawn = np.random.default_rng(int(fleet.arrays.generation.sum()) + 1).permutation(gpus)[:count]
        return tuple(int(gpu) for gpu in drawn)


_MORE: tuple[type[Baseline], ...] = (
    *(DotProduct, LeastSquares, GpuPacking, GpuClustering),
    *(FirstFit, Tightest, WorstFit, Random),
)
POLICIES: dict[str, Callable[..., Policy]] = {
    **SERVICE_POLICIES,
    "fgd": lambda mix=None, *, prior=None, **_: Fgd(mix, Demand(prior=prior)),
    **{one.name: lambda mix=None, one=one: one() for one in _MORE},
}
"""Name -> function that creates the policy, with a known mix or None."""


def known_mix(policy: str, counts: Mapping[Request, float]) -> Mix:
    """The mix for a policy that knows the trace, with the types that it would learn."""
    return Mix.of(counts, [by_pods] if policy == "fgd" else MEASURES)
