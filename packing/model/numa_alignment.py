"""Whether kubelet's Topology Manager would admit containers to the NUMA nodes of a machine.

A rejected pod fails with ``TopologyAffinityError`` after it was bound. Facts: kubernetes v1.37.2,
``pkg/kubelet/cm/topologymanager``: each resource hints at the sets of NUMA nodes that have enough of it free,
and prefers those that are as small as its total amount allows; all resources must prefer the same set
(``mergePermutation``). ``single-numa-node`` accepts only sets of one, ``restricted`` only preferred ones, and
``best-effort`` admits everything. Of equal sets the narrowest is chosen, then the lowest as a bit mask
(``bitmask/bitmask.go``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packing.jit import Flags, Longs
from packing.model.numa import NumaNode, Wanted
from packing.model.numa_kernels import align

_MOST = 10**16
"""Cap on an amount, so that sums of many do not overflow 64 bits."""


def as_arrays(numa: Sequence[NumaNode], names: Sequence[str], size: int) -> Longs:
    """(2, size, R) the free and total amounts of these NUMA nodes for the named resources; the total is -1
    where a node does not list the resource."""
    found = np.stack([np.zeros((size, len(names)), np.int64), np.full((size, len(names)), -1)])
    for k, node in enumerate(numa):
        for which, amounts in enumerate(node):
            listed = dict(amounts)
            found[which, k] = [min(listed.get(name, -which), _MOST) for name in names]
    return found


def fit_one_after_the_other(
    single: Flags, free: Longs, total: Longs, names: Sequence[str], queues: Sequence[Sequence[Wanted]]
) -> Flags:
    """(M,) for each machine whether the last pod of its queue is admitted after those before it; an earlier
    pod that is not admitted takes nothing. ``free`` and ``total`` (M, K, R) as in ``as_arrays``; ``free`` is
    reduced to the rest. ``single``: only sets of one NUMA node. A resource that no NUMA node lists is bound
    to none."""
    kinds: dict[int, tuple[int, Wanted]] = {}  # by id: equal ones are mostly identical
    queue = [kinds.setdefault(id(wanted), (len(kinds), wanted))[0] for pods in queues for wanted in pods]
    containers = [container for _, wanted in kinds.values() for container in wanted]
    each = [dict(container.amounts) for container in containers]
    amounts = [[min(listed.get(name, 0), _MOST) for name in names] for listed in each]
    fits, (_, size, count) = np.zeros(len(queues), np.bool_), free.shape
    align(
        single, free, total, np.array(amounts, np.int64).reshape(-1, count),
        np.array([container.stays for container in containers], np.bool_),
        _ranges([len(wanted) for _, wanted in kinds.values()]), np.array(queue, np.int64),
        _ranges([len(pods) for pods in queues]), np.empty((size, count), np.int64), np.empty(count, np.int64),
        np.empty((3, size), np.int64), fits,
    )  # fmt: skip
    return fits


def _ranges(lengths: Sequence[int]) -> Longs:
    """(N, 2) start and end of consecutive ranges of these lengths."""
    ends = np.cumsum([0, *lengths])
    return np.stack([ends[:-1], ends[1:]], axis=1)
