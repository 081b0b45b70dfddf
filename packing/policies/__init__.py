"""Policies: which of the nodes that fit is best. One short file each, all behind one interface.

The service and the replay call the same objects, so that a figure of the replay is a figure of the service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from packing.fleet import Fleet, Floats
from packing.policies.best_fit import BestFit
from packing.policies.dot_product import DotProduct
from packing.policies.fgd import Fgd
from packing.policies.gpu_packing import GpuPacking
from packing.policies.inventory import Inventory
from packing.policies.simple import FirstFit, LeastAllocated, MostAllocated, Random, WorstFit
from packing.request import Request


class Policy(Protocol):
    """What placing a request costs on each node, and which GPUs it would take there."""

    name: str

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """Cost per row, (N,) float32, lower is better, infinite where the request does not fit.

        Read it before the next call: the array may be the policy's own, brought up to date then.
        """
        ...

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPUs (indices) that the request's shares take on a node where it fits; () without shares."""
        ...

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """The parts of the cost on one node, for people; they add up to the cost up to rounding."""
        ...

    def observe(self, request: Request) -> None:
        """Learn from the arrival of a pod, once per pod. Policies without a demand mix ignore it."""
        ...

    def plan(self, fleet: Fleet) -> Callable[[], object]:
        """Work that makes new tables from what was learnt; it touches nothing shared and may run in a
        thread."""
        ...

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """Use the tables that a plan made."""
        ...

    def refresh(self, fleet: Fleet) -> None:
        """Bring prices up to date with the fleet; wanted every few hundred placements, outside requests."""
        ...


POLICIES: dict[str, Callable[[], Policy]] = {
    Inventory.name: Inventory,
    Fgd.name: Fgd,
    BestFit.name: BestFit,
    DotProduct.name: DotProduct,
    GpuPacking.name: GpuPacking,
    MostAllocated.name: MostAllocated,
    LeastAllocated.name: LeastAllocated,
    FirstFit.name: FirstFit,
    WorstFit.name: WorstFit,
    Random.name: Random,
}
"""Every policy by the name that settings and the command line use; the first is the default."""
