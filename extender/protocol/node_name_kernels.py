"""Kernels for node names in JSON: find each name, and write names with texts between them.

Indices are unsigned: for signed ones numba checks for negative values, and then does not vectorize the loops
over bytes (2 to 6 times slower).
"""

from __future__ import annotations

import numpy as np

from packing.jit import I8, U1, U4, inlined, kernel, read, write

_U = np.uint64
_QUOTE, _BACKSLASH, _COMMA, _END_OF_ARRAY, _END_OF_OBJECT = (np.uint8(ord(c)) for c in '"\\,]}')
_SPACE, _LAST_ASCII = np.uint8(0x20), np.uint8(0x7E)


@inlined
def _quotes(text, first, end):
    """Number of quotes in these bytes; -1 unless all of them are plain ASCII without a backslash."""
    special, quotes = np.uint8(0), np.uint32(0)
    for i in range(first, end):
        special |= np.uint8(text[i] < _SPACE) | np.uint8(text[i] > _LAST_ASCII)
        special |= np.uint8(text[i] == _BACKSLASH)
        quotes += np.uint32(text[i] == _QUOTE)
    return I8(-1) if special else I8(quotes)


@inlined
def _hop(text, at, starts, lengths, guess):
    """Find the strings; see ``scan``. With ``guess``, each is first assumed to be as long as the previous
    one: the result is valid only if its quotes are all there are."""
    end, count, length = _U(text.size), _U(0), _U(0)
    while count < _U(starts.size):
        first = at
        at += length
        if not (guess and at + _U(2) < end and text[at] == _QUOTE and text[at + _U(2)] == _QUOTE):
            at = first
            while at < end and text[at] != _QUOTE:
                at += _U(1)
        if at + _U(2) >= end:
            return I8(-1)
        length = at - first
        starts[count], lengths[count] = first, length
        count += _U(1)
        if text[at + _U(1)] == _END_OF_ARRAY:
            ends = at + _U(3) == end and text[at + _U(2)] == _END_OF_OBJECT
            return I8(count) if ends else I8(-1)
        if text[at + _U(1)] != _COMMA or text[at + _U(2)] != _QUOTE:
            return I8(-1)
        at += _U(3)
    return I8(-1)


@kernel(read(U1, 1), I8, write(U4, 1), write(U4, 1), returns=I8)
def scan(text, start, starts, lengths):
    """Find the strings of a JSON array that ends an object at the end of ``text``. ``start`` is the position
    after the opening quote of the first string.

    Fills ``starts`` and ``lengths``, and returns the number of strings. Returns -1 unless all of them are
    plain ASCII with only commas between them.
    """
    quotes = _quotes(text, _U(start), _U(text.size))
    if quotes < 0:
        return I8(-1)
    count = _hop(text, _U(start), starts, lengths, True)
    if count >= 0 and I8(2) * count - I8(1) == quotes:
        return count
    return _hop(text, _U(start), starts, lengths, False)


_NAMES = read(U1, 1), read(U4, 1), read(U4, 1)


@kernel(*_NAMES, *_NAMES, read(U1, 1), write(U1, 1))
def interleave(text, starts, lengths, after, after_starts, after_lengths, which, out):
    """Write each name, followed by the text with the index ``which`` among those ``after`` names."""
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
