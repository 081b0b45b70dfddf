"""Best fit: the node that is left with least.

BestFit of hkust-adsl/kubernetes-scheduler-simulator, the strongest baseline of Weng et al. (USENIX ATC 2023):
half of the CPU and half of the GPU that stay free, each as part of the largest node, in hundredths. The
simulator cuts the score to an integer, which makes ties, and stretches it to 0..100 over the nodes that fit,
which changes neither their order nor their ties.
"""

from __future__ import annotations

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.baselines.ranked import Ranked
from packing.policies.node_sums import left_over, truncated


class BestFit(Ranked):
    """score = int(100 (1 - (free CPU + free GPU) / 2)), cost = 100 - score."""

    name = "best-fit"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Ranked.rank``."""
        cpu, gpu = left_over(fleet, request)
        return 100 - truncated(100 * (1 - (cpu + gpu) / 2))

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """See ``Policy.terms``: before rounding."""
        cpu, gpu = left_over(fleet, request)
        return {"free CPU left": 50 * float(cpu[row]), "free GPU left": 50 * float(gpu[row])}
