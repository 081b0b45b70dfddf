"""The yardsticks: first fit, worst fit, random, and kube-scheduler's own most and least allocated."""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.baselines.ranked import Ranked
from packing.policies.gpu_choice import fitting, freest
from packing.policies.node_sums import free_parts, whole_parts


class FirstFit(Ranked):
    """The first node, in the fixed order of nodes, where the request fits."""

    name = "first-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Ranked.rank``."""
        return np.zeros(fleet.arrays.capacity, np.float32)


class WorstFit(Ranked):
    """The node with the most free GPU, and the freest GPU on it: what spreading does."""

    name = "worst-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Ranked.rank``."""
        free: Floats = free_parts(fleet).sum(axis=0)
        return -free

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPUs with the most free."""
        return freest(fleet, request, row)


class Random(Ranked):
    """Any node that fits, any GPU that fits: drawn by the state of the fleet, so that a replay repeats
    itself."""

    name = "random"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Ranked.rank``."""
        seed = int(fleet.arrays.generation.sum())
        return np.random.default_rng(seed).random(fleet.arrays.capacity, np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """GPUs drawn among those that fit."""
        found = [gpu for _, gpu in fitting(fleet, request, row)]
        count = len(freest(fleet, request, row))
        drawn = np.random.default_rng(int(fleet.arrays.generation.sum()) + 1).permutation(found)[:count]
        return tuple(int(gpu) for gpu in drawn)


class MostAllocated(Ranked):
    """cost = free CPU and free GPU as parts of the node's own capacity, mean, in per cent.

    NodeResourcesFit with the MostAllocated strategy of kube-scheduler, over CPU and GPU with equal weights.
    """

    name = "most-allocated"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Ranked.rank``."""
        return np.floor(100 * _free_fraction(fleet, request)).astype(np.float32)


class LeastAllocated(Ranked):
    """The opposite: kube-scheduler's default, which spreads."""

    name = "least-allocated"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Ranked.rank``."""
        return np.floor(100 * (1 - _free_fraction(fleet, request))).astype(np.float32)


def _free_fraction(fleet: Fleet, request: Request) -> Floats:
    """Free CPU and GPU of each node once the request is placed, as the mean part of the node's capacity."""
    cpu = (fleet.arrays.cpu - request.cpu_milli) / np.maximum(fleet.arrays.cpu_capacity, 1)
    gpus = np.maximum(whole_parts(fleet).sum(axis=0), 1)
    gpu = (free_parts(fleet).sum(axis=0) - gpu_sizes(fleet, request)) / gpus
    mean: Floats = ((cpu + gpu) / 2).astype(np.float32)
    return mean
