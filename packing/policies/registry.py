"""The policies by name. A policy's module is imported when the policy is created, because that loads
kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packing.cost.demand import Mix
    from packing.policies.interface import Policy


def _inventory(
    mix: Mix | None = None,
    *,
    prior: Mix | None = None,
    arrived: int = 0,
    minimum_milli: int = 0,
    filling: bool = False,
) -> Policy:
    from packing.cost.demand import Demand
    from packing.policies.inventory import InventoryPolicy

    demand = Demand(prior=prior, seen=arrived)
    return InventoryPolicy(mix, demand, minimum_milli=minimum_milli, filling=filling)


def _baseline(name: str, *_: object, **__: object) -> Policy:
    from packing.policies.baselines import BestFit, LeastAllocated, MostAllocated

    return {policy.name: policy for policy in (BestFit, MostAllocated, LeastAllocated)}[name]()


POLICIES: dict[str, Callable[..., Policy]] = {
    "inventory": _inventory,
    **{name: partial(_baseline, name) for name in ("best-fit", "most-allocated", "least-allocated")},
}
"""Name in the settings and on the command line -> function that creates the policy; the first is the default.

Its arguments, which policies without a demand mix ignore: a known ``mix`` (None: learn it), the ``prior`` to
learn from, the number of pods that have ``arrived`` before, ``minimum_milli``: the rest of a GPU below it
counts as waste, and ``filling``: pods are placed, and none ends.
"""
