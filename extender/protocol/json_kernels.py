"""A kernel that finds the members of a JSON object, or the elements of a list, without building any value."""

from __future__ import annotations

import numpy as np

from packing.jit import I8, U1, inlined, kernel, read, write

_QUOTE, _BACKSLASH, _COMMA, _COLON = (np.uint8(ord(c)) for c in '"\\,:')
_OBJECT, _LIST, _END_OF_OBJECT, _END_OF_LIST = (np.uint8(ord(c)) for c in "{[}]")
_BLANKS = tuple(np.uint8(ord(c)) for c in " \t\n\r")
MALFORMED, TOO_MANY = -1, -2


@inlined
def _past_space(text, at):
    while at < text.size and text[at] in _BLANKS:
        at += 1
    return at


@inlined
def _past_string(text, at):
    """The position after the string whose quote is at ``at``; beyond the text if it does not end."""
    at += 1
    while at < text.size and text[at] != _QUOTE:
        at += 2 if text[at] == _BACKSLASH else 1
    return at + 1


@inlined
def _past_value(text, at):
    """The position after the value that begins at ``at``; beyond the text if it does not end."""
    if text[at] == _QUOTE:
        return _past_string(text, at)
    depth = 0
    while at < text.size:
        letter = text[at]
        if letter == _QUOTE:
            at = _past_string(text, at) - 1
        elif letter in (_OBJECT, _LIST):
            depth += 1
        elif letter in (_END_OF_OBJECT, _END_OF_LIST):
            depth -= 1
            if depth < 0:
                return at  # after a number or a word
            if depth == 0:
                return at + 1
        elif depth == 0 and (letter == _COMMA or letter in _BLANKS):
            return at
        at += 1
    return at + 1


@inlined
def _past_key(text, at, span):
    """The position of the value of the member whose key is at ``at``, -1 if there is none."""
    if text[at] != _QUOTE:
        return -1
    span[0] = at + 1
    at = _past_string(text, at)
    span[1] = at - 1
    at = _past_space(text, at)
    return _past_space(text, at + 1) if at < text.size and text[at] == _COLON else -1


@kernel(read(U1, 1), I8, write(I8, 2), write(I8, 1), returns=I8)
def split(text, at, spans, end):
    """Fill ``spans`` (M, 4) with where the key (within its quotes) and the value of each member begin and
    end, of the object or list that begins at ``at``; of a list only values. ``end`` (1,): the position after
    it. Returns their number, ``MALFORMED``, or ``TOO_MANY`` for more than M. Values are not checked.
    """
    is_object = text[at] == _OBJECT
    closing = _END_OF_OBJECT if is_object else _END_OF_LIST
    at, count = _past_space(text, at + 1), 0
    if at < text.size and text[at] == closing:
        end[0] = at + 1
        return 0
    while at < text.size:
        if count == spans.shape[0]:
            return TOO_MANY
        if is_object:
            at = _past_key(text, at, spans[count])
        if at < 0 or at >= text.size:
            return MALFORMED
        spans[count, 2] = at
        spans[count, 3] = after = _past_value(text, at)
        if after > text.size or after == at:
            return MALFORMED
        count += 1
        at = _past_space(text, after)
        if at < text.size and text[at] == closing:
            end[0] = at + 1
            return count
        if at >= text.size or text[at] != _COMMA:
            return MALFORMED
        at = _past_space(text, at + 1)
    return MALFORMED
