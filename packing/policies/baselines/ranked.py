"""The form that most policies share: a cost from sums over the node, the tightest GPU inside it."""

from __future__ import annotations

from abc import abstractmethod

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.baselines.memoryless import Memoryless
from packing.policies.gpu_choice import tightest
from packing.policies.node_sums import where_it_fits


class Ranked(Memoryless):
    """Base of a policy that has but to say how it ranks the nodes."""

    name: str

    @abstractmethod
    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """Cost per row (N,), lower is better, whether the request fits or not."""

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Policy.cost``."""
        return where_it_fits(fleet, request, self.rank(fleet, request))

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPUs with the least left over."""
        return tightest(fleet, request, row)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """See ``Policy.terms``: the one term is the policy's own."""
        return {self.name: float(self.rank(fleet, request)[row])}
