"""Best fit: the node that has the least CPU and GPU left.

BestFit of hkust-adsl/kubernetes-scheduler-simulator, the strongest baseline of Weng et al. (USENIX ATC 2023).
The simulator truncates the score to an integer, which makes ties, and then stretches it to 0..100 over the
nodes that fit; the stretching changes neither order nor ties and is left out here.
"""

from __future__ import annotations

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.baselines.base import Baseline
from packing.policies.node_sums import free_parts, largest_node, truncated


class BestFit(Baseline):
    """score = int(100 (1 - (CPU left + GPU left) / 2)), as parts of the largest node; cost = 100 - score."""

    name = "best-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        cpu, gpu = _left(fleet, request)
        return 100 - truncated(100 * (1 - (cpu + gpu) / 2))

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        cpu, gpu = _left(fleet, request)
        return {"free CPU left": 50 * float(cpu[row]), "free GPU left": 50 * float(gpu[row])}


def _left(fleet: Fleet, request: Request) -> tuple[Floats, Floats]:
    """CPU and GPU of each node (N,) that stay free, as parts of the largest node's."""
    cpu_max, gpu_max = largest_node(fleet)
    cpu = (fleet.arrays.cpu - request.cpu_milli) / cpu_max
    return cpu, (free_parts(fleet).sum(axis=0) - gpu_sizes(fleet, request)) / gpu_max
