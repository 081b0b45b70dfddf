"""Tables of the comparison, for a terminal and for the README."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev

from bench.packing.runs import Result

Lines = list[list[str]]
_BEGIN, _END = "<!-- packing table -->", "<!-- end of the packing table -->"

TURNED_AWAY = "load at which 1 % of the requested GPUs is turned away, % of capacity"


def by_trace(results: Sequence[Result], spread_of: str) -> Lines:
    """A row for each trace and their mean, a column for each label, and the standard deviation of one label
    over the seeds."""
    labels = list(dict.fromkeys(result.task.label for result in results))
    traces = list(dict.fromkeys(result.task.trace for result in results))
    found = {(result.task.trace, result.task.label): result for result in results}
    lines = [["trace", *labels, f"± {spread_of}"]]
    for trace in traces:
        cells = [f"{found[trace, label].allocation:.2f}" for label in labels]
        spread = pstdev(row["allocation"] for row in found[trace, spread_of].rows)
        lines.append([trace, *cells, f"{spread:.2f}"])
    means = [fmean(found[trace, label].allocation for trace in traces) for label in labels]
    return [*lines, ["mean", *(f"{mean:.2f}" for mean in means), ""]]


def by_policy(results: Sequence[Result], traces: Sequence[str], gpus: int) -> Lines:
    """A row for each label, best first: the mean over all traces, the idle GPUs, the mean knee, and a few
    traces."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        found.setdefault(result.task.label, {})[result.task.trace] = result.allocation
    means = {label: fmean(of_label.values()) for label, of_label in found.items()}
    knees = {label: [result.knee for result in results if result.task.label == label] for label in found}
    shown = [trace for trace in traces if all(trace in of_label for of_label in found.values())]
    lines = [
        [
            "policy",
            "GPUs allocated, %",
            "GPUs left idle",
            TURNED_AWAY,
            *shown,
        ]
    ]
    for label in sorted(found, key=lambda label: -means[label]):
        left = f"{gpus * (1 - means[label] / 100):.0f}"
        knee = _mean(knees[label])
        lines.append([label, f"{means[label]:.2f}", left, knee, *(f"{found[label][t]:.2f}" for t in shown)])
    return lines


def _mean(figures: Sequence[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return f"{fmean(known):.2f}" if known else ""


def markdown(lines: Lines) -> str:
    """The lines as a Markdown table."""
    rule = ["---", *["--:"] * (len(lines[0]) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def replace_in(page: Path, lines: Lines, command: str) -> None:
    """Write the table and its command between the two markers of a page."""
    text = page.read_text(encoding="utf-8")
    table = f"{_BEGIN}\n{markdown(lines)}\n\n    {command}\n{_END}"
    new, times = re.subn(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: table, text, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{page}: has no markers for the table ({_BEGIN} ... {_END})")
    page.write_text(new, encoding="utf-8")
