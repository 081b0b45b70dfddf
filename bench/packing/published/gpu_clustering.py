"""GPU clustering: keep pods of one kind together, so that a node hosts either shares or whole GPUs.

GpuClustering of hkust-adsl/kubernetes-scheduler-simulator (``gpu_clustering_score.go`` at 8f3d641), one of
the baselines of Weng et al. (USENIX ATC 2023). A pod's kind is "share of a GPU" or the number of its GPUs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import ALMOST_WHOLE, GPU_COUNTS, Floats
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request
from packing.policies.baselines.base import Baseline
from packing.policies.node_sums import free_parts, largest_node, truncated


class GpuClustering(Baseline):
    """cost = 100 - score, with the score of

    - a request without GPU: 0;
    - a node that hosts only this kind: 75 + b;
    - a node that hosts this kind among others: 50 + b;
    - a node that hosts no pod with GPU: 25 + b;
    - a node that hosts only other kinds: b;

    with b = int(25 (1 - free GPU / GPUs of the largest node)), so fuller nodes come first.
    """

    name = "gpu-clustering"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        nodes = np.arange(fleet.arrays.capacity)
        if not request.wants_gpu:
            return np.full(nodes.size, 100, np.float32)
        pods_by_gpu_count = fleet.arrays.pods_by_gpu_count > 0
        same, kinds = pods_by_gpu_count[_kind(fleet, request), nodes], pods_by_gpu_count.sum(axis=0)
        score = np.select([same & (kinds == 1), same, kinds == 0], [75, 50, 25], 0)
        fuller = truncated(25 * (1 - free_parts(fleet).sum(axis=0) / largest_node(fleet)[1]))
        return (100 - score - fuller).astype(np.float32)


def _kind(fleet: Fleet, request: Request) -> npt.NDArray[np.int64]:
    """Row of ``pods_by_gpu_count`` for each node (N,): one resource may be a whole GPU on one node and a part
    of a GPU on another."""
    part = request.shares
    whole = np.full(fleet.arrays.capacity, part is not None and part.compute_milli >= WHOLE)
    for name, _ in request.devices:
        if name in fleet.names.resources:
            whole |= fleet.arrays.device_gpu[fleet.names.resources[name]] > ALMOST_WHOLE
    return np.where(whole, min(request.gpus, GPU_COUNTS - 1), 0)
