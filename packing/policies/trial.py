"""Which weights of the terms suit a mix: simulated arrivals decide.

``FIRST`` is best on the traces of real clusters. Some mixes need other weights: where CPU runs out, fill
keeps GPUs for requests that would fill their rest though the node lacks the CPU for them, stranding opens
empty nodes that large jobs need, and slots of large jobs cost too little. No formula is known that tells
these mixes apart. So the mix arrives, in simulation, at a small part of the fleet, empty, under each choice
of weights. If pods leave the fleet, they leave the simulation, too; if not, they stay. This is the rollout of
approximate dynamic programming (Bertsekas, Tsitsiklis and Wu, "Rollout Algorithms for Combinatorial
Optimization", 1997), not for each decision but for the policy as a whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from packing.cost.demand import Mix
from packing.cost.slots import SCARCITY, Sizes
from packing.fleet.arrays import Doubles, Floats
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.gpu_catalogue import GpuValues
from packing.model.node_spec import NodeSpec
from packing.model.request import SeparateGpus
from packing.policies.interface import Pause, Policy, no_pause
from packing.policies.placer import Placer


class TermWeights(NamedTuple):
    """The weights of the terms fill and stranding, and in the price of a slot the power of the request's
    size."""

    fill: float
    stranding: float
    size: float


FIRST = TermWeights(8.0, 1.1, 1.0)
"""Found on six traces together with ``slots.SCARCITY``, and on random mixes."""
OTHERS = (
    TermWeights(8.0, 1.1, SCARCITY),
    TermWeights(3.0, 0.4, SCARCITY),
    TermWeights(0.0, 0.0, SCARCITY),
    TermWeights(0.0, 0.0, 1.0),
)
"""One of them was best on each of twelve random mixes that ``FIRST`` packs worst."""
CLEARLY = 0.002
"""How much more other weights must place: of the GPUs or, where pods leave, of what is asked for."""
LOAD = 1.1
"""GPU that arrives, as a multiple of the sample's; where pods leave, in one mean lifetime of a pod."""
FEWEST_GPUS = 32
"""On fewer, what a fill allocates is luck."""
MOST_GPUS, MOST_NODES, MOST_PODS = 300, 300, 3_000
"""Of a simulated fill. A larger one would be exacter, and take longer: this one takes 0.1 to 0.2 s of CPU."""
PODS, FEWEST_LIFETIMES = 2_000, 3
"""Where pods leave: pods that arrive, in so many mean lifetimes. The first lifetime does not count."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some nodes of a fleet, and what a fleet of them must know."""

    specs: tuple[NodeSpec, ...]
    sets_of_node: Mapping[str, int]
    node_sets: Mapping[Hashable, int]
    separate: SeparateGpus
    values: GpuValues
    minimum_milli: int

    @classmethod
    def of(cls, fleet: Fleet) -> Sample:
        """Random nodes, always the same of the same fleet: at least one, with at most ``MOST_GPUS`` GPUs."""
        specs: list[NodeSpec] = []
        gpus = 0
        for row in np.random.default_rng(0).permutation(len(fleet.specs)).tolist():
            if (spec := fleet.specs[row]) is None:
                continue
            gpus += len(spec.gpus)
            if specs and (gpus > MOST_GPUS or len(specs) >= MOST_NODES):
                break
            specs.append(spec)
        sets = {spec.name: fleet.sets_of_node.get(spec.name, 0) for spec in specs}
        node_sets, rest = dict(fleet.names.node_sets), (fleet.separate, fleet.values, fleet.minimum_milli)
        return cls(tuple(specs), sets, node_sets, *rest)

    @property
    def gpus(self) -> int:
        return sum(len(spec.gpus) for spec in self.specs)

    def first(self, part: float) -> Sample:
        """This part of the nodes, at least one."""
        return replace(self, specs=self.specs[: max(1, int(part * len(self.specs)))])

    def fleet(self) -> Fleet:
        """A fleet of these nodes, empty."""
        most = max((len(spec.gpus) for spec in self.specs), default=1)
        fleet = Fleet(max(1, len(self.specs)), max(1, most), minimum_milli=self.minimum_milli)
        fleet.separate, fleet.values = self.separate, self.values
        fleet.tell_apart(self.node_sets, self.sets_of_node)
        for spec in self.specs:
            fleet.put(spec)
        return fleet


def best_weights(
    sample: Sample,
    mix: Mix,
    policy_with: Callable[[TermWeights], Policy],
    pause: Pause = no_pause,
    *,
    pods_leave: bool = False,
) -> TermWeights:
    """The weights under which most of the mix finds a place; ``FIRST`` unless others are clearly better.

    Pure but for ``pause``, which is called at each arrival. Equal arguments give equal weights. Takes 5 to 12
    simulations.
    """
    sizes = _sizes(sample, mix)
    mean = float(sizes @ mix.frequency) if len(sizes) else 0.0
    if mean <= 0 or sample.gpus < FEWEST_GPUS:
        return FIRST
    pods = PODS / FEWEST_LIFETIMES if pods_leave else MOST_PODS
    sample = sample.first(pods * mean / (LOAD * sample.gpus))

    def gains(weights: Sequence[TermWeights], seed: int) -> list[float]:
        """How much more finds a place under each than under ``FIRST``, on the same arrivals."""
        arrivals = _arrivals(mix, sizes, LOAD * sample.gpus, seed, pods_leave=pods_leave)
        asked = float(sizes[arrivals.kinds[arrivals.first :]].sum()) or 1.0
        first, *others = (
            _placed(sample, policy_with(w), mix, sizes, arrivals, pause) for w in (FIRST, *weights)
        )
        return [(other - first) / (asked if pods_leave else sample.gpus) for other in others]

    found = dict(zip(OTHERS, gains(OTHERS, 0), strict=True))
    better = [weights for weights in OTHERS if found[weights] > 0]
    again = dict(zip(better, gains(better, 1), strict=True)) if better else {}
    best = max(better, key=lambda weights: found[weights] + again[weights], default=FIRST)
    if best is FIRST or fmean([found[best], again[best]]) <= CLEARLY:
        return FIRST
    # The best of several was also lucky, so it must win once more.
    return best if gains([best], 2)[0] > CLEARLY else FIRST


def _sizes(sample: Sample, mix: Mix) -> Doubles:
    """GPUs that each request of the mix takes, (T,); 0 if no node of the sample could take it."""
    fleet, of = sample.fleet(), Sizes().of
    return np.array([of(fleet, request) if request.wants_gpu else 0.0 for request in mix.requests])


class _Arrivals(NamedTuple):
    """The ``kinds`` of request that arrive, after which arrival each leaves, and the first that counts."""

    kinds: list[int]
    leave: list[float]
    first: int


def _arrivals(mix: Mix, sizes: Doubles, gpus: float, seed: int, *, pods_leave: bool) -> _Arrivals:
    """Requests drawn from the mix until they add up to so many GPUs. All of them count, and stay.

    With ``pods_leave``: ``PODS`` requests, so many GPUs in each mean lifetime, exponential lifetimes. The
    first lifetime does not count. It fills the sample as if all of its pods came at once, at its end.
    """
    rng = np.random.default_rng(seed)
    frequency = np.array(mix.frequency)
    mean = float(sizes @ frequency)
    number = PODS if pods_leave else int(2 * gpus / mean) + 100
    drawn = rng.choice(len(sizes), number, p=frequency / frequency.sum())
    if not pods_leave:
        kinds: list[int] = drawn[: int(np.searchsorted(sizes[drawn].cumsum(), gpus)) + 1].tolist()
        return _Arrivals(kinds, [np.inf] * len(kinds), 0)
    lifetime = min(gpus / mean, number / FEWEST_LIFETIMES)
    leave = np.arange(number).clip(lifetime) + rng.exponential(lifetime, number)
    return _Arrivals(drawn.tolist(), leave.tolist(), int(lifetime))


def _placed(
    sample: Sample, policy: Policy, mix: Mix, sizes: Doubles, arrivals: _Arrivals, pause: Pause = no_pause
) -> float:
    """GPUs of the arrivals that count and find a place."""
    placer = Placer(sample.fleet(), policy, _cheapest, learns=False)
    leaving: list[tuple[float, int, Allocation]] = []
    placed = 0.0
    for i, (kind, leaves) in enumerate(zip(arrivals.kinds, arrivals.leave, strict=True)):
        pause()
        while leaving and leaving[0][0] <= i:
            placer.fleet.give_back(heapq.heappop(leaving)[2])
        placer.arrive(mix.requests[kind])
        if (held := placer.place(mix.requests[kind])) is not None:
            heapq.heappush(leaving, (leaves, i, held))
            placed += float(sizes[kind]) if i >= arrivals.first else 0.0
    return placed


def _cheapest(cost: Floats) -> int:
    row = int(cost.argmin())
    return row if np.isfinite(cost[row]) else -1
