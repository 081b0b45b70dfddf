"""Kernel for the sets of NUMA nodes that a Topology Manager chooses, on many machines at once
(``numa_alignment.py``)."""

from packing.jit import BOOL, I8, inlined, kernel, read, write

_MOST_SETS = 4096
"""Maximum number of sets of NUMA nodes that are tried. Machines with 8 NUMA nodes have at most 70 of one
size."""
_ABOVE_ALL = 1 << 62


@inlined
def _least_nodes(total, r, amount):
    """Minimum number of NUMA nodes for this amount if everything is free: more than exist if all of them
    together have less, 0 if the resource is bound to none."""
    count, missing, below = 0, amount, I8(_ABOVE_ALL)
    while missing > 0:
        largest, times = I8(-1), 0
        for k in range(total.shape[0]):
            if largest < total[k, r] < below:
                largest, times = total[k, r], 0
            times += total[k, r] == largest
        if largest <= 0:
            return 0 if largest < 0 and below == _ABOVE_ALL else total.shape[0] + 1
        for _ in range(times):
            if missing > 0:
                count, missing = count + 1, missing - largest
        below = largest
    return count


@inlined
def _fits(free, asked, nodes, size):
    """Whether these NUMA nodes have the requested amounts free."""
    for r in range(asked.size):
        missing = asked[r]
        for place in range(size):
            missing -= free[nodes[place], r]
        if asked[r] and missing > 0:
            return False
    return True


@inlined
def _useful(total, asked, useful):
    """Fill ``useful`` with the NUMA nodes that have some of every requested resource, and return their
    number."""
    count = 0
    for k in range(total.shape[0]):
        has_all = True
        for r in range(asked.size):
            has_all = has_all and (asked[r] == 0 or total[k, r] > 0)
        if has_all:
            useful[count] = k
            count += 1
    return count


@inlined
def _next(places, size, count):
    """Advance these places in ``count`` to the next set in the order of masks; False if there is none."""
    moved = -1
    for place in range(size):
        if moved < 0 and places[place] + 1 < (places[place + 1] if place + 1 < size else count):
            moved = place
    if moved >= 0:
        places[moved] += 1
    for place in range(moved):
        places[place] = place
    return moved >= 0


@inlined
def _choose(single, free, total, amounts, asked, useful, places, nodes):
    """Fill ``nodes`` with the first set that all resources prefer, in the order of their masks, and ``asked``
    with the amounts bound to it. Returns the number of nodes, -1 if there is no such set. A NUMA node without
    any of a resource is in no set of the resource's preferred size."""
    size = 0
    for r in range(amounts.size):
        least = _least_nodes(total, r, amounts[r])
        asked[r] = amounts[r] if least else 0
        if least and size and least != size:
            return -1
        size = least if least else size
    if size == 0:
        return 0
    count = _useful(total, asked, useful)
    if size > count or (single and size > 1):
        return -1
    for place in range(size):
        places[place] = place
    for _ in range(_MOST_SETS):
        for place in range(size):
            nodes[place] = useful[places[place]]
        if _fits(free, asked, nodes, size):
            return size
        if not _next(places, size, count):
            return -1
    return -1


@inlined
def _copy(amounts, copied):
    for k in range(copied.shape[0]):
        for r in range(copied.shape[1]):
            copied[k, r] = amounts[k, r]


@kernel(
    read(BOOL, 1), write(I8, 3), read(I8, 3), read(I8, 2), read(BOOL, 1), read(I8, 2), read(I8, 1),
    read(I8, 2), write(I8, 2), write(I8, 1), write(I8, 2), write(BOOL, 1),
)  # fmt: skip
def align(single, free, total, amounts, stays, pods, queue, turns, kept, asked, scratch, fits):
    """Set ``fits`` (M,): for each machine whether the last pod of its queue fits after those before it.

    ``free`` and ``total`` (M, K, R), -1 in ``total`` where a NUMA node does not list a resource; ``free`` is
    reduced to the rest. ``amounts`` (C, R) of containers, ``stays`` (C,); ``pods`` (P, 2): range of their
    containers; ``queue``: pods, ``turns`` (M, 2): range of each machine in it. A pod before the last takes
    nothing if it does not fit. Scratch: ``kept`` (K, R), ``asked`` (R,), ``scratch`` (3, K).
    """
    for m in range(single.size):
        for turn in range(turns[m, 0], turns[m, 1]):
            pod, last, ok = queue[turn], turn == turns[m, 1] - 1, True
            _copy(free[m], kept)
            for c in range(pods[pod, 0], pods[pod, 1]):
                if not ok or not (last or stays[c]):
                    continue
                size = _choose(
                    single[m], free[m], total[m], amounts[c], asked, scratch[0], scratch[1], scratch[2]
                )
                ok = size >= 0
                for r in range(asked.size if ok and stays[c] else 0):
                    for place in range(size):
                        taken = min(asked[r], free[m, scratch[2, place], r])
                        free[m, scratch[2, place], r] -= taken
                        asked[r] -= taken
            if last:
                fits[m] = ok
            elif not ok:
                _copy(kept, free[m])
