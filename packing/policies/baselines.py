"""Baseline policies for comparison, which rank nodes by their sums of CPU and GPU and learn nothing."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes, reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.placement import tightest
from packing.model.request import Request
from packing.policies.interface import Due


class Baseline:
    """A policy without tables. A subclass ranks the nodes; on a node the shares are placed on the GPUs with
    the least left."""

    name: str

    @abstractmethod
    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """Cost per row (N,), lower is better, whether or not the request fits."""

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        rank = self.rank(fleet, request)
        return np.where(reasons_for(fleet, request) == 0, rank, np.inf).astype(np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        return tightest(fleet, request, row)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        return {self.name: float(self.rank(fleet, request)[row])}

    def observe(self, request: Request) -> None:
        """Ignored."""

    def update(self, fleet: Fleet, due: Due) -> None:
        """Nothing to update."""


class BestFit(Baseline):
    """Prefer the node with the least CPU and GPU left, as fractions of the largest node.

    BestFit of hkust-adsl/kubernetes-scheduler-simulator, the strongest baseline of Weng et al. (USENIX ATC
    2023): score = int(100 (1 - (CPU left + GPU left) / 2)), cost = 100 - score. The simulator then rescales
    the score to 0..100 over the nodes that fit, which changes neither order nor ties.
    """

    name = "best-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        cpu, gpu = self._left(fleet, request)
        return 100 - truncated(100 * (1 - (cpu + gpu) / 2))

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        cpu, gpu = self._left(fleet, request)
        return {"free CPU left": 50 * float(cpu[row]), "free GPU left": 50 * float(gpu[row])}

    def _left(self, fleet: Fleet, request: Request) -> tuple[Floats, Floats]:
        """CPU and GPU of each node (N,) that remain free, as fractions of the largest node's."""
        cpu_max, gpu_max = largest_node(fleet)
        cpu = (fleet.arrays.cpu - request.cpu_milli) / cpu_max
        return cpu, (fleet.arrays.free_parts().sum(axis=0) - gpu_sizes(fleet, request)) / gpu_max


class MostAllocated(Baseline):
    """Strategy MostAllocated of kube-scheduler's NodeResourcesFit, over CPU and GPU with equal weights: the
    cost is the mean free fraction in percent."""

    name = "most-allocated"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        return np.floor(100 * _free_fraction(fleet, request)).astype(np.float32)


class LeastAllocated(Baseline):
    """Strategy LeastAllocated, kube-scheduler's default, which spreads pods: the opposite of
    MostAllocated."""

    name = "least-allocated"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        return np.floor(100 * (1 - _free_fraction(fleet, request))).astype(np.float32)


def largest_node(fleet: Fleet) -> tuple[float, float]:
    """The largest CPU (milli) and number of GPUs of any node, each at least 1."""
    gpus = fleet.arrays.whole_parts().sum(axis=0).max(initial=1)
    return float(fleet.arrays.cpu_capacity.max(initial=1)), float(gpus)


def truncated(score: npt.NDArray[np.floating]) -> Floats:
    """A score rounded down, as in the published policies; 1e-4 allows for rounding errors."""
    cut: Floats = np.floor(score + 1e-4).astype(np.float32)
    return cut


def _free_fraction(fleet: Fleet, request: Request) -> Floats:
    """Mean of the fractions of each node's CPU and GPU that are free once the request is placed."""
    arrays = fleet.arrays
    cpu = (arrays.cpu - request.cpu_milli) / np.maximum(arrays.cpu_capacity, 1)
    gpus = np.maximum(arrays.whole_parts().sum(axis=0), 1)
    gpu = (arrays.free_parts().sum(axis=0) - gpu_sizes(fleet, request)) / gpus
    mean: Floats = ((cpu + gpu) / 2).astype(np.float32)
    return mean
