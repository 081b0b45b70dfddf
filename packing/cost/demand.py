"""The demand mix: the requests that arrive and their frequency, known in advance or learned from arrivals.

The slots of ``slots.py`` and the pattern LP of ``fill_tables.py`` are weighted with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nlargest
from itertools import groupby, product

from packing.model.request import Request

COVERAGE = 0.95
"""A mix consists of the most frequent request types that together make up this fraction of all requests (as
in FGD, ATC 2023). The fraction applies to each set of nodes that requests are restricted to: if all requests
were counted together, a set that one pod in twenty requires might not be in the mix, and pods that can run
anywhere would fill its nodes."""

MOST_TYPES = 2_048
"""Maximum number of distinct requests in the demand; real clusters have a few hundred."""

Measure = Callable[[Request], float]
"""The weight of a request in the search for the most frequent ones."""


def by_pods(request: Request) -> float:
    """Every pod has the same weight."""
    return 1.0


def by_size(request: Request) -> float:
    """A pod is weighted by the square of its GPUs, as its slots are in a fleet with turnover
    (``slots.py``)."""
    return request.gpus**2


MEASURES = by_pods, by_size
"""If only pods were counted, a job for a whole node that arrives once in five hundred pods would not be in
the mix, and no node would be kept whole for it: on the trace ``default``, 1 % of the GPU demand was dropped
by the time 89.7 % had arrived, instead of 97.2 %. If requests were weighted by GPUs, jobs for 8 GPUs with 2.6
% of the demand would be left out (rare8 of bench/packing/worlds.py)."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Request types in descending order of frequency, and their frequencies, which add up to 1."""

    requests: tuple[Request, ...]
    frequency: tuple[float, ...]

    @classmethod
    def of(
        cls,
        counts: Mapping[Request, float],
        measures: Sequence[Measure] = MEASURES,
        known_set: Callable[[Hashable | None], Hashable | None] = lambda node_set: node_set,
    ) -> Mix:
        """Build the mix of these weighted requests: for each set of nodes, the most frequent types by any
        measure.

        Requests that differ only in host memory are one type with their mean memory: memory rarely decides,
        and would split every type into many. ``known_set`` maps a request's set of nodes to the one to use,
        None for all nodes.
        """
        weights: defaultdict[Request, float] = defaultdict(float)
        memory: defaultdict[Request, float] = defaultdict(float)
        for request, weight in counts.items():
            kind = _kind(request)
            if (node_set := known_set(kind.node_set)) != kind.node_set:
                kind = replace(kind, node_set=node_set)
            weights[kind] += weight
            memory[kind] += weight * request.memory_mib
        ranked = _ranked(weights)
        frequent: set[Request] = set()
        by_node_set: defaultdict[Hashable, list[Request]] = defaultdict(list)
        for kind in ranked:
            by_node_set[kind.node_set].append(kind)
        for kinds, measure in product(by_node_set.values(), measures):
            frequent |= _covering({kind: weights[kind] * measure(kind) for kind in kinds})
        kept = [kind for kind in ranked if kind in frequent]
        total = sum(weights[kind] for kind in kept)
        return cls(
            tuple(replace(kind, memory_bytes=round(memory[kind] / weights[kind]) << 20) for kind in kept),
            tuple(weights[kind] / total for kind in kept),
        )

    def gpu_per_pod(self, gpus: Mapping[Request, float]) -> float:
        """Mean GPUs per request; ``gpus`` maps GPU requests to their sizes."""
        return sum(x * gpus.get(r, 0.0) for r, x in zip(self.requests, self.frequency, strict=True))

    def cpu_per_gpu(self, gpus: Mapping[Request, float]) -> float:
        """CPU milli per GPU over the GPU requests, whose sizes are ``gpus``; 0 if there are none."""
        total = self.gpu_per_pod(gpus)
        cpu = sum(x * r.cpu_milli for r, x in zip(self.requests, self.frequency, strict=True) if r in gpus)
        return cpu / total if total else 0.0


@lru_cache(maxsize=MOST_TYPES)
def _kind(request: Request) -> Request:
    return replace(request, memory_bytes=0)


def _ranked(weights: Mapping[Request, float]) -> list[Request]:
    """The types in descending order of frequency; equally frequent ones by name."""
    ranked: list[Request] = []
    for _, group in groupby(sorted(weights, key=lambda kind: -weights[kind]), key=weights.__getitem__):
        equal = list(group)
        ranked += sorted(equal, key=repr) if len(equal) > 1 else equal
    return ranked


def _covering(asked: Mapping[Request, float]) -> set[Request]:
    """The types with the highest demand, up to ``COVERAGE`` of the total."""
    kept: set[Request] = set()
    missing = COVERAGE * sum(asked.values())
    for kind in sorted(asked, key=lambda kind: -asked[kind]):
        if missing <= 0:
            break
        kept.add(kind)
        missing -= asked[kind]
    return kept


class Demand:
    """A histogram of arrivals in which the weight of a request halves with every ``half_life`` later ones.

    A ``prior`` counts as ``prior_weight`` earlier requests. Beyond ``MOST_TYPES`` distinct requests, the
    rarest are dropped. ``seen`` counts arrivals; its initial value is the number before the first one
    observed here.
    """

    def __init__(
        self, *, half_life: float = 20_000, prior: Mix | None = None, prior_weight: float = 200, seen: int = 0
    ) -> None:
        self.seen = seen
        self._growth = 2 ** (1 / half_life)
        self._weight = 1.0
        known = zip(prior.requests, prior.frequency, strict=True) if prior else ()
        self._counts = {request: prior_weight * frequency for request, frequency in known}

    def observe(self, request: Request) -> None:
        """Count one more arrival. Instead of reducing the weight of earlier ones, its own weight is higher:
        O(1)."""
        self.seen += 1
        self._weight *= self._growth
        self._counts[request] = self._counts.get(request, 0.0) + self._weight
        if self._weight > 1e9:  # back to about 1, without negligible ones
            scaled = {kind: count / self._weight for kind, count in self._counts.items()}
            self._counts, self._weight = {kind: n for kind, n in scaled.items() if n > 1e-6}, 1.0
        if len(self._counts) > 2 * MOST_TYPES:  # rarely, because it sorts
            self._counts = dict(nlargest(MOST_TYPES, self._counts.items(), key=lambda item: item[1]))

    def counts(self) -> dict[Request, float]:
        """The weight of each request, in a unit that grows with time."""
        return dict(self._counts)

    def mix(
        self,
        measures: Sequence[Measure] = MEASURES,
        known_set: Callable[[Hashable | None], Hashable | None] = lambda node_set: node_set,
    ) -> Mix:
        """The mix learned so far; without a prior it is empty before the first request."""
        return Mix.of(self._counts, measures, known_set)
