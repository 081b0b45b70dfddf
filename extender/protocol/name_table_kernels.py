"""Kernels that look up the numbers of node names. Indices are unsigned (see ``node_name_kernels``)."""

from __future__ import annotations

import numpy as np

from packing.jit import I4, I8, U1, U4, inlined, kernel, read, write

_U = np.uint64
_NAMES = read(U1, 1), read(U4, 1), read(U4, 1)


@inlined
def _hash(text, start, length, weights, mask):
    """The hash of a name: the sum of its bytes, each times a weight for its position."""
    total = np.uint32(0)
    for i in range(min(length, _U(weights.size))):
        total += np.uint32(text[start + i]) * weights[i]
    return _U(total >> np.uint32(7)) & mask


@kernel(read(U1, 1), read(U4, 1), read(U4, 1), read(U4, 1), write(I4, 1))
def build_table(text, starts, lengths, weights, table):
    """Insert the index of each name into the hash ``table``, which is filled with -1. Its size is a power of
    two greater than the number of names."""
    mask = _U(table.size - 1)
    for i in range(_U(starts.size)):
        at = _hash(text, _U(starts[i]), _U(lengths[i]), weights, mask)
        while table[at] >= 0:
            at = (at + _U(1)) & mask
        table[at] = i


@inlined
def _is(entry, text, start, length, known, known_starts, known_lengths):
    """Whether the name is the known one with this index."""
    if _U(known_lengths[entry]) != length:
        return False
    differs, known_start = np.uint8(0), _U(known_starts[entry])
    for j in range(length):  # without break, so that the loop is vectorized
        differs |= text[start + j] ^ known[known_start + j]
    return not differs


@kernel(*_NAMES, *_NAMES, read(U4, 1), read(I4, 1), read(I8, 1), write(I4, 1), write(I8, 1))
def look_up(text, starts, lengths, known, known_starts, known_lengths, weights, table, values, after, found):
    """Fill ``found`` with the value of each name in the ``table`` of the ``known`` names, and -1 for all
    others.

    ``after``: for each known name the one that is likely to follow it in a request. It is compared first,
    which is cheaper than a lookup, and learned from requests that have at least half of the names.
    """
    mask = _U(table.size - 1)
    learns, likely, previous = 2 * starts.size >= after.size, I8(0 if after.size else -1), I8(-1)
    for i in range(_U(starts.size)):
        start, length, found_entry = _U(starts[i]), _U(lengths[i]), I8(-1)
        if likely >= 0 and _is(_U(likely), text, start, length, known, known_starts, known_lengths):
            found_entry = likely
        else:
            at = _hash(text, start, length, weights, mask)
            while table[at] >= 0:
                entry = _U(table[at])
                if _is(entry, text, start, length, known, known_starts, known_lengths):
                    found_entry = I8(entry)
                    break
                at = (at + _U(1)) & mask
            if learns and found_entry >= 0 and previous >= 0:
                after[_U(previous)] = found_entry
        found[i] = values[_U(found_entry)] if found_entry >= 0 else -1
        previous = found_entry
        likely = I8(after[_U(found_entry)]) if found_entry >= 0 else I8(-1)
