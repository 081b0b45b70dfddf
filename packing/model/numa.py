"""NUMA nodes, and what the Topology Manager aligns on them; ``numa_alignment.py`` says whether it can."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Amounts: TypeAlias = tuple[tuple[str, int], ...]
"""(resource, amount), each resource once: milli-CPU, bytes, or devices."""
Policy: TypeAlias = Literal["none", "best-effort", "restricted", "single-numa-node"]
REFUSING: tuple[Policy, ...] = ("restricted", "single-numa-node")
"""Under the others kubelet starts every pod."""


class NumaNode(NamedTuple):
    """What one NUMA node has free, and in all."""

    free: Amounts
    total: Amounts


class Aligned(NamedTuple):
    """What must lie together: the requests of a container, or of a whole pod. ``stays``: it keeps what it
    has got while the next ones start, unlike an init container that ends."""

    amounts: Amounts
    stays: bool = True


Wanted: TypeAlias = tuple[Aligned, ...]
"""What the containers of a pod want, in the order in which they start."""
