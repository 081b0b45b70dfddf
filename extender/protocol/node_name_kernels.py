"""Kernels on node names in JSON: find each name, look up its number, and write names with texts between them.

Indices are unsigned: for signed ones numba checks whether they count from the end, and then does not
vectorise the loops over bytes (2 to 6 times slower).
"""

from __future__ import annotations

import numpy as np

from packing.jit import I4, I8, U1, U4, inlined, kernel, read, write

_U = np.uint64
_QUOTE, _BACKSLASH, _COMMA, _END_OF_ARRAY, _END_OF_OBJECT = (np.uint8(ord(c)) for c in '"\\,]}')
_SPACE, _LAST_ASCII = np.uint8(0x20), np.uint8(0x7E)


@kernel(read(U1, 1), I8, write(U4, 1), write(U4, 1), returns=I8)
def scan(text, start, starts, lengths):
    """Find the strings of a JSON array that ends an object at the end of ``text``. ``start`` is the position
    after the quote of the first string.

    Fills ``starts`` and ``lengths``, and returns the number of strings. Returns -1 unless all of them are
    plain ASCII with only commas between them.
    """
    end = _U(text.size)
    special = np.uint8(0)
    for i in range(_U(start), end):
        special |= np.uint8(text[i] < _SPACE) | np.uint8(text[i] > _LAST_ASCII)
        special |= np.uint8(text[i] == _BACKSLASH)
    if special:
        return I8(-1)
    at, count = _U(start), _U(0)
    while count < _U(starts.size):
        first = at
        while at < end and text[at] != _QUOTE:
            at += _U(1)
        if at + _U(2) >= end:
            return I8(-1)
        starts[count], lengths[count] = first, at - first
        count += _U(1)
        if text[at + _U(1)] == _END_OF_ARRAY:
            ends = at + _U(3) == end and text[at + _U(2)] == _END_OF_OBJECT
            return I8(count) if ends else I8(-1)
        if text[at + _U(1)] != _COMMA or text[at + _U(2)] != _QUOTE:
            return I8(-1)
        at += _U(3)
    return I8(-1)


@inlined
def _hash(text, start, length, weights, mask):
    """The hash of a name: the sum of its bytes, each times a weight for its position."""
    total = np.uint32(0)
    for i in range(min(length, _U(weights.size))):
        total += np.uint32(text[start + i]) * weights[i]
    return _U(total >> np.uint32(7)) & mask


@kernel(read(U1, 1), read(U4, 1), read(U4, 1), read(U4, 1), write(I4, 1))
def build_table(text, starts, lengths, weights, table):
    """Enter the index of each name into the hash ``table``, which is full of -1. Its size is a power of two
    and larger than the number of names."""
    mask = _U(table.size - 1)
    for i in range(_U(starts.size)):
        at = _hash(text, _U(starts[i]), _U(lengths[i]), weights, mask)
        while table[at] >= 0:
            at = (at + _U(1)) & mask
        table[at] = i


@kernel(*[read(U1, 1), read(U4, 1), read(U4, 1)] * 2, read(U4, 1), read(I4, 1), read(I8, 1), write(I8, 1))
def look_up(text, starts, lengths, known, known_starts, known_lengths, weights, table, values, found):
    """The value of each name that is in the ``table`` of the ``known`` names; -1 for all others."""
    mask = _U(table.size - 1)
    for i in range(_U(starts.size)):
        start, length = _U(starts[i]), _U(lengths[i])
        found[i] = -1
        at = _hash(text, start, length, weights, mask)
        while table[at] >= 0:
            entry = _U(table[at])
            if _U(known_lengths[entry]) == length:
                differs, known_start = np.uint8(0), _U(known_starts[entry])
                for j in range(length):  # without break, so that the loop is vectorised
                    differs |= text[start + j] ^ known[known_start + j]
                if not differs:
                    found[i] = values[entry]
                    break
            at = (at + _U(1)) & mask


@kernel(*[read(U1, 1), read(U4, 1), read(U4, 1)] * 2, read(U1, 1), write(U1, 1))
def interleave(text, starts, lengths, after, after_starts, after_lengths, which, out):
    """Write each name, and after it the text with the index ``which`` among those ``after`` names."""
    at = _U(0)
    for i in range(_U(starts.size)):
        start, length = _U(starts[i]), _U(lengths[i])
        for j in range(length):
            out[at + j] = text[start + j]
        at += length
        start, length = _U(after_starts[which[i]]), _U(after_lengths[which[i]])
        for j in range(length):
            out[at + j] = after[start + j]
        at += length
