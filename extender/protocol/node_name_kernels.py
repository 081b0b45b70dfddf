"""Kernels for node names in JSON: find each name, look up its number, and write names with texts between
them.

Indices are unsigned: for signed ones numba checks for negative values, and then does not vectorize the loops
over bytes (2 to 6 times slower).
"""

from __future__ import annotations

import numpy as np

from packing.jit import I4, I8, U1, U4, inlined, kernel, read, write

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
