"""GPU clustering: keep pods of one kind together, so that a node hosts either shares or whole GPUs.

GpuClustering of hkust-adsl/kubernetes-scheduler-simulator (``gpu_clustering_score.go`` at 8f3d641), one of
the baselines of Weng et al. (USENIX ATC 2023). A pod's kind is "share of a GPU" or the number of its GPUs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import ALMOST_WHOLE, Floats
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request
from packing.policies.baselines import Baseline, largest_node, truncated

_KINDS = 17
"""Kind 0 is fractions of GPUs, kind k is k whole GPUs, and the last kind is that many or more."""


class GpuClustering(Baseline):
    """For fills only: it tracks the pods for which it has chosen GPUs, and assumes that none of them ends.

    cost = 100 - score, with the score of

    - a request without GPU: 0;
    - a node that hosts only this kind: 75 + b;
    - a node that hosts this kind among others: 50 + b;
    - a node that hosts no pod with GPU: 25 + b;
    - a node that hosts only other kinds: b;

    with b = int(25 (1 - free GPU / GPUs of the largest node)), so fuller nodes come first.
    """

    name = "gpu-clustering"

    def __init__(self) -> None:
        self._hosted = np.zeros((_KINDS, 0), np.bool_)  # (kinds, N)

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        nodes = np.arange(fleet.arrays.capacity)
        if not request.wants_gpu:
            return np.full(nodes.size, 100, np.float32)
        hosted = self._hosted_on(fleet)
        same, kinds = hosted[_kind(fleet, request), nodes], hosted.sum(axis=0)
        score = np.select([same & (kinds == 1), same, kinds == 0], [75, 50, 25], 0)
        fuller = truncated(25 * (1 - fleet.arrays.free_parts().sum(axis=0) / largest_node(fleet)[1]))
        return (100 - score - fuller).astype(np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        if request.wants_gpu:
            self._hosted_on(fleet)[_kind(fleet, request)[row], row] = True
        return super().choose(fleet, request, row)

    def _hosted_on(self, fleet: Fleet) -> npt.NDArray[np.bool_]:
        if self._hosted.shape[1] != fleet.arrays.capacity:
            self._hosted = np.zeros((_KINDS, fleet.arrays.capacity), np.bool_)
        return self._hosted


def _kind(fleet: Fleet, request: Request) -> npt.NDArray[np.int64]:
    """The request's kind on each node (N,): a resource may be a whole GPU on one node and a fraction on
    another."""
    part = request.shares
    whole = np.full(fleet.arrays.capacity, part is not None and part.compute_milli >= WHOLE)
    for name, _ in request.devices:
        if name in fleet.names.resources:
            whole |= fleet.arrays.device_gpu[fleet.names.resources[name]] > ALMOST_WHOLE
    return np.where(whole, min(request.gpus, _KINDS - 1), 0)
