"""NUMA nodes, and the requests that the Topology Manager aligns on them (checked by
``numa_alignment.py``)."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

NumaAmounts: TypeAlias = tuple[tuple[str, int], ...]
"""(resource, amount), each resource once: milli-CPU, bytes, or devices."""
Policy: TypeAlias = Literal["none", "best-effort", "restricted", "single-numa-node"]
REFUSING: tuple[Policy, ...] = ("restricted", "single-numa-node")
"""Under the other policies kubelet starts every pod."""


class NumaNode(NamedTuple):
    """The free and total amounts of one NUMA node."""

    free: NumaAmounts
    total: NumaAmounts


class Aligned(NamedTuple):
    """Amounts that must be aligned: the requests of a container, or of a whole pod. ``stays``: it keeps them
    while the next ones start, unlike an init container that ends."""

    amounts: NumaAmounts
    stays: bool = True


Wanted: TypeAlias = tuple[Aligned, ...]
"""The requests of a pod's containers, in the order in which they start."""
