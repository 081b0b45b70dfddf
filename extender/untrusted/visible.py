"""Output of untrusted text for people: lines, tables and CSV without control or hidden characters.

Hidden characters are escaped as in JSON (``\\u202e``), so JSON remains JSON of the same value.
"""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
import time
from collections.abc import Container, Iterable, Sequence
from itertools import zip_longest

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    "\u205f-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""Control characters, directional marks, line separators, zero-width characters, and lone surrogates."""
_NARROWEST = 12
"""Minimum width of a column, in characters."""
_FORMULA = re.compile("[=@＝＠]|[-+－＋](?![0-9.]*$)")
"""Text that a spreadsheet interprets as the start of a formula, except a number and a lone sign."""


def visible(text: str) -> str:
    """The text in one line, with hidden characters and line breaks escaped. Idempotent."""
    return _HIDDEN.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """As ``visible``, but with line breaks kept."""
    return _HIDDEN.sub(lambda found: "\n" if found[0] == "\n" else _escaped(found), text)


def listed(names: Sequence[str], most: int, more: str = "") -> str:
    """The first names, and the number of others: ``a, b and 3 more``, followed by the text ``more``."""
    beside = f" and {len(names) - most} more{more}" if len(names) > most else ""
    return ", ".join(names[:most]) + beside


def joined(lines: Iterable[str]) -> str:
    return "\n".join(map(visible, lines))


def columns(
    rows: Sequence[Sequence[str]], right: Container[int] = (), indent: str = "", width: int = 0
) -> list[str]:
    """The rows as lines with aligned columns, those in ``right`` flush right. To fit into ``width``
    characters (0: unlimited), columns are narrowed, first those whose texts then take the fewest lines. Words
    are not broken, so that names can be searched and copied."""
    texts = [[*map(visible, row)] for row in rows]
    longest = [max(map(len, column)) for column in zip(*texts, strict=True)]
    narrowest = [
        max(
            _NARROWEST,
            *(len(word) + 2 * (i > 0) for text in column for i, word in enumerate(text.split(" "))),
        )
        for column in zip(*texts, strict=True)
    ]
    widths, room = [*longest], width - len(indent) - 2 * (len(longest) - 1)

    def loss(i: int) -> tuple[int, int, int]:
        narrower = widths[i] - 1
        several = sum(len(row[i]) > narrower for row in texts)
        return -(-longest[i] // narrower), several, -narrower

    while width and sum(widths) > room:
        if not (wide := [i for i, size in enumerate(widths) if size > narrowest[i]]):
            break
        widths[min(wide, key=loss)] -= 1
    forms = [f"{'>' if i in right else '<'}{size}" for i, size in enumerate(widths)]
    cells = (zip_longest(*map(wrapped, row, widths), fillvalue="") for row in texts)
    lines = (line for row in cells for line in row)
    return [(indent + "  ".join(map(format, line, forms))).rstrip() for line in lines]


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of this width (0: unlimited). Continuation lines are indented, so that untrusted text
    cannot begin a line."""
    if not 0 < width < len(text):
        return [text]
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """The rows as CSV. A text that a spreadsheet would run as a formula is prefixed with an apostrophe."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue().rstrip("\n")


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if _FORMULA.match(text) else text


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def clock_text(at: float) -> str:
    """A time in Unix seconds as hours and minutes."""
    return time.strftime("%H:%M UTC", time.gmtime(at))


def day_text(at: float) -> str:
    """A time in Unix seconds as the day, hours and minutes: "Mon 2 Nov 22:00 UTC"."""
    return time.strftime("%a %-d %b ", time.gmtime(at)) + clock_text(at)


def many(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
