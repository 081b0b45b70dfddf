"""GPU packing: first fill GPUs that are in use, then nodes that are in use, then small nodes.

GpuPacking of hkust-adsl/kubernetes-scheduler-simulator, after Weng et al., "MLaaS in the Wild" (NSDI 2022).
"""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request
from packing.policies.baselines import Baseline, truncated

_WHOLE = np.float32(0.9999)


class GpuPacking(Baseline):
    """cost = 100 - score, with the score of

    - a request without GPU: 0;
    - a node whose GPUs are all free: max(33 - GPUs, GPUs);
    - a node where k fully free GPUs must be used: max(50 - k, 33);
    - any other: max(100 - free percent of the GPUs used / 10, 50).
    """

    name = "gpu-packing"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        nodes = fleet.arrays.capacity
        if not request.wants_gpu:
            return np.full(nodes, 100, np.float32)
        free, has = fleet.arrays.free_parts(), fleet.arrays.whole_parts()
        gpus, count = has.sum(axis=0), np.full(nodes, request.gpus)
        need = request.shares.compute_milli / WHOLE if request.shares else 1.0
        fitting = np.sort(np.where(free + 1e-6 >= need, free, np.inf), axis=0)
        used = np.where(np.arange(len(free))[:, None] < count, fitting, 0)
        whole = (used >= _WHOLE).sum(axis=0)
        partly = np.maximum(100 - truncated((10 * used.sum(axis=0)).astype(np.float32)), 50)
        score = np.where(whole > 0, np.maximum(50 - whole, 33), partly)
        empty = (free >= _WHOLE).sum(axis=0) == gpus
        return (100 - np.where(empty, np.maximum(33 - gpus, gpus), score)).astype(np.float32)
