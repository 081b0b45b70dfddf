"""Kernel of ``pick_node.py`` that searches the node of lowest cost."""

import numpy as np

from packing.jit import F4, I8, kernel, read, write


@kernel(read(F4, 1), read(I8, 1), I8, I8, I8, write(I8, 1))
def lowest(cost, order, start, limit, luck, found):
    """Find the node of lowest cost among the first ``limit`` of finite cost, in ``order`` (N,) from
    ``start``.

    Ties are broken by ``order`` or, with a random number ``luck`` >= 0, at random. ``found`` (2,): the row or
    -1, and the number of nodes considered.
    """
    best, best_rank, seen, ties, looked, rank = -1, 0, 0, 0, 0, start - 1
    state = np.uint64(luck)
    for _ in range(order.size):
        rank = rank + 1 if rank + 1 < order.size else 0
        row = order[rank]
        looked += 1
        if cost[row] == np.inf:
            continue
        seen += 1
        if best < 0 or cost[row] < cost[best]:
            best, best_rank, ties = row, rank, 1
        elif cost[row] == cost[best]:
            ties += 1
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            drawn = (state >> np.uint64(33)) % np.uint64(ties) == 0
            if drawn if luck >= 0 else rank < best_rank:
                best, best_rank = row, rank
        if seen >= limit:
            break
    found[0], found[1] = best, looked
