"""Kernels for the reasons a request does not fit, on all nodes in one call, and for the state of one node
after a change of its allocations.

Arrays are GPU-major, (G, N), and the loops over nodes have no branches, so that they vectorize: 20 times
faster than the obvious loop over (N, G) with ``continue`` where a GPU does not fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packing.jit import (
    BOOL,
    F4,
    I1,
    I2,
    I4,
    I8,
    U1,
    Float32Array2D,
    UInt8Array2D,
    inlined,
    kernel,
    read,
    record_type,
    write,
)
from packing.model.reasons import Reason

_OVERCOMMITTED = int(Reason.OVERCOMMITTED)
_GPUS_TOO_SMALL = int(Reason.GPUS_TOO_SMALL)
_NO_SUCH_RESOURCE = int(Reason.NO_SUCH_RESOURCE)
_WRONG_MODEL = int(Reason.WRONG_MODEL)
_TOO_FEW_GPUS = int(Reason.TOO_FEW_GPUS)
_ISLAND_TOO_SMALL = int(Reason.ISLAND_TOO_SMALL)
_NO_FREE_GPUS = int(Reason.NO_FREE_GPUS)
_FRAGMENTED = int(Reason.FRAGMENTED)
_NO_FREE_CPU = int(Reason.NO_FREE_CPU)
_NO_FREE_MEMORY = int(Reason.NO_FREE_MEMORY)
_PLUGIN_BUSY = int(Reason.PLUGIN_BUSY)
_NO_FREE_PEERS = int(Reason.NO_FREE_PEERS)
_SHARES_USED_UP = int(Reason.SHARES_USED_UP)


@inlined
def enough(free, asked):
    """Whether a node has enough CPU or memory. A pod that requests none fits even on an over-committed node,
    as in kube-scheduler (NodeResourcesFit)."""
    return (asked <= 0) | (free >= asked)


@inlined
def share_mib(capacity, memory_mib, memory_milli):
    """MiB that a share takes of a GPU of this capacity: ``memory_mib + capacity * memory_milli // 1000``.

    Exact in float32 for capacities below 2**24: with the capacity split into thousands and a remainder, no
    product is rounded, and the error of the division by 1000 is less than the added half thousandth.
    """
    thousands = np.floor(capacity * np.float32(0.001))
    rest = (capacity - thousands * np.float32(1000)) * memory_milli
    return memory_mib + thousands * memory_milli + np.floor(rest * np.float32(0.001) + np.float32(0.0005))


@inlined
def share_fits(divisible, compute, memory, compute_milli, memory_mib):
    """Whether a GPU with this much free can hold the share. A GPU without free compute holds no share."""
    return (divisible != 0) & (compute >= max(compute_milli, np.float32(1))) & (memory >= memory_mib)


@kernel(read(I8, 1), read(I8, 1), I8, I8, write(I1, 1))
def node_reasons(cpu, memory, cpu_milli, memory_bytes, reasons):
    """Initialize ``reasons`` (N,): 0, or the code for not enough free CPU or memory."""
    for n in range(reasons.size):
        code = 0 if enough(memory[n], memory_bytes) else _NO_FREE_MEMORY
        reasons[n] = code if enough(cpu[n], cpu_milli) else _NO_FREE_CPU


@kernel(read(I4, 1), read(I4, 1), I4, write(I1, 1))
def device_reasons(free, total, count, reasons):
    """Overlay the reasons of ``count`` devices of one resource: ``free`` and ``total`` (N,) devices."""
    for n in range(reasons.size):
        code = _NO_FREE_GPUS if free[n] < count else reasons[n]
        code = _TOO_FEW_GPUS if total[n] < count else code
        reasons[n] = _NO_SUCH_RESOURCE if total[n] <= 0 else code


class Gpus(NamedTuple):
    """The GPUs of all nodes, (G, N) each: free and total milli and MiB, where a share may be placed now, and
    where one may be placed on the empty node."""

    compute: Float32Array2D
    memory: Float32Array2D
    compute_capacity: Float32Array2D
    memory_capacity: Float32Array2D
    divisible: UInt8Array2D
    shareable: UInt8Array2D


_SHARE = I4, F4, F4, F4
"""``count`` shares on different GPUs, and compute milli, MiB and thousandths of memory of each."""


@kernel(record_type(Gpus), *_SHARE, *[write(I4, 1)] * 2, *[write(F4, 1)] * 2, write(I1, 1))
def share_reasons(
    gpus, count, compute_milli, memory_mib, memory_milli, fitting, ever, free_compute, free_memory, reasons
):
    """Overlay the reasons of ``count`` shares.

    Scratch, (N,) each: GPUs that can hold a share now (``fitting``) and when empty (``ever``), and the free
    compute and free memory of the latter, the memory in shares.
    """
    fitting[:] = 0
    ever[:] = 0
    free_compute[:] = 0
    free_memory[:] = 0
    for g in range(gpus.compute.shape[0]):
        for n in range(reasons.size):
            capacity, memory = gpus.memory_capacity[g, n], gpus.memory[g, n]
            need = share_mib(capacity, memory_mib, memory_milli)
            fits_empty = share_fits(
                gpus.shareable[g, n], gpus.compute_capacity[g, n], capacity, compute_milli, need
            )
            fits = share_fits(gpus.divisible[g, n], gpus.compute[g, n], memory, compute_milli, need)
            ever[n] += fits_empty
            fitting[n] += fits_empty & fits
            free_compute[n] += fits_empty * gpus.compute[g, n]
            free_memory[n] += fits_empty * memory / max(need, np.float32(1))
    for n in range(reasons.size):
        enough_in_sum = (free_compute[n] >= count * compute_milli) & (
            free_memory[n] >= count * (memory_mib + memory_milli > 0)
        )
        taken = _FRAGMENTED if enough_in_sum else _NO_FREE_GPUS
        code = taken if fitting[n] < count else reasons[n]
        code = _TOO_FEW_GPUS if ever[n] < count else code
        if ever[n] == 0:
            code = _NO_SUCH_RESOURCE
            for g in range(gpus.compute.shape[0]):
                code = _GPUS_TOO_SMALL if gpus.shareable[g, n] else code
        reasons[n] = code


@kernel(record_type(Gpus), read(U1, 2), read(U1, 1), *_SHARE, *[write(I4, 1)] * 2, write(I1, 1))
def island_reasons(
    gpus, island, placed, count, compute_milli, memory_mib, memory_milli, fitting, ever, reasons
):
    """Overlay the reasons of ``count`` shares that must be in one NVLink island, on nodes that place their
    GPUs one by one: ``placed`` (N,). ``island`` (G, N) is the lowest GPU of a GPU's island. Scratch, (G,) by
    island: GPUs that can hold a share now (``fitting``) and when empty (``ever``)."""
    capacity, need = np.float32(-1), np.float32(0)
    for n in range(reasons.size):
        if placed[n] == 0 or reasons[n] == _NO_SUCH_RESOURCE:
            continue
        fitting[:] = 0
        ever[:] = 0
        most_now, most_ever = 0, 0
        for g in range(island.shape[0]):
            if gpus.memory_capacity[g, n] != capacity:  # rarely
                capacity = gpus.memory_capacity[g, n]
                need = share_mib(capacity, memory_mib, memory_milli)
            if share_fits(gpus.shareable[g, n], gpus.compute_capacity[g, n], capacity, compute_milli, need):
                first = island[g, n]
                ever[first] += 1
                most_ever = max(most_ever, ever[first])
                fitting[first] += share_fits(
                    gpus.divisible[g, n], gpus.compute[g, n], gpus.memory[g, n], compute_milli, need
                )
                most_now = max(most_now, fitting[first])
        if most_ever < count:
            reasons[n] = _ISLAND_TOO_SMALL
        elif most_now < count and reasons[n] not in (_NO_FREE_GPUS, _FRAGMENTED, _SHARES_USED_UP):
            reasons[n] = _NO_FREE_PEERS


@kernel(read(I4, 1), read(I4, 1), read(BOOL, 1), I4, write(I1, 1))
def peer_reasons(free, total, counted, count, reasons):
    """Overlay the reasons of ``count`` devices that must be NVLink peers where a device plugin chooses them,
    ``counted`` (N,): ``free`` and ``total`` (N,) devices are guaranteed to be peers."""
    for n in range(reasons.size):
        lacks = counted[n] & (free[n] < count) & (reasons[n] == 0)
        code = _NO_FREE_PEERS if lacks else reasons[n]
        too_small = counted[n] & (total[n] < count) & (code != _NO_SUCH_RESOURCE) & (code != _TOO_FEW_GPUS)
        reasons[n] = _ISLAND_TOO_SMALL if too_small else code


@kernel(read(I2, 1), read(U1, 1), read(I2, 1), I2, read(U1, 1), read(I1, 1), write(I1, 1))
def standing_reasons(model, allowed, max_island, island, overcommitted, blocked, reasons):
    """Overlay the reasons that no eviction removes, the most severe last: (N,) model, island,
    over-commitment, blocked.

    ``allowed`` (M,): whether the pod may run on each model; ``island``: the size needed. A busy device plugin
    is soon idle again, so it is the reason only if there is no other.
    """
    for n in range(reasons.size):
        too_small = (max_island[n] < island) & (reasons[n] != _NO_SUCH_RESOURCE)
        code = _ISLAND_TOO_SMALL if too_small else reasons[n]
        code = _WRONG_MODEL if (allowed[model[n]] == 0) & (code != _NO_SUCH_RESOURCE) else code
        code = _OVERCOMMITTED if overcommitted[n] else code
        passes = (blocked[n] == 0) | ((blocked[n] == _PLUGIN_BUSY) & (code != 0))
        reasons[n] = code if passes else blocked[n]


@kernel(I8, *[read(F4, 2)] * 4, read(U1, 2), read(I4, 2), write(U1, 2), write(U1, 1))
def note_untouched(
    row, compute, memory, compute_capacity, memory_capacity, shareable, share_slots, divisible, untouched
):  # fmt: skip
    """Set ``divisible`` (G, N) for the node ``row``, where it can hold another share, and ``untouched`` (G,),
    which of those GPUs hold none yet."""
    for g in range(compute.shape[0]):
        divisible[g, row] = shareable[g, row] if share_slots[g, row] > 0 else 0
        whole = compute[g, row] >= compute_capacity[g, row] and memory[g, row] >= memory_capacity[g, row]
        untouched[g] = divisible[g, row] != 0 and whole


@kernel(I8, *[read(F4, 2)] * 3, read(U1, 2), F4, F4, F4, write(U1, 1))
def note_fitting(
    row, compute, memory, memory_capacity, divisible, compute_milli, memory_mib, memory_milli, fits
):
    """Set ``fits`` (G,): 1 for the GPUs of the node ``row`` that can hold this share."""
    for g in range(compute.shape[0]):
        need = share_mib(memory_capacity[g, row], memory_mib, memory_milli)
        fits[g] = share_fits(divisible[g, row], compute[g, row], memory[g, row], compute_milli, need)


@kernel(read(I1, 1), read(F4, 1), returns=BOOL)
def finite_where_fits(codes, cost):
    """Whether ``cost`` is finite wherever the reason code is 0. With numpy, ``filter`` takes 5 % more CPU."""
    finite = True
    for i in range(codes.size):
        finite &= (codes[i] != 0) | np.isfinite(cost[i])
    return finite
