"""First fit, and the two scoring strategies of kube-scheduler's NodeResourcesFit."""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.baselines.base import Baseline
from packing.policies.node_sums import free_parts, whole_parts


class FirstFit(Baseline):
    """The first node, in the fixed order of nodes, where the request fits."""

    name = "first-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        return np.zeros(fleet.arrays.capacity, np.float32)


class MostAllocated(Baseline):
    """Strategy MostAllocated over CPU and GPU with equal weights: cost = mean free part in per cent."""

    name = "most-allocated"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        return np.floor(100 * _free_fraction(fleet, request)).astype(np.float32)


class LeastAllocated(Baseline):
    """Strategy LeastAllocated, kube-scheduler's default, which spreads pods: the opposite."""

    name = "least-allocated"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        return np.floor(100 * (1 - _free_fraction(fleet, request))).astype(np.float32)


def _free_fraction(fleet: Fleet, request: Request) -> Floats:
    """Mean of the parts of each node's own CPU and GPU that are free once the request is placed."""
    cpu = (fleet.arrays.cpu - request.cpu_milli) / np.maximum(fleet.arrays.cpu_capacity, 1)
    gpus = np.maximum(whole_parts(fleet).sum(axis=0), 1)
    gpu = (free_parts(fleet).sum(axis=0) - gpu_sizes(fleet, request)) / gpus
    mean: Floats = ((cpu + gpu) / 2).astype(np.float32)
    return mean
