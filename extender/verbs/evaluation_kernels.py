"""Kernels for the nodes of a request. A request names thousands of nodes, or a few: for few, one call of a
kernel costs less than the dozen numpy calls that it replaces.
"""

from __future__ import annotations

import numpy as np

from packing.jit import F4, I1, I4, I8, U1, U4, inlined, kernel, read, write


@inlined
def _key(bits, order):
    """See ``evaluate.rank_keys``. ``bits``: of the cost."""
    cost = I8(bits)
    return ((cost ^ ((cost >> I8(31)) & I8(0x7FFFFFFF))) << I8(32)) | I8(order)


@kernel(
    read(I8, 1), read(I1, 1), read(I4, 1), read(U4, 1), I8, write(I1, 1), write(I4, 1), write(I8, 1),
    write(I8, 1),
)  # fmt: skip
def gather(rows, row_codes, row_bits, row_order, unknown, codes, bits, keys, tally):
    """Fill ``codes``, the ``bits`` of the costs and ``keys`` for these rows, and count each code.
    Row -1 has the code ``unknown``, and otherwise the values of the last row. In numpy filter takes a fifth
    more CPU."""
    last = row_codes.size - 1
    for i in range(rows.size):
        row = rows[i] if rows[i] >= 0 else last
        codes[i] = row_codes[row] if rows[i] >= 0 else unknown
        bits[i] = row_bits[row]
        keys[i] = _key(row_bits[row], row_order[row])
        tally[codes[i]] += 1


@kernel(read(I4, 1), read(U4, 1), write(I8, 1))
def sort_keys(bits, order, keys):
    """Fill ``keys``: see ``evaluate.rank_keys``. ``bits``: of the costs."""
    for i in range(keys.size):
        keys[i] = _key(bits[i], order[i])


@inlined
def _add(heap, held, key):
    """Add a key to a heap of ``held`` keys with the highest one first."""
    at = held
    while at > 0 and heap[(at - 1) >> 1] < key:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = key


@inlined
def _replace_highest(heap, key):
    at, size = 0, heap.size
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key


@kernel(read(I1, 1), read(I8, 1), write(I8, 1), write(U1, 1))
def mark_lowest(codes, keys, heap, chosen):
    """Set ``chosen`` to 1 for the ``heap.size`` nodes of code 0 with the lowest keys, else to 0.

    At least ``heap.size`` nodes have code 0. ``heap``: scratch.
    """
    held = 0
    for i in range(keys.size):
        if codes[i] == 0 and held < heap.size:
            _add(heap, held, keys[i])
            held += 1
        elif codes[i] == 0 and keys[i] < heap[0]:
            _replace_highest(heap, keys[i])
    highest, equal = heap[0], 0
    for i in range(heap.size):
        equal += heap[i] == highest
    for i in range(keys.size):
        chosen[i] = codes[i] == 0 and (keys[i] < highest or (keys[i] == highest and equal > 0))
        equal -= chosen[i] and keys[i] == highest


@kernel(read(I1, 1), read(F4, 1), read(I8, 1), I8, write(U1, 1))
def fill_scores(codes, cost, keys, most, scores):
    """Fill ``scores`` where the code is 0, see ``evaluate.fitting_scores``."""
    low, high, first = np.float64(np.inf), np.float64(-np.inf), -1
    for i in range(codes.size):
        scores[i] = 0
        if codes[i] == 0:
            low, high = min(low, np.float64(cost[i])), max(high, np.float64(cost[i]))
            if first < 0 or keys[i] < keys[first]:
                first = i
    if first < 0:
        return
    for i in range(codes.size):
        if codes[i] == 0:
            scores[i] = most - 1
            if high > low:
                scores[i] = np.floor((most - 1) * (high - np.float64(cost[i])) / (high - low))
    scores[first] = most
