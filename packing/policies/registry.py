"""The policies by name. A policy's module is imported when the policy is made, because that loads kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packing.cost.demand import Mix
    from packing.policies.interface import Policy


def _inventory(mix: Mix | None = None, *, prior: Mix | None = None, minimum_milli: int = 0) -> Policy:
    from packing.cost.demand import Demand
    from packing.policies.inventory import InventoryPolicy

    return InventoryPolicy(mix, Demand(prior=prior), minimum_milli=minimum_milli)


def _fgd(mix: Mix | None = None, *, prior: Mix | None = None, minimum_milli: int = 0) -> Policy:
    from packing.cost.demand import Demand
    from packing.policies.fgd import Fgd

    return Fgd(mix, Demand(prior=prior))


def _baseline(name: str) -> Callable[..., Policy]:
    def make(mix: Mix | None = None, *, prior: Mix | None = None, minimum_milli: int = 0) -> Policy:
        from packing.policies.baselines.by_name import BASELINES

        return BASELINES[name]()

    return make


POLICIES: dict[str, Callable[..., Policy]] = {
    "inventory": _inventory,
    "fgd": _fgd,
    "best-fit": _baseline("best-fit"),
    "dot-product": _baseline("dot-product"),
    "least-squares": _baseline("least-squares"),
    "gpu-packing": _baseline("gpu-packing"),
    "gpu-clustering": _baseline("gpu-clustering"),
    "most-allocated": _baseline("most-allocated"),
    "least-allocated": _baseline("least-allocated"),
    "first-fit": _baseline("first-fit"),
}
"""Name in the settings and on the command line -> function that makes the policy; the first is the default.

Its arguments, which policies without a demand mix ignore: a known ``mix`` (None: learn it), the ``prior`` to
learn from, and ``minimum_milli``: a remainder of a GPU below it counts as waste.
"""
