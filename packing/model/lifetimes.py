"""Run times of pods, learned by kind from pods that ended, and the time when the last pod of a node will have
ended.

The run times of a kind are modeled as log-logistic: S(x) = 1 / (1 + (x / median)^shape) is the fraction of
its pods that run for longer than x. Of the pods of age a, the fraction S(a + x) / S(a) runs for x more. The
longer a pod has outlived its kind, the longer it is expected to run, so mispredictions correct themselves.
Pods that are still running count as censored (``LastEnds.count_running``), because the first to end are the
shortest. All results depend only on the reported events and their times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np

from packing.jit import Doubles

PARTS, RESULTS = (0.5, 0.9), ("held", "missed")
"""The probabilities of forecast times, and what comes of a forecast."""
FEWEST = 5
"""Pods of a kind that must have ended before its lifetime is known."""
MOST_KINDS = 4_096
_OF_LIMIT = "fraction of the limit"
"""Denotes the fractions of declared limits for which the pods of a kind ran."""
_FAR = 25.0
_FORGETS = 50
"""Number of recent pods remembered; older ones have little weight."""
_SPREAD = 1.0
"""The standard deviation of the logarithm that has the weight of one pod before any is known."""
_OF_SPREAD = math.pi / math.sqrt(3)
"""The standard deviation of the logistic distribution."""
_ROUNDS, _MOST_AGES = 10, 512
"""Iterations of the estimate with running pods, and the approximate number of pods that it considers."""
HORIZON = np.geomspace(0.02, 20, 20)
"""Times, in mean run times, at which the distribution of the last end is kept."""


def stratified(seed: int, count: int) -> Doubles:
    """(count,) numbers between 0 and 1, one from each of ``count`` equal intervals, in random order."""
    return (np.random.default_rng(seed).permutation(count) + 0.5) / count


@cache
def _errors(futures: int) -> Doubles:
    """(futures,) the error of the logarithm of a median in each future, in its standard errors."""
    return np.array([NormalDist().inv_cdf(part) for part in stratified(0, futures)])


class Lifetime(NamedTuple):
    """The distribution of a kind, estimated from ``known`` pods."""

    median: float
    shape: float
    known: int = 1

    def remaining(self, age: float, outlives: Doubles) -> Doubles:
        """(S,) the seconds that a pod of this age will still run in each future, if it outlives this fraction
        (0 to 1) of the pods of its kind and age. Within one future the error of the median is the same for
        all pods of the kind."""
        median = self.median * np.exp(
            _errors(outlives.size) * _OF_SPREAD / self.shape / math.sqrt(self.known)
        )
        survives = 1 / (1 + (age / median) ** self.shape)
        end: Doubles = median * (1 / ((1 - outlives) * survives) - 1) ** (1 / self.shape)
        return np.maximum(end - age, 0.0)

    def ends_within(self, part: float) -> float:
        """The seconds after which a pod has ended with this probability, including the error of the
        median."""
        return self.median * math.pow(part / (1 - part), math.sqrt(1 + 1 / self.known) / self.shape)


@dataclass(slots=True)
class _Ended:
    """Moments of the logarithm of run times. ``total``: pods that ended, of which ``count`` are
    remembered."""

    count: int = 0
    total: int = 0
    mean: float = 0.0
    variance: float = 0.0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.total += 1
        self.count = min(self.count + 1, _FORGETS)
        step, off = 1 / self.count, math.log(seconds) - self.mean
        self.mean += step * off
        self.variance = (1 - step) * (self.variance + step * off * off)
        self.seconds += step * (seconds - self.seconds)

    def lifetime(self, ages: Sequence[float] = ()) -> Lifetime:
        """``ages``: those of running pods, in seconds."""
        mean, variance = self.mean, (self.variance * self.count + _SPREAD**2) / (self.count + 1)
        if ages:
            mean, variance = self._with_running(mean, variance, ages)
        return Lifetime(math.exp(mean), _OF_SPREAD / math.sqrt(variance), max(self.count, 1))

    def _with_running(self, mean: float, variance: float, ages: Sequence[float]) -> tuple[float, float]:
        """Mean and variance including running pods: expectation maximization for a censored normal
        distribution (Dempster, Laird and Rubin, 1977). Their weight relative to the remembered pods is that
        of their number relative to all pods that ended."""
        step = -(-len(ages) // _MOST_AGES)
        least, weight = np.log(np.maximum(ages[::step], 1.0)), step * self.count / self.total
        count = self.count + weight * least.size
        for _ in range(_ROUNDS):
            spread = math.sqrt(variance)
            off = (least - mean) / spread
            hazard = normal_hazard(off)
            expected, around = mean + spread * hazard, variance * (1 + (off - hazard) * hazard)
            mean = (self.count * self.mean + weight * float(expected.sum())) / count
            squares = self.count * (self.variance + (self.mean - mean) ** 2)
            squares += weight * float((around + (expected - mean) ** 2).sum())
            variance = (squares + _SPREAD**2) / (count + 1)
        return mean, variance


def normal_hazard(at: Doubles) -> Doubles:
    """The density of the standard normal distribution over its upper tail. From ``_FAR`` on its asymptotic
    series, where the tail would underflow. (``scipy.special`` would take a third of a command's start.)"""
    near, far = np.minimum(at, _FAR), np.maximum(at, _FAR)
    tail = np.array([math.erfc(x / math.sqrt(2)) / 2 for x in near.tolist()])
    density = np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi)
    return np.where(at < _FAR, density / tail, far + 1 / far - 2 / far**3)


def calibration_error(results: Mapping[tuple[float, str], int]) -> float | None:
    """Mean distance between the probability of a forecast time and the fraction of pods for which it held: by
    probability and "held" or "missed", the number of pods. None before the first pod."""
    known = {part: count for part in PARTS if (count := sum(results.get((part, r), 0) for r in RESULTS))}
    off = [abs(results.get((part, "held"), 0) / count - part) for part, count in known.items()]
    return fmean(off) if off else None


class Lifetimes:
    """Learned lifetimes by kind. Kinds that have not been observed for a long time are forgotten."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Ended] = {}
        self._all = _Ended()
        self._ages: Mapping[Hashable, Sequence[float]] = {}
        self._known: dict[Hashable, Lifetime] = {}

    def ended(self, kinds: Iterable[Hashable], seconds: float, limit: float = math.inf) -> None:
        """A pod of these kinds has ended after this many seconds; ``limit``: the declared maximum."""
        seconds = max(seconds, 1.0)
        for kind in kinds:
            self._learn(kind, seconds)
            if 0 < limit < math.inf:
                self._learn((_OF_LIMIT, kind), seconds / limit)
        self._all.add(seconds)

    def _learn(self, kind: Hashable, value: float) -> None:
        of_kind = self._kinds.pop(kind, None) or _Ended()
        self._kinds[kind] = of_kind  # moved to the end, as the most recently observed
        if len(self._kinds) > MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        of_kind.add(value)
        self._known.pop(kind, None)

    def count_running(self, ages: Mapping[Hashable, Sequence[float]]) -> None:
        """Set the running pods: by kind, the seconds that each has run."""
        self._ages, self._known = ages, {}

    def of(self, *kinds: Hashable, limit: float = math.inf) -> Lifetime | None:
        """The lifetime of the first of these kinds of which enough pods have ended; None if there is none.
        With a declared ``limit``, in seconds, from the fractions of their limits for which such pods ran, if
        these differ less than their run times do."""
        known = self._first(kinds)
        part = self._first((_OF_LIMIT, kind) for kind in kinds) if 0 < limit < math.inf else None
        if part is None or (known is not None and known.shape >= part.shape):
            return known
        return part._replace(median=part.median * limit)

    def _first(self, kinds: Iterable[Hashable]) -> Lifetime | None:
        for kind in kinds:
            of_kind = self._kinds.get(kind)
            if of_kind is not None and of_kind.count >= FEWEST:
                if kind not in self._known:
                    self._known[kind] = of_kind.lifetime(self._ages.get(kind, ()))
                return self._known[kind]
        return None

    @property
    def usual(self) -> Lifetime:
        """The lifetime of a pod of any kind, from the pods that ended."""
        return self._all.lifetime()

    @property
    def mean(self) -> float:
        """Mean run time of the pods that ended, in seconds; 0 before the first."""
        return self._all.seconds


class Running(NamedTuple):
    """A pod that has been running since ``started``, in seconds of any clock. ``kinds``: the narrowest
    first."""

    node: str
    kinds: tuple[Hashable, ...]
    started: float


class LastEnds:
    """The running pods, and for each node the distribution of the time until the last of them has ended."""

    def __init__(self) -> None:
        self.lifetimes = Lifetimes()
        self.running: dict[str, Running] = {}
        self.places: dict[str, int] = {}
        """By node on which a pod ran, its index in the result of ``prolonged``."""
        self._on: dict[str, set[str]] = {}
        self._stale: dict[str, None] = {}
        self._ended = np.ones((64, HORIZON.size))
        self._mean = 0.0

    def starts(self, pod: str, running: Running) -> None:
        if self.running.get(pod) != running:
            self.leaves(pod)
            self.running[pod] = running
            self._on.setdefault(running.node, set()).add(pod)
            self.places.setdefault(running.node, len(self.places))
            self._stale[running.node] = None

    def leaves(self, pod: str, done: float | None = None) -> None:
        """The pod no longer runs; ``done``: the time at which it ended by itself, from which the run time of
        its kind is learned."""
        if (was := self.running.pop(pod, None)) is None:
            return
        if done is not None:
            self.lifetimes.ended(was.kinds, done - was.started)
        self._on[was.node].discard(pod)
        self._stale[was.node] = None

    def count_running(self, now: float) -> None:
        """From now on, count these pods as still running in lifetimes."""
        ages = defaultdict[Hashable, list[float]](list)
        for running in self.running.values():
            for kind in running.kinds:
                ages[kind].append(max(now - running.started, 0.0))
        self.lifetimes.count_running(ages)

    def keep(self, nodes: Container[str]) -> None:
        """Forget all other nodes, and reuse their indices."""
        kept = [node for node in self.places if node in nodes or self._on[node]]
        self._on = {node: self._on[node] for node in kept}
        self.places = {node: place for place, node in enumerate(kept)}
        self._stale = dict.fromkeys(kept)

    def update(self, now: float, most: int) -> None:
        """Recompute nodes that changed, and in turn ``most`` others, whose pods have grown older."""
        mean = self.lifetimes.mean
        if mean and not 0.8 < self._mean / mean < 1.25:
            self._mean, self._stale = mean, dict.fromkeys(self.places)
        for node in [*islice(self._on, most)]:
            self._on[node] = self._on.pop(node)  # move to the end
            self._stale[node] = None
        if self._mean:
            self._compute(self._stale, now)
            self._stale = {}

    def prolonged(self, kind: Hashable) -> tuple[Doubles, float] | None:
        """The expected extension, by a pod of this kind, of the time until all pods of a node have ended, in
        mean run times: by ``places``, and for an empty node. None if the kind is unknown."""
        lifetime = self.lifetimes.of(kind)
        if lifetime is None or not self._mean:
            return None
        weights = np.diff(HORIZON, prepend=0.0) * _survival(
            HORIZON * self._mean, lifetime.median, lifetime.shape
        )
        return self._ended[: len(self.places)] @ weights, float(weights.sum())

    def _compute(self, nodes: Iterable[str], now: float) -> None:
        """Update the probability that all pods of a node have ended by each time of ``HORIZON`` from now."""
        while len(self._ended) < len(self.places):
            self._ended = np.concatenate([self._ended, np.ones_like(self._ended)])
        pods = [(self.places[node], self.running[pod]) for node in nodes for pod in self._on[node]]
        self._ended[[self.places[node] for node in nodes]] = 1.0
        if not pods:
            return
        known = [self.lifetimes.of(*pod.kinds) or self.lifetimes.usual for _, pod in pods]
        median, shape, _ = (np.array(column)[:, None] for column in zip(*known, strict=True))
        ages = np.array([max(now - pod.started, 0.0) for _, pod in pods])[:, None]
        remains = _survival(ages + HORIZON * self._mean, median, shape) / _survival(ages, median, shape)
        np.multiply.at(self._ended, [place for place, _ in pods], 1 - remains)


def _survival(seconds: Doubles, median: float | Doubles, shape: float | Doubles) -> Doubles:
    """The fraction that runs for longer."""
    survives: Doubles = 1 / (1 + (seconds / median) ** shape)
    return survives
