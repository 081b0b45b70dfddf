"""Whether kubelet's Topology Manager would admit containers to the NUMA nodes of a machine.

A pod that it refuses fails with ``TopologyAffinityError`` after it was bound. Facts: kubernetes v1.37.2,
``pkg/kubelet/cm/topologymanager``: each resource hints at the sets of NUMA nodes that have enough of it free,
and prefers those that are as small as its total amount allows; all resources must prefer the same set
(``mergePermutation``). ``single-numa-node`` takes sets of one only, ``restricted`` preferred ones, and
``best-effort`` admits everything. Of equal sets the narrowest counts, then the one that is the lowest
number as a mask of bits (``bitmask/bitmask.go``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, islice
from typing import Literal, NamedTuple, TypeAlias

Amounts: TypeAlias = tuple[tuple[str, int], ...]
"""(resource, amount), each resource once: milli-CPU, bytes, or devices."""
Policy: TypeAlias = Literal["none", "best-effort", "restricted", "single-numa-node"]
REFUSING: tuple[Policy, ...] = ("restricted", "single-numa-node")
"""Under the others kubelet starts every pod."""
_MOST_SETS = 4096
"""Sets of NUMA nodes that are tried. Machines with 8 NUMA nodes have at most 70 of one size."""


class NumaNode(NamedTuple):
    """What one NUMA node has free, and in all."""

    free: Amounts
    total: Amounts


class Aligned(NamedTuple):
    """What must lie together: the requests of a container, or of a whole pod. ``stays``: it keeps what it
    has got while the next ones start, unlike an init container that ends."""

    amounts: Amounts
    stays: bool = True


def aligned(single: bool, numa: Sequence[NumaNode], wanted: Sequence[Aligned]) -> tuple[NumaNode, ...] | None:
    """What is free when all of these, one after the other, have got their resources from a preferred set of
    NUMA nodes; None if one of them cannot. ``single``: only from one NUMA node. A resource that no NUMA node
    has is bound to none."""
    free, total = [dict(one.free) for one in numa], [dict(one.total) for one in numa]
    known = {resource for one in total for resource in one}
    for amounts, stays in wanted:
        bound = {resource: amount for resource, amount in amounts if amount and resource in known}
        chosen = _preferred(single, free, total, bound)
        if chosen is None:
            return None
        if stays:
            _take(free, chosen, bound)
    return tuple(NumaNode(tuple(left.items()), one.total) for left, one in zip(free, numa, strict=True))


def _preferred(
    single: bool, free: list[dict[str, int]], total: list[dict[str, int]], wanted: dict[str, int]
) -> tuple[int, ...] | None:
    """The first set of NUMA nodes, as their positions, that all resources prefer; None if there is none. A
    NUMA node that has nothing of a resource is in no set as small as the resource prefers."""
    sizes = {_least_nodes(total, resource, amount) for resource, amount in wanted.items()}
    if not sizes:
        return ()
    if len(sizes) > 1 or (single and sizes != {1}):
        return None
    useful = [at for at, one in enumerate(total) if all(one.get(name) for name in wanted)]
    sets = sorted(islice(combinations(useful, sizes.pop()), _MOST_SETS), key=lambda nodes: nodes[::-1])
    for nodes in sets:
        if all(sum(free[one].get(name, 0) for one in nodes) >= amount for name, amount in wanted.items()):
            return nodes
    return None


def _least_nodes(total: list[dict[str, int]], resource: str, amount: int) -> int:
    """How many NUMA nodes it takes for this amount where everything is free; more than there are if all
    together have less."""
    missing = amount
    for count, has in enumerate(sorted((one.get(resource, 0) for one in total), reverse=True), 1):
        missing -= has
        if missing <= 0:
            return count
    return len(total) + 1


def _take(free: list[dict[str, int]], nodes: tuple[int, ...], wanted: dict[str, int]) -> None:
    for name, amount in wanted.items():
        for one in nodes:
            taken = min(amount, free[one].get(name, 0))
            if taken:
                free[one][name] -= taken
                amount -= taken
