"""The answer of a plan, for people and programs: sentences, tables, and what was promised and replayed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from extender.untrusted.visible import columns, csv_text, joined

Cell = str | int | float | None
SHOWN = 40
"""Rows of a table that people read; JSON has all."""
_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; ``name`` is its key in JSON."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Gain:
    """One figure: today, as the plan promises it, and as it came out when the plan was carried out on the
    engine. None where a plan does not promise it."""

    what: str
    today: float
    promised: float | None
    replayed: float

    @property
    def agrees(self) -> bool:
        return self.promised is None or abs(self.promised - self.replayed) < 1e-6


@dataclass(slots=True)
class Report:
    """``title``: what was asked; ``sentences``: the answer; ``differences``: where the replay differs from
    the plan, in sentences; ``notes``: what the plan does not know. The first table is the main one."""

    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    gains: list[Gain] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether the plan gains what it promised."""
        return not self.differences and all(gain.agrees for gain in self.gains)


def as_values(report: Report) -> dict[str, object]:
    """For JSON: each table as a list of maps."""
    return {
        "title": report.title,
        "answer": report.sentences,
        "tables": {
            table.name: [dict(zip(map(key_of, table.head), row, strict=True)) for row in table.rows]
            for table in report.tables
        },
        "check": [
            {"what": gain.what, "today": gain.today, "promised": gain.promised, "replayed": gain.replayed}
            for gain in report.gains
        ],
        "agrees": report.agrees,
        "differences": report.differences,
        "notes": report.notes,
    }


def key_of(head: str) -> str:
    """The heading of a column as a key."""
    return head.lower().replace(" ", "_").replace("%", "percent").replace(",", "")


def as_csv(report: Report) -> str:
    """The main table."""
    return csv_text(row for table in report.tables[:1] for row in (map(key_of, table.head), *table.rows))


def as_text(report: Report) -> str:
    """For a terminal."""
    lines = [report.title, "", *wrapped(report.sentences)]
    for table in report.tables:
        if table.rows:
            lines += ["", f"{table.title}:", *aligned([table.head, *table.rows[:SHOWN]])]
            if more := len(table.rows) - SHOWN if len(table.rows) > SHOWN else 0:
                lines.append(f"  and {more:,} more (-o json has all)")
    if report.gains:
        head = ("", "today", "promised", "replayed", "")
        rows = [_gain_row(gain) for gain in report.gains]
        lines += ["", "The plan, carried out on the engine:", *aligned([head, *rows])]
    if report.differences:
        lines += ["", "The replay differs from the plan:", *(f"  {text}" for text in report.differences)]
    return joined([*lines, *(["", *wrapped(report.notes)] if report.notes else [])])


def wrapped(texts: Sequence[str]) -> list[str]:
    """The texts as lines of a width that people read."""
    return [line for text in texts for line in textwrap.wrap(text, _WIDTH, break_long_words=False)]


def many(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _gain_row(gain: Gain) -> tuple[Cell, ...]:
    promised = "-" if gain.promised is None else number(gain.promised)
    return gain.what, number(gain.today), promised, number(gain.replayed), "" if gain.agrees else "differs"


def number(value: float) -> str:
    """With thousands, and two places at most."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def aligned(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Columns of equal width, numbers flush right."""
    right = [
        i
        for i in range(len(rows[0]))
        if len(rows) > 1 and all(isinstance(row[i], int | float) or row[i] in (None, "-") for row in rows[1:])
    ]
    return columns([[*map(_text, row)] for row in rows], right, indent="  ")


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return number(cell) if isinstance(cell, int | float) else cell
