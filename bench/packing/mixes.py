"""Replay of a request mix on GPUs alone: fills without departures, or arrivals with departures.

Requests are shares of (compute, memory) or MIG profiles. A fill draws from the mix until compute or memory
adds up to ``load`` x the GPUs. With departures, arrivals are Poisson and durations exponential with mean 1,
at that offered load; a request that does not fit is lost, and the first quarter of the time is not counted.
Equal seeds produce equal arrivals.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.packing.filling import build_fleet
from bench.packing.mig import ProfileMix
from bench.packing.pattern_bounds import bound
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES
from packing.cost.demand import Mix
from packing.fleet.arrays import Doubles, Longs
from packing.fleet.node_usage import Allocation
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import WHOLE, Request, Shares

DURATIONS = 12
"""Length of a replay with departures, in mean durations."""


@dataclass(frozen=True, slots=True)
class ShareMix:
    """Requests (T, 2) in units of 1 / ``unit`` of one GPU's compute and memory, and their frequency (T,).

    Optional: ``count`` (T,), the number of GPUs of which each takes this share, its CPU milli ``cpu`` (T,),
    and the ``node_gpus`` and ``node_cpu`` of one node. The number of GPUs is a multiple of ``node_gpus``.
    """

    name: str
    sizes: Longs
    frequency: Doubles
    unit: int
    gpus: int = 300
    count: Longs | int = 1
    cpu: Longs | int = 0
    node_gpus: int = 1
    node_cpu: int = 0

    @property
    def axes(self) -> Doubles:
        """The compute and memory of a request, in GPUs, (T, 2)."""
        parts = np.broadcast_to(self.count, len(self.sizes))
        return np.asarray(self.sizes * parts[:, None] / self.unit)

    def host(self, policy: str) -> ShareGpus:
        """Empty GPUs under this policy, which knows the mix."""
        return ShareGpus(self, policy)

    def bound(self, counts: Longs) -> float:
        """Upper bound, in GPUs, on the allocation of any packing of ``counts`` (T,) requests: the pattern LP,
        in which the shares of a request need not be on one node, and the nodes pool their CPU."""
        empty = np.full((1, 2), self.unit)
        parts = np.broadcast_to(self.count, len(self.sizes))
        cpu = self.cpu / parts, float(self.node_cpu * self.gpus // self.node_gpus)
        values, number = self.sizes.mean(axis=1) / self.unit, np.array([float(self.gpus)])
        return bound(self.sizes, values, counts * parts, self.unit, empty, number, *cpu)


Work = ShareMix | ProfileMix
"""A request mix and its number of GPUs."""


class ShareGpus:
    """GPUs as nodes of one GPU each, with the fleet and policies that serve a cluster."""

    def __init__(self, mix: ShareMix, policy: str) -> None:
        self._requests = _requests(mix)
        gpus = (Gpu(WHOLE, divisible=True),) * mix.node_gpus
        number = mix.gpus // mix.node_gpus
        nodes = [NodeSpec(f"node-{i}", mix.node_cpu, 0, gpus) for i in range(number)]
        known = Mix(tuple(self._requests), tuple(mix.frequency.tolist()))
        self._fleet = build_fleet(nodes)
        picker = NodePicker(np.arange(number))
        self._placer = Placer(self._fleet, POLICIES[policy](known), picker, learns=False)

    def place(self, kind: int) -> Allocation | None:
        self._placer.arrive(self._requests[kind])
        return self._placer.place(self._requests[kind])

    def leave(self, held: object) -> None:
        assert isinstance(held, Allocation)
        self._fleet.give_back(held)


def _requests(mix: ShareMix) -> list[Request]:
    kinds = len(mix.sizes)
    milli = (WHOLE * mix.sizes // mix.unit).tolist()
    counts, cpu = np.broadcast_to(mix.count, kinds).tolist(), np.broadcast_to(mix.cpu, kinds).tolist()
    return [
        Request(cpu_milli=c, shares=Shares(k, compute, memory_milli=memory))
        for (compute, memory), k, c in zip(milli, counts, cpu, strict=True)
    ]


def fill_mix(work: Work, policy: str, *, load: float, seed: int) -> dict[str, float]:
    """Allocated GPU and accepted requests, both in percent, and the bound on the former."""
    kinds = _draws(work, load, np.random.default_rng(seed))
    host = work.host(policy)
    taken = np.array([host.place(kind) is not None for kind in kinds])
    allocation = work.axes[kinds[taken]].mean(axis=1).sum() / work.gpus
    bound = work.bound(np.bincount(kinds, minlength=len(work.frequency))) / work.gpus
    return {
        "allocation": round(100 * float(allocation), 3),
        "accepted": round(100 * float(taken.mean()), 3),
        "bound": round(100 * bound, 3),
    }


def serve_mix(work: Work, policy: str, *, load: float, seed: int) -> dict[str, float]:
    """Accepted GPU and requests, in percent of the offered ones; they end again."""
    host = work.host(policy)
    offered, accepted, arrived, served = 0.0, 0.0, 0, 0
    leaving: list[tuple[float, int, object]] = []
    for i, (now, kind, duration) in enumerate(_stream(work, load, np.random.default_rng(seed))):
        while leaving and leaving[0][0] <= now:
            host.leave(heapq.heappop(leaving)[2])
        held = host.place(kind)
        if held is not None:
            heapq.heappush(leaving, (now + duration, i, held))
        if now >= DURATIONS / 4:
            gpu = float(work.axes[kind].mean())
            offered, arrived = offered + gpu, arrived + 1
            accepted, served = accepted + gpu * (held is not None), served + (held is not None)
    return {"allocation": round(100 * accepted / offered, 3), "accepted": round(100 * served / arrived, 3)}


def _draws(work: Work, load: float, rng: np.random.Generator) -> Longs:
    """Types drawn from the mix until compute or memory adds up to load x GPUs."""
    mean = float(work.frequency @ work.axes.max(axis=1))
    drawn = rng.choice(len(work.frequency), size=int(2 * load * work.gpus / mean) + 100, p=work.frequency)
    total = work.axes[drawn].cumsum(axis=0).max(axis=1)
    return drawn[: int(np.searchsorted(total, load * work.gpus)) + 1]


def _stream(work: Work, load: float, rng: np.random.Generator) -> Iterator[tuple[float, int, float]]:
    """(time, type, duration) of each arrival."""
    rate = load * work.gpus / float((work.frequency @ work.axes).max())
    now = 0.0
    while (now := now + rng.exponential(1 / rate)) < DURATIONS:
        yield now, int(rng.choice(len(work.frequency), p=work.frequency)), float(rng.exponential())
