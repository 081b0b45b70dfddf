"""Best fit: the node that is left with least.

The node score is the published one (BestFit of hkust-adsl/kubernetes-scheduler-simulator, the baseline of
Weng et al., USENIX ATC 2023): half of the CPU and half of the GPU that stay free, each as part of the
largest node. A GPU's free part is the mean of its free compute and free memory, which is the published
figure where both are equal. Inside a node a share takes the GPU with the tightest fit.
"""

from __future__ import annotations

import numpy as np

from packing import kernels
from packing.fleet import Fleet, Floats
from packing.policies.memoryless import Memoryless
from packing.request import WHOLE, Request


class BestFit(Memoryless):
    """Cost = (free CPU / largest CPU + free GPU / largest GPU) / 2 after placing, in [0, 1]."""

    name = "best-fit"

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Policy.cost``."""
        cost = np.empty(fleet.capacity, np.float32)
        cpu_max, gpu_max = _largest(fleet)
        kernels.best_fit_cost(
            fleet.cpu, fleet.sizes(request), fleet.compute, fleet.memory, fleet.memory_capacity,
            request.cpu_milli, cpu_max, gpu_max, cost,
        )  # fmt: skip
        return cost

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPUs with the least left over, lowest index on ties."""
        part = request.shares
        if part is None:
            return ()
        fitting = []
        for gpu in np.flatnonzero(fleet.divisible[:, row]).tolist():
            mib = fleet.share_mib(row, gpu, request)
            if fleet.compute[gpu, row] >= part.compute_milli and fleet.memory[gpu, row] >= mib:
                capacity = max(1.0, float(fleet.memory_capacity[gpu, row]))
                left = float(fleet.compute[gpu, row]) / WHOLE + float(fleet.memory[gpu, row]) / capacity
                fitting.append((left, gpu))
        return tuple(gpu for _, gpu in sorted(fitting)[: part.count])

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """See ``Policy.terms``."""
        cpu_max, gpu_max = _largest(fleet)
        free_gpu = sum(_free_part(fleet, gpu, row) for gpu in range(len(fleet.compute))) - float(
            fleet.sizes(request)[row]
        )
        return {
            "free CPU left": 0.5 * (float(fleet.cpu[row]) - request.cpu_milli) / cpu_max,
            "free GPU left": 0.5 * free_gpu / gpu_max,
        }


def _free_part(fleet: Fleet, gpu: int, row: int) -> float:
    capacity = max(1.0, float(fleet.memory_capacity[gpu, row]))
    return 0.5 * (float(fleet.compute[gpu, row]) / WHOLE + float(fleet.memory[gpu, row]) / capacity)


def _largest(fleet: Fleet) -> tuple[float, float]:
    """CPU (milli) and GPUs of the largest node, at least 1."""
    gpus = fleet.compute_capacity.sum(axis=0).max(initial=0) / WHOLE  # every GPU has a capacity of WHOLE
    return max(1.0, float(fleet.cpu_capacity.max(initial=1))), max(1.0, float(gpus))
