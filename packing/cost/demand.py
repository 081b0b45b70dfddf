"""The demand mix: which requests come, and how often. It is known beforehand or learned from arrivals.

The slots of ``slots.py`` and the pattern LP of ``fill_tables.py`` are weighted with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nlargest
from itertools import groupby, product

from packing.model.request import Request

COVERAGE = 0.95
"""A mix consists of the most frequent request types up to this part of all requests (as FGD, ATC 2023). It
does so for each set of nodes that requests insist on: counted together, a set that one pod in twenty insists
on may not be in the mix, and pods that could go anywhere fill its nodes."""

MOST_TYPES = 2_048
"""Different requests that the demand counts; real clusters have a few hundred."""

Measure = Callable[[Request], float]
"""How much a request counts in the search for the most frequent ones."""


def by_pods(request: Request) -> float:
    """Every pod counts the same."""
    return 1.0


def by_size(request: Request) -> float:
    """A pod counts by the square of its GPUs, as its slots do where pods come and go (``slots.py``)."""
    return request.gpus**2


MEASURES = by_pods, by_size
"""Counted only by pods, a job for a whole node that comes once in five hundred pods is not in the mix, and no
node is kept whole for it: on trace default 1 % of the GPU was dropped when 89.7 % had arrived, not 97.2 %.
Counted by GPUs, jobs for 8 GPUs that have 2.6 % of all were left out (rare8 of bench/packing/worlds.py)."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Request types, most frequent first, and their frequency; frequencies add up to 1."""

    requests: tuple[Request, ...]
    frequency: tuple[float, ...]

    @classmethod
    def of(
        cls,
        counts: Mapping[Request, float],
        measures: Sequence[Measure] = MEASURES,
        known_set: Callable[[Hashable | None], Hashable | None] = lambda node_set: node_set,
    ) -> Mix:
        """The mix of these weighted requests: for each set of nodes, the types that are most frequent by any
        of the measures.

        Requests that differ only in the node's memory are one type with their mean memory: memory rarely
        decides, and would split every type into many. ``known_set`` gives the set of nodes that counts for a
        request, None for all nodes.
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
        for kinds, measure in product(_by_node_set(ranked), measures):
            frequent |= _covering({kind: weights[kind] * measure(kind) for kind in kinds})
        kept = [kind for kind in ranked if kind in frequent]
        total = sum(weights[kind] for kind in kept)
        return cls(
            tuple(replace(kind, memory_bytes=round(memory[kind] / weights[kind]) << 20) for kind in kept),
            tuple(weights[kind] / total for kind in kept),
        )

    def gpu_per_pod(self, gpus: Mapping[Request, float]) -> float:
        """Mean GPUs over all requests, with the sizes ``gpus`` of those for GPU."""
        return sum(x * gpus.get(r, 0.0) for r, x in zip(self.requests, self.frequency, strict=True))

    def cpu_per_gpu(self, gpus: Mapping[Request, float]) -> float:
        """CPU milli per GPU over the requests for GPU, with their sizes ``gpus``; 0 without any."""
        total = self.gpu_per_pod(gpus)
        cpu = sum(x * r.cpu_milli for r, x in zip(self.requests, self.frequency, strict=True) if r in gpus)
        return cpu / total if total else 0.0


@lru_cache(maxsize=MOST_TYPES)
def _kind(request: Request) -> Request:
    """The request without the node's memory."""
    return replace(request, memory_bytes=0)


def _ranked(weights: Mapping[Request, float]) -> list[Request]:
    """The kinds, the most frequent first; by their names where they are equally frequent."""
    ranked: list[Request] = []
    for _, group in groupby(sorted(weights, key=lambda kind: -weights[kind]), key=weights.__getitem__):
        equal = list(group)
        ranked += sorted(equal, key=repr) if len(equal) > 1 else equal
    return ranked


def _by_node_set(kinds: Iterable[Request]) -> Iterable[Sequence[Request]]:
    """The kinds in the same order, those that insist on the same nodes together."""
    groups: defaultdict[Hashable, list[Request]] = defaultdict(list)
    for kind in kinds:
        groups[kind.node_set].append(kind)
    return groups.values()


def _covering(asked: Mapping[Request, float]) -> set[Request]:
    """The kinds that are asked for most, up to ``COVERAGE`` of all."""
    kept: set[Request] = set()
    missing = COVERAGE * sum(asked.values())
    for kind in sorted(asked, key=lambda kind: -asked[kind]):
        if missing <= 0:
            break
        kept.add(kind)
        missing -= asked[kind]
    return kept


class Demand:
    """A histogram of arrivals in which a request counts half after ``half_life`` further ones.

    A ``prior`` counts like ``prior_weight`` requests before the first one. With more than ``MOST_TYPES``
    different requests, the rarest are dropped. ``seen``: how many arrived, so many of them before the first.
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
        """Count one more arrival. It weighs more than the earlier ones, instead of these less: O(1)."""
        self.seen += 1
        self._weight *= self._growth
        self._counts[request] = self._counts.get(request, 0.0) + self._weight
        if self._weight > 1e9:
            self._rescale()
        if len(self._counts) > 2 * MOST_TYPES:  # rarely, because it sorts
            self._counts = dict(nlargest(MOST_TYPES, self._counts.items(), key=lambda item: item[1]))

    def counts(self) -> dict[Request, float]:
        """How often each request came, in a unit that grows with time."""
        return dict(self._counts)

    def mix(
        self,
        measures: Sequence[Measure] = MEASURES,
        known_set: Callable[[Hashable | None], Hashable | None] = lambda node_set: node_set,
    ) -> Mix:
        """The mix learned so far; without a prior it is empty before the first request."""
        return Mix.of(self._counts, measures, known_set)

    def _rescale(self) -> None:
        """Scale the weights back to about 1 and drop negligible ones."""
        scaled = {request: count / self._weight for request, count in self._counts.items()}
        self._counts = {request: count for request, count in scaled.items() if count > 1e-6}
        self._weight = 1.0
