"""Compiled work on the names of nodes in a message: where each stands, which number it has, and text again.

Indices are unsigned: for signed ones numba looks whether they count from the end, and the loops over
bytes are then not vectorised (2 to 6 times as slow).
"""

from __future__ import annotations

import numpy as np

from packing.jit import I4, I8, U1, U4, inlined, kernel, read, write

_U = np.uint64
_QUOTE, _BACKSLASH, _COMMA, _END_OF_ARRAY, _END_OF_OBJECT = (np.uint8(ord(c)) for c in '"\\,]}')
_SPACE, _LAST_ASCII = np.uint8(0x20), np.uint8(0x7E)


@kernel(read(U1, 1), I8, write(U4, 1), write(U4, 1), returns=I8)
def scan(text, start, starts, lengths):
    """Find the strings of a JSON array that ends an object and its ``text``, from within the first of them.

    Fills in where they start and how long they are, and returns how many they are; -1 where there is
    anything but plain ASCII strings with nothing between them but commas.
    """
    end = _U(text.size)
    strange = np.uint8(0)
    for i in range(_U(start), end):
        strange |= np.uint8(text[i] < _SPACE) | np.uint8(text[i] > _LAST_ASCII)
        strange |= np.uint8(text[i] == _BACKSLASH)
    if strange:
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
def _place(text, start, length, weights, mask):
    """Where a name belongs in the table: its bytes, each times a weight of its position."""
    total = np.uint32(0)
    for i in range(min(length, _U(weights.size))):
        total += np.uint32(text[start + i]) * weights[i]
    return _U(total >> np.uint32(7)) & mask


@kernel(read(U1, 1), read(U4, 1), read(U4, 1), read(U4, 1), write(I4, 1))
def fill(text, starts, lengths, weights, table):
    """Enter each name into ``table``: a power of two, larger than their number, of -1."""
    mask = _U(table.size - 1)
    for i in range(_U(starts.size)):
        at = _place(text, _U(starts[i]), _U(lengths[i]), weights, mask)
        while table[at] >= 0:
            at = (at + _U(1)) & mask
        table[at] = i


@kernel(*[read(U1, 1), read(U4, 1), read(U4, 1)] * 2, read(U4, 1), read(I4, 1), read(I8, 1), write(I8, 1))
def find(text, starts, lengths, known, known_starts, known_lengths, weights, table, values, found):
    """The value of each name that is in ``table``, which ``fill`` made of the ``known`` names; else -1."""
    mask = _U(table.size - 1)
    for i in range(_U(starts.size)):
        start, length = _U(starts[i]), _U(lengths[i])
        found[i] = -1
        at = _place(text, start, length, weights, mask)
        while table[at] >= 0:
            one = _U(table[at])
            if _U(known_lengths[one]) == length:
                differs, there = np.uint8(0), _U(known_starts[one])
                for j in range(length):  # all of them: a loop without a way out is vectorised
                    differs |= text[start + j] ^ known[there + j]
                if not differs:
                    found[i] = values[one]
                    break
            at = (at + _U(1)) & mask


@kernel(*[read(U1, 1), read(U4, 1), read(U4, 1)] * 2, read(U1, 1), write(U1, 1))
def weave(text, starts, lengths, after, after_starts, after_lengths, which, out):
    """Write each name and then the text ``which`` says of those that may follow one."""
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
