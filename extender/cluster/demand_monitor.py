"""What pods ask for, as figures: the mix by size, how far it has moved, CPU and memory beside a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from extender.cluster.gpu_amounts import GpuAmounts
from packing.cost.demand import MOST_TYPES, Demand, Mix
from packing.fleet.fleet import Fleet
from packing.fleet.stranded import Beside
from packing.model.request import Request

SIZES = ("part", "1", "2", "3-4", "5-8", "9 or more")
"""GPUs that a pod asks for; ``part``: less than one, as a share, a replica or a MIG instance."""


class DemandMonitor:
    """Counts the requests that the policy learns from, with the same half-life, whatever the policy does with
    them: ``demand``."""

    def __init__(self, fleet: Fleet) -> None:
        self.demand = Demand()
        self._expected: dict[Request, float] = {}
        self._planned: dict[Request, float] = {}
        self._now: tuple[int, dict[Request, float]] = -1, {}
        self._amounts = GpuAmounts(fleet)

    def expect(self, prior: Mix | None) -> None:
        """The demand of the settings, None for none."""
        if prior is not None:
            self.demand = Demand(prior=prior)
            self._expected = _shares(self.demand.counts())
            self._now = -1, {}

    def observe(self, request: Request) -> None:
        self.demand.observe(request)

    def planned(self) -> None:
        """The policy plans with the demand as it is now."""
        self._planned = self._shares_now()

    @property
    def moved_since_plan(self) -> float:
        """How far the mix has moved since the last plan, from 0 to 1: half the sum of the differences."""
        return distance(self._shares_now(), self._planned) if self._planned else 0.0

    @property
    def moved_since_settings(self) -> float | None:
        """The same since the demand of the settings; None where they have none."""
        return distance(self._shares_now(), self._expected) if self._expected else None

    def by_size(self) -> dict[str, float]:
        """The part of the pods that ask for so many GPUs, for each of ``SIZES``; 0 before the first pod."""
        sums = dict.fromkeys(SIZES, 0.0)
        for request, share in self._shares_now().items():
            sums[size_of(self._amounts.of(request))] += share
        return sums

    def beside(self) -> Beside:
        """The CPU and host memory that pods ask for beside one GPU, on average."""
        gpus = cpu = memory = 0.0
        for request, share in self._shares_now().items():
            gpus += share * self._amounts.of(request)
            cpu += share * request.cpu_milli
            memory += share * request.memory_mib
        return Beside(cpu / gpus, memory / gpus) if gpus else Beside()

    def _shares_now(self) -> dict[Request, float]:
        if self._now[0] != self.demand.seen:
            self._now = self.demand.seen, _shares(self.demand.counts())
        return self._now[1]


def distance(one: Mapping[Request, float], other: Mapping[Request, float]) -> float:
    """The total variation distance of two distributions."""
    return sum(abs(one.get(kind, 0.0) - other.get(kind, 0.0)) for kind in one.keys() | other.keys()) / 2


def size_of(gpus: float) -> str:
    """The one of ``SIZES``."""
    if gpus < 1:
        return "part"
    limits = zip((1, 2, 4, 8), SIZES[1:], strict=False)
    return next((size for limit, size in limits if gpus <= limit), SIZES[-1])


@lru_cache(maxsize=MOST_TYPES)
def _kind(request: Request) -> Request:
    """Requests that differ only in the set of nodes count as one, and memory in steps of GiB."""
    gib = -(-request.memory_bytes >> 30)
    return replace(request, memory_bytes=gib << 30, node_set=None)


def _shares(counts: Mapping[Request, float]) -> dict[Request, float]:
    """The part of each kind of request."""
    total, shares = sum(counts.values()), dict[Request, float]()
    for request, count in counts.items():
        kind = _kind(request)
        shares[kind] = shares.get(kind, 0.0) + count / total
    return shares
