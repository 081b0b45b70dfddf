"""The report of a plan, as text and as data: sentences, tables, and figures promised and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from extender.cluster.totals import Totals
from extender.untrusted.visible import columns, csv_text, joined, wrapped
from packing.fleet.stranded import Fragmentation

Progress = Callable[[str, float], None]
Cell = str | int | float | None
SHOWN = 40
"""Maximum rows of a table in text output; JSON has all."""
UNKNOWN = (
    "Not considered: affinity and spread between pods, volumes bound to a node, host ports, quotas. Moving "
    "one member may restart its gang. Check these before you act."
)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; ``name`` is its key in JSON."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Gain:
    """A figure: today, as the plan promises it, and after a replay on the engine. ``promised`` is None where
    the plan makes no promise."""

    what: str
    today: float
    promised: float | None
    replayed: float

    @property
    def agrees(self) -> bool:
        return self.promised is None or abs(self.promised - self.replayed) < 1e-6


@dataclass(slots=True)
class Report:
    """``title``: the question; ``sentences``: the answer; ``differences``: where the replay differs from the
    plan, as sentences; ``notes``: limits of the plan; ``totals``: of the census, before any change;
    ``compared_with``: heading of the first column of figures. The first table is the main one."""

    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    gains: list[Gain] = field(default_factory=list)
    differences: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    totals: Totals | None = None
    compared_with: str = "today"

    @property
    def agrees(self) -> bool:
        """Whether the replay gains what the plan promised."""
        return not self.differences and all(gain.agrees for gain in self.gains)


def as_values(report: Report) -> dict[str, object]:
    """The report as JSON values: each table is a list of maps."""
    return {
        "title": report.title,
        "totals": asdict(report.totals) if report.totals else None,
        "answer": report.sentences,
        "tables": {
            table.name: [dict(zip(map(key_of, table.head), row, strict=True)) for row in table.rows]
            for table in report.tables
        },
        "check": [asdict(gain) for gain in report.gains],
        "agrees": report.agrees,
        "differences": report.differences,
        "notes": report.notes,
    }


def key_of(head: str) -> str:
    """The JSON key of a column heading."""
    return head.lower().replace(" ", "_").replace("%", "percent").replace(",", "")


def as_csv(report: Report) -> str:
    """The main table as CSV."""
    return csv_text(row for table in report.tables[:1] for row in (map(key_of, table.head), *table.rows))


def as_text(report: Report, width: int = 0) -> str:
    """The report as text in lines of this width, 0 for unlimited."""
    lines = [report.title, "", *_wrapped(report.sentences, width)]
    for table in report.tables:
        if table.rows:
            lines += ["", f"{table.title}:", *aligned([table.head, *table.rows[:SHOWN]], width)]
            if len(table.rows) > SHOWN:
                lines.append(f"  and {len(table.rows) - SHOWN:,} more (-o json lists all)")
    if report.gains:
        head = ("", report.compared_with, "promised", "replayed", "")
        rows = list[tuple[Cell, ...]]()
        for gain in report.gains:
            figures = map(_text, (gain.today, gain.promised, gain.replayed))
            rows.append((gain.what, *figures, "" if gain.agrees else "differs"))
        lines += ["", "The plan, replayed on the engine:", *aligned([head, *rows], width)]
    if report.differences:
        lines += ["", "The replay differs from the plan:", *(f"  {text}" for text in report.differences)]
    return joined([*lines, *(["", *_wrapped(report.notes, width)] if report.notes else [])])


def figure_gains(*figures: Fragmentation) -> list[Gain]:
    """The figures of fragmentation today, promised and replayed."""
    names = {
        "GPUs entirely free": "whole",
        "nodes entirely free": "whole_nodes",
        "most whole GPUs on one node": "largest_request",
        "largest NVLink island request": "largest_island",
    }
    return [Gain(what, *(getattr(moment, name) for moment in figures)) for what, name in names.items()]


def _wrapped(texts: Sequence[str], width: int) -> list[str]:
    return [line for text in texts for line in wrapped(text, width)]


def aligned(rows: Sequence[Sequence[Cell]], width: int = 0) -> list[str]:
    """Columns of equal width, numbers flush right. ``width`` as for ``columns``."""
    right = [
        i
        for i in range(len(rows[0]))
        if len(rows) > 1 and all(isinstance(row[i], int | float) or row[i] in (None, "-") for row in rows[1:])
    ]
    return columns([[*map(_text, row)] for row in rows], right, indent="  ", width=width)


def _text(cell: Cell) -> str:
    """Numbers get thousands separators and at most two decimals."""
    if cell is None:
        return "-"
    return f"{cell:,.2f}".rstrip("0").rstrip(".") if isinstance(cell, int | float) else cell
