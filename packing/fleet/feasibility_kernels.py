"""Every compiled function: the questions that are asked of all nodes in one call.

Arrays are GPU-major, (G, N) and C-contiguous, and the loops over nodes have no branch, so that they
vectorise across nodes: 20 times faster than the obvious loop over (N, G) with ``continue`` on a misfit.
Signatures are explicit (nothing compiles inside a request) and inputs read-only; they stand in the
decorator, in numba's terms, so the functions carry no annotations. Functions that call
each other share this file, because numba's cache does not see an edit in another one.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.fit_kernels import enough, share_fits, share_mib
from packing.jit import F4, I1, I2, I4, I8, U1, kernel, read, write
from packing.model.reasons import Reason

_UNKNOWN_NODE = int(Reason.UNKNOWN_NODE)
_OVERCOMMITTED = int(Reason.OVERCOMMITTED)
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


@kernel(read(I8, 1), read(I8, 1), I8, I8, write(I1, 1))
def node_reasons(cpu, memory, cpu_milli, memory_bytes, reasons):
    """Start ``reasons`` (N,): 0, or the code for too little free CPU or memory on the node.

    A pod that asks for none of it fits whatever is free, as kube-scheduler has it (NodeResourcesFit).
    """
    for n in range(reasons.size):
        code = 0 if enough(memory[n], memory_bytes) else _NO_FREE_MEMORY
        reasons[n] = code if enough(cpu[n], cpu_milli) else _NO_FREE_CPU


@kernel(read(I4, 1), read(I4, 1), I4, write(I1, 1))
def device_reasons(free, total, count, reasons):
    """Overlay the verdict on ``count`` devices of one pool: ``free`` and ``total`` (N,) devices."""
    for n in range(reasons.size):
        code = _NO_FREE_GPUS if free[n] < count else reasons[n]
        code = _TOO_FEW_GPUS if total[n] < count else code
        reasons[n] = _NO_SUCH_RESOURCE if total[n] <= 0 else code


@kernel(
    *[read(F4, 2)] * 4,
    *[read(U1, 2)] * 2,
    I4,
    F4,
    F4,
    F4,
    write(I1, 1),
    *[write(I4, 1)] * 2,
    *[write(F4, 1)] * 2,
)
def share_reasons(
    compute, memory, compute_capacity, memory_capacity, divisible, shareable,
    count, compute_milli, memory_mib, memory_milli, reasons,
    fitting, ever, free_compute, free_memory,
):  # fmt: skip
    """Overlay the verdict on ``count`` shares, one a GPU, over (G, N) free and capacity arrays.

    A share needs ``compute_milli`` of one GPU, and ``memory_mib`` with ``memory_milli`` thousandths of its
    memory, rounded down; a GPU without any free compute takes none at all.
    ``fitting``, ``ever``, ``free_compute`` and ``free_memory`` are scratch (N,): GPUs that can take a
    share now and when empty, and the free compute and memory of the node counted in shares.
    """
    gpus, nodes = compute.shape
    fitting[:] = 0
    ever[:] = 0
    free_compute[:] = 0
    free_memory[:] = 0
    for g in range(gpus):
        for n in range(nodes):
            need = share_mib(memory_capacity[g, n], memory_mib, memory_milli)
            fits_empty = share_fits(
                shareable[g, n], compute_capacity[g, n], memory_capacity[g, n], compute_milli, need
            )
            ever[n] += fits_empty
            now = share_fits(divisible[g, n], compute[g, n], memory[g, n], compute_milli, need)
            fitting[n] += fits_empty & now
            free_compute[n] += fits_empty * compute[g, n]
            free_memory[n] += fits_empty * memory[g, n] / max(need, np.float32(1))
    for n in range(nodes):
        loose = (free_compute[n] >= count * compute_milli) & (
            free_memory[n] >= count * (memory_mib + memory_milli > 0)
        )
        taken = _FRAGMENTED if loose else _NO_FREE_GPUS
        code = taken if fitting[n] < count else reasons[n]
        code = _TOO_FEW_GPUS if ever[n] < count else code
        reasons[n] = _NO_SUCH_RESOURCE if ever[n] == 0 else code


@kernel(
    *[read(F4, 2)] * 4,
    *[read(U1, 2)] * 3,
    read(U1, 1),
    I4,
    F4,
    F4,
    F4,
    write(I1, 1),
    *[write(I4, 1)] * 2,
)
def island_reasons(
    compute, memory, compute_capacity, memory_capacity, divisible, shareable, island, placed,
    count, compute_milli, memory_mib, memory_milli, reasons, fitting, ever,
):  # fmt: skip
    """Overlay the verdict on ``count`` shares that must be in one island, where they are ``placed`` (N,) GPU
    by GPU. Arguments as of ``share_reasons``; ``fitting`` and ``ever`` (G,) are scratch, by island."""
    gpus, nodes = compute.shape
    for n in range(nodes):
        if placed[n] == 0 or reasons[n] == _NO_SUCH_RESOURCE:
            continue
        fitting[:] = 0
        ever[:] = 0
        most_now, most_ever = 0, 0
        for g in range(gpus):
            need = share_mib(memory_capacity[g, n], memory_mib, memory_milli)
            if share_fits(
                shareable[g, n], compute_capacity[g, n], memory_capacity[g, n], compute_milli, need
            ):
                ever[island[g, n]] += 1
                most_ever = max(most_ever, ever[island[g, n]])
                fitting[island[g, n]] += share_fits(
                    divisible[g, n], compute[g, n], memory[g, n], compute_milli, need
                )
                most_now = max(most_now, fitting[island[g, n]])
        if most_ever < count:
            reasons[n] = _ISLAND_TOO_SMALL
        elif most_now < count and reasons[n] != _NO_FREE_GPUS and reasons[n] != _FRAGMENTED:
            reasons[n] = _NO_FREE_PEERS


@kernel(read(I2, 1), read(U1, 1), read(I2, 1), I2, read(U1, 1), read(I1, 1), write(I1, 1))
def standing_reasons(model, allowed, max_island, island, overcommitted, blocked, reasons):
    """Overlay what no eviction changes, the gravest last: (N,) model, island, over-commitment, blocked.

    ``allowed`` (M,) says per model id whether the pod may run there; ``island`` is the size needed. A busy
    plugin is soon free again: it is the reason only where there is no other.
    """
    for n in range(reasons.size):
        code = (
            _ISLAND_TOO_SMALL if (max_island[n] < island) & (reasons[n] != _NO_SUCH_RESOURCE) else reasons[n]
        )
        code = _WRONG_MODEL if (allowed[model[n]] == 0) & (code != _NO_SUCH_RESOURCE) else code
        code = _OVERCOMMITTED if overcommitted[n] else code
        passes = (blocked[n] == 0) | ((blocked[n] == _PLUGIN_BUSY) & (code != 0))
        reasons[n] = code if passes else blocked[n]


@kernel(I8, *[read(F4, 2)] * 4, read(U1, 2), read(I4, 2), write(U1, 2), write(U1, 1))
def note_untouched(
    row, compute, memory, compute_capacity, memory_capacity, shareable, slots, divisible, untouched
):  # fmt: skip
    """Set which GPUs of the node ``row`` can still take a share, ``divisible`` (G, N), and of which of those
    nobody has a part, ``untouched`` (G,)."""
    for g in range(compute.shape[0]):
        divisible[g, row] = shareable[g, row] if slots[g, row] > 0 else 0
        whole = compute[g, row] >= compute_capacity[g, row] and memory[g, row] >= memory_capacity[g, row]
        untouched[g] = divisible[g, row] != 0 and whole


@kernel(I8, *[read(F4, 2)] * 2, read(I4, 2), write(U1, 1))
def note_overcommitment(row, compute, memory, free, overcommitted):
    """Set ``overcommitted`` (N,) of the node ``row``: 1 if more of a GPU or a pool is taken than it has."""
    below = False
    for g in range(compute.shape[0]):
        below = below or compute[g, row] < 0 or memory[g, row] < 0
    for r in range(free.shape[0]):
        below = below or free[r, row] < 0
    overcommitted[row] = below
