"""Kernel for the cost of a request on each node under FGD, for nodes that changed since the last call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packing.cost.kernel_args import (
    COMPUTE,
    COUNT,
    CPU,
    ISLAND,
    MAX_PER_GPU,
    CachedCost,
    MixTypes,
    Nodes,
    RequestArgs,
)
from packing.cost.node_kernels import (
    CAPACITY,
    FREE,
    FREE_COMPUTE,
    FREE_MEMORY,
    TAKES,
    free_gpu,
    load_gpus,
    node_fits,
    same_as_earlier_gpu,
    shares_on_node,
    tightest_gpus,
)
from packing.cost.slot_kernels import needed_mib
from packing.jit import Float32Array, Float32Array2D, inlined, record_kernel


class MixWeights(NamedTuple):
    """The ``frequency`` (T,) of each type of a mix; ``gpu`` (GPU_ROWS, G) is scratch."""

    frequency: Float32Array
    gpu: Float32Array2D


@inlined
def _unusable(n, cpu, model, types, frequency, gpu):
    """Expected free GPU of node ``n`` that the next request cannot use, in GPUs; ``gpu`` is its free
    state."""
    amounts = types.amounts
    free = free_gpu(gpu)
    expected = 0.0
    for t in range(frequency.size):
        too_small, fitting = 0.0, 0
        if amounts[MAX_PER_GPU, t] > 0 and cpu >= amounts[CPU, t] and types.allowed[model[n], t] > 0:
            for g in range(gpu.shape[1]):
                need = needed_mib(t, gpu[CAPACITY, g], amounts)
                fits = gpu[FREE_COMPUTE, g] >= amounts[COMPUTE, t] and gpu[FREE_MEMORY, g] >= need
                fitting += fits
                too_small += 0.0 if fits else gpu[FREE, g]
        useless = amounts[MAX_PER_GPU, t] == 0 or fitting < amounts[COUNT, t]
        expected += frequency[t] * (free if useless else too_small)
    return expected


@inlined
def _take(chosen, gpu, share, sign):
    """Take ``share`` milli of each of the ``chosen`` GPUs (sign 1), or release it (-1)."""
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            of_memory = gpu[TAKES, g] / max(gpu[CAPACITY, g], np.float32(1))
            part = np.float32(0.5) * (share / np.float32(1000) + of_memory)
            gpu[FREE_COMPUTE, g] -= sign * share
            gpu[FREE_MEMORY, g] -= sign * gpu[TAKES, g]
            gpu[FREE, g] -= sign * part


@record_kernel(CachedCost, Nodes, RequestArgs, MixTypes, MixWeights)
def fgd_cost(cached, nodes, request, types, weights):
    """Bring ``cached`` up to date: cost = 100 - score, infinite where the request does not fit, and as the
    first of ``terms`` the increase of the unusable GPU before rounding."""
    asked, gpu = request.amounts, weights.gpu
    for n in range(cached.seen.size):
        if cached.seen[n] == nodes.generation[n]:
            continue
        cached.seen[n], cached.cost[n], cached.gpus[n] = nodes.generation[n], np.inf, 0
        if not node_fits(n, nodes, request):
            continue
        count, share, mib, milli = shares_on_node(n, request, nodes.divisible_pool)
        if load_gpus(n, nodes, count, share, mib, milli, asked[ISLAND], gpu) < count:
            continue
        cpu = nodes.cpu[n]
        before = _unusable(n, cpu, nodes.model, types, weights.frequency, gpu)
        for g in range(gpu.shape[1] if count == 1 else 1):
            if count == 1 and (gpu[TAKES, g] < 0 or same_as_earlier_gpu(g, gpu)):
                continue
            chosen = np.int64(1) << g if count == 1 else tightest_gpus(gpu, count)
            _take(chosen, gpu, share, np.float32(1))
            rise = _unusable(n, cpu - asked[CPU], nodes.model, types, weights.frequency, gpu) - before
            _take(chosen, gpu, share, np.float32(-1))
            score = 100 - np.floor(100 / (1 + np.exp(rise)) + 1e-4)
            if score < cached.cost[n]:
                cached.cost[n], cached.gpus[n], cached.terms[0, n] = score, chosen, rise
