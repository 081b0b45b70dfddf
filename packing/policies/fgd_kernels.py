"""Compiled function behind ``policies/fgd.py``."""

from __future__ import annotations

import numpy as np

from packing.cost.kernel_args import (
    ASK,
    COMPUTE,
    COUNT,
    CPU,
    ISLAND,
    MOST,
    NODES,
    SHARE_MIB,
    SHARE_MILLI,
    TYPES,
)
from packing.cost.node_kernels import (
    CAPACITY,
    FREE,
    FREE_COMPUTE,
    FREE_MEMORY,
    TAKES,
    as_shares,
    free_gpu,
    keep_one_island,
    like_another,
    load,
    node_fits,
    tightest,
)
from packing.jit import F4, I8, inlined, kernel, read, write


@inlined
def _unusable(n, cpu, model, amounts, allowed, frequency, gpu):
    """Expected free GPU of node ``n`` that the next request cannot use, in GPUs, with ``gpu`` its free
    state."""
    free = free_gpu(gpu)
    expected = 0.0
    for t in range(frequency.size):
        crumbs, room = 0.0, 0
        if amounts[MOST, t] > 0 and cpu >= amounts[CPU, t] and allowed[model[n], t] > 0:
            for g in range(gpu.shape[1]):
                need = amounts[SHARE_MIB, t] + amounts[SHARE_MILLI, t] * gpu[CAPACITY, g] / np.float32(1000)
                fits = gpu[FREE_COMPUTE, g] >= amounts[COMPUTE, t] and gpu[FREE_MEMORY, g] >= need
                room += fits
                crumbs += 0.0 if fits else gpu[FREE, g]
        useless = amounts[MOST, t] == 0 or room < amounts[COUNT, t]
        expected += frequency[t] * (free if useless else crumbs)
    return expected


@inlined
def _take(chosen, gpu, share, sign):
    """Take ``share`` milli of each of the ``chosen`` GPUs (sign 1), or give it back (-1)."""
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            of_memory = gpu[TAKES, g] / max(gpu[CAPACITY, g], np.float32(1))
            part = np.float32(0.5) * (share / np.float32(1000) + of_memory)
            gpu[FREE_COMPUTE, g] -= sign * share
            gpu[FREE_MEMORY, g] -= sign * gpu[TAKES, g]
            gpu[FREE, g] -= sign * part


@kernel(
    write(I8, 1), write(F4, 1), write(I8, 1), write(F4, 2), *NODES, *ASK, *TYPES, read(F4, 1), write(F4, 2)
)
def fgd_cost(
    seen, cost, gpus, terms,
    generation, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory,
    memory_capacity, divisible, free, device_gpu, divides, divided, free_cpu, free_memory, island,
    exact, asked, allowed, devices, amounts, needed, suits, needs_any, frequency, gpu,
):  # fmt: skip
    """Cost (N,) = 100 - score where a node changed since ``seen``, infinite where the request does not fit.

    ``frequency`` (T,) is that of the types; ``gpus`` (N,) the GPUs it takes, as a bit mask; ``terms`` (3, N)
    the rise of the unusable GPU, before rounding; ``gpu`` (5, G) is scratch. The rest are fields of
    ``Nodes``, ``RequestArgs`` and ``MixTypes``.
    """
    for n in range(seen.size):
        if seen[n] == generation[n]:
            continue
        seen[n], cost[n], gpus[n] = generation[n], np.inf, 0
        if not node_fits(
            n, free_cpu, free_memory, model, max_island, overcommitted, blocked, free, divided, exact, asked,
            allowed, devices,
        ):  # fmt: skip
            continue
        count, share, mib, milli = as_shares(n, asked, devices, divides)
        fitting = load(n, compute, memory, memory_capacity, divisible, share, mib, milli, gpu)
        if count > 0 and asked[ISLAND] > 0:
            fitting = keep_one_island(n, island, count, gpu)
        if fitting < count:
            continue
        before = _unusable(n, cpu[n], model, amounts, suits, frequency, gpu)
        for g in range(gpu.shape[1] if count == 1 else 1):
            if count == 1 and (gpu[TAKES, g] < 0 or like_another(g, gpu)):
                continue
            chosen = np.int64(1) << g if count == 1 else tightest(gpu, count)
            _take(chosen, gpu, share, np.float32(1))
            rise = _unusable(n, cpu[n] - asked[CPU], model, amounts, suits, frequency, gpu) - before
            _take(chosen, gpu, share, np.float32(-1))
            score = 100 - np.floor(100 / (1 + np.exp(rise)) + 1e-4)
            if score < cost[n]:
                cost[n], gpus[n], terms[0, n] = score, chosen, rise
