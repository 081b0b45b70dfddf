"""Dot product: the node whose free resources align least with the request.

DotProd of hkust-adsl/kubernetes-scheduler-simulator, after the vector heuristics of Panigrahy et al.,
"Heuristics for Vector Bin Packing" (2011): the free CPU and GPU of a node and those of the request are
vectors, as fractions of the largest node, with all GPUs of a node merged.
"""

from __future__ import annotations

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.baselines import Baseline, largest_node, truncated


class DotProduct(Baseline):
    """score = int(100 (1 - (free CPU x CPU + free GPU x GPU) / 2)), cost = 100 - score."""

    name = "dot-product"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        cpu_max, gpu_max = largest_node(fleet)
        cpu = fleet.arrays.cpu / cpu_max * (request.cpu_milli / cpu_max)
        gpu = fleet.arrays.free_parts().sum(axis=0) / gpu_max * (gpu_sizes(fleet, request) / gpu_max)
        return 100 - truncated(100 * (1 - (cpu + gpu) / 2))
