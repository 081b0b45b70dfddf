"""Compiled functions of ``bound.py``: the best content of a node by dynamic programming."""

from packing.jit import F8, I8, inlined, kernel, read, write


@inlined
def _fill_gpu(cpu, size, count, worth, gpu, pick_gpu):
    """The knapsack of shares on one GPU, any number of each type."""
    bins, units = gpu.shape[0] - 1, gpu.shape[1] - 1
    gpu[:], pick_gpu[:] = 0.0, -1
    for t in range(worth.size):
        if worth[t] <= 0 or count[t] > 1 or size[t] >= bins:
            continue
        for b in range(size[t], bins + 1):
            for c in range(cpu[t], units + 1):
                value = gpu[b - size[t], c - cpu[t]] + worth[t]
                if value > gpu[b, c]:
                    gpu[b, c], pick_gpu[b, c] = value, t


@inlined
def _add_shares(g, gpu, node, pick_node):
    """The best content of ``g`` GPUs if shares take the last of them, over the CPU that these take."""
    bins = gpu.shape[0] - 1
    for c in range(node.shape[1]):
        node[g, c], pick_node[g, c] = node[g - 1, c], -1
        for used in range(c + 1):
            value = node[g - 1, c - used] + gpu[bins, used]
            if value > node[g, c]:
                node[g, c], pick_node[g, c] = value, -1 - used


@inlined
def _add_whole(g, t, cpu, count, worth, node, pick_node):
    """Place a request of whole GPUs instead where that is worth more."""
    for c in range(cpu, node.shape[1]):
        value = node[g - count, c - cpu] + worth
        if value > node[g, c]:
            node[g, c], pick_node[g, c] = value, t


@kernel(*[read(I8, 1)] * 3, read(F8, 1), write(F8, 2), write(I8, 2), write(F8, 2), write(I8, 2))
def best_contents(cpu, size, count, worth, gpu, pick_gpu, node, pick_node):
    """Compute the maximum worth of requests on nodes of up to G GPUs and C units of CPU.

    ``cpu``, ``size`` (bins of a GPU), ``count`` (GPUs) and ``worth`` (T,) describe the request types; types
    without worth are left out. ``gpu`` (B + 1, C + 1) becomes the worth of single shares on one GPU by bins
    and CPU, ``pick_gpu`` the type taken last (-1: none). ``node`` (G + 1, C + 1) becomes the worth by GPUs
    and CPU, ``pick_node`` the type of whole GPUs taken last, or -1 - c for one GPU of shares with c units of
    CPU.
    """
    _fill_gpu(cpu, size, count, worth, gpu, pick_gpu)
    node[0] = 0.0
    for g in range(1, node.shape[0]):
        _add_shares(g, gpu, node, pick_node)
        for t in range(worth.size):
            if worth[t] > 0 and count[t] <= g and size[t] == gpu.shape[0] - 1:
                _add_whole(g, t, cpu[t], count[t], worth[t], node, pick_node)
