"""The rules of what fits, each in one place, as parts of the kernels that look for reasons and for costs."""

import numpy as np

from packing.jit import inlined


@inlined
def enough(free, asked):
    """Whether a node has enough CPU or memory. A pod that asks for none fits even on an over-committed node,
    as in kube-scheduler (NodeResourcesFit)."""
    return (asked <= 0) | (free >= asked)


@inlined
def share_mib(capacity, memory_mib, memory_milli):
    """MiB that a share takes of a GPU of this capacity: ``memory_mib + capacity * memory_milli // 1000``.

    Exact in float32 for capacities below 2**24: with the capacity split into thousands and a rest no product
    is rounded, and the error of the division by 1000 is less than the added half thousandth.
    """
    thousands = np.floor(capacity * np.float32(0.001))
    rest = (capacity - thousands * np.float32(1000)) * memory_milli
    return memory_mib + thousands * memory_milli + np.floor(rest * np.float32(0.001) + np.float32(0.0005))


@inlined
def share_fits(divisible, compute, memory, compute_milli, memory_mib):
    """Whether a GPU with so much free takes such a share. Without any free compute it takes none at all."""
    return (divisible != 0) & (compute >= max(compute_milli, np.float32(1))) & (memory >= memory_mib)
