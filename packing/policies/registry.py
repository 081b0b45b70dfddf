"""Policies: which of the nodes that fit is best. One short file each, all behind one interface.

The service and the replay call the same objects, so that a figure of the replay is a figure of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol, cast

from packing.cost.demand import MEASURES, Demand, Mix, by_pods
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request


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


def known_mix(policy: str, counts: Mapping[Request, float]) -> Mix:
    """The mix of a policy that is told what comes, cut as it cuts the mix that it learns."""
    return Mix.of(counts, [by_pods] if policy == "fgd" else MEASURES)


def _in(module: str, name: str) -> Callable[..., Policy]:
    """Makes a policy of ``packing.policies.<module>``, which is imported only then: some compile kernels."""

    def make(mix: Mix | None = None, *, prior: Mix | None = None, minimum_milli: int = 0) -> Policy:
        policy = getattr(import_module(f"packing.policies.{module}"), name)
        return cast(Policy, policy(mix, Demand(prior=prior), minimum_milli=minimum_milli))

    return make


POLICIES: dict[str, Callable[..., Policy]] = {
    "inventory": _in("inventory", "Inventory"),
    "fgd": _in("fgd", "Fgd"),
    "best-fit": _in("baselines.best_fit", "BestFit"),
    "dot-product": _in("baselines.dot_product", "DotProduct"),
    "least-squares": _in("baselines.least_squares", "LeastSquares"),
    "gpu-packing": _in("baselines.gpu_packing", "GpuPacking"),
    "gpu-clustering": _in("baselines.gpu_clustering", "GpuClustering"),
    "most-allocated": _in("baselines.simple", "MostAllocated"),
    "least-allocated": _in("baselines.simple", "LeastAllocated"),
    "first-fit": _in("baselines.simple", "FirstFit"),
    "worst-fit": _in("baselines.simple", "WorstFit"),
    "random": _in("baselines.simple", "Random"),
}
"""Every policy by the name that settings and the command line use; the first is the default. Each is made
with a known ``Mix``, or without: then those that need one learn it, from a ``prior`` on. What is left of a
GPU below ``minimum_milli`` is waste to those that value remainders."""
