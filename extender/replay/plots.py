"""The rows of a replay as pictures. Need matplotlib (the ``plot`` extra)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from extender.replay.report import CLASSES

matplotlib.rcParams["text.parse_math"] = False  # a name with dollars is no formula
OURS = "#d1495b"
OTHERS = ("#1b6ca8", "#3a9d8f", "#e09f3e", "#8d6a9f", "#6c757d", "#7fb069", "#17becf", "#99582a", "#adb5bd")
UNAVOIDABLE = "#ced4da"
_BOUND = "#2b2d42"
_OF_GPU = "% of the nodes' GPU"
Rows = Sequence[Mapping[str, Any]]


def snapshot(rows: Rows, path: Path) -> None:
    """GPUs and nodes that are free under each policy, beside today, and the bound."""
    today, names = rows[0], [str(row["policy"]) for row in rows]
    figure, panels = _panels(2, len(rows))
    most = today["most_whole_gpus_free"]
    bound = most, f"no placement frees\nmore than {most}"
    for panel, column, what, total in (
        (panels[0], "whole_gpus_free", "GPUs", today["gpus"]),
        (panels[1], "whole_nodes_free", "nodes", today["nodes"]),
    ):
        panel.axvline(today[column], color=OTHERS[4], linewidth=1, zorder=0)
        text, values = partial(_with_gain, today[column]), [row[column] for row in rows]
        _dots(panel, names, values, text=text, bound=bound if what == "GPUs" else None)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set(title=f"whole {what} free", xlabel=f"{what}, of {total}")
    _save(figure, path, f"{today['trace']}: {today['pods']} running GPU pods placed again")


def trace(rows: Rows, path: Path) -> None:
    """GPU that is allocated when as much has arrived as there is, and what had arrived when 1 % had been
    dropped: means over the seeds, with their standard deviation; two panels for each trace."""
    traces, names = _unique(rows, "trace"), _unique(rows, "policy")
    figure, panels = _panels(2 * len(traces), len(names))
    for i, name in enumerate(traces):
        for panel, column, title, bound in (
            (panels[2 * i], "allocation", "GPU allocated at 100 % arrival", (100, "all that arrived")),
            (panels[2 * i + 1], "knee", "GPU that had arrived when 1 % was dropped", None),
        ):
            values = {policy: _known(rows, name, policy, column) for policy in names}
            shown = {policy: known for policy, known in values.items() if known}
            if shown:
                means, spread = map(fmean, shown.values()), map(pstdev, shown.values())
                _dots(panel, [*shown], [*means], [*spread], text="{:.2f}".format, bound=bound)
            else:
                panel.annotate("never, under any policy", (0.5, 0.5), xycoords="axes fraction", ha="center")
            panel.set(title=title if len(traces) == 1 else f"{name}\n{title}", xlabel=_OF_GPU)
    _save(figure, path, _common_title(rows))


def timeline(rows: Rows, path: Path) -> None:
    """Waiting times of each class of pods under each policy, and the allocated GPU; three panels for each
    trace."""
    traces, names = _unique(rows, "trace"), _unique(rows, "policy")
    figure, panels = _panels(3 * len(traces), 6, across=3)
    for i, name in enumerate(traces):
        members = [row for row in rows if row["trace"] == name]
        mean = {(row["policy"], column): value for row in members for column, value in row.items()}
        above = f"{name}\n" if len(traces) > 1 else ""
        for panel, figures, title in zip(
            panels[3 * i :], ("p50", "p95"), ("median", "95th percentile"), strict=False
        ):
            waits(panel, names, mean, figures)
            panel.set(title=f"{above}hours waited, {title}")
            panel.legend(frameon=False, fontsize=8, loc="upper center", ncols=3)
        asked = members[0]["asked"]
        values = [mean[policy, "utilisation"] for policy in names]
        bound = (asked, f"{asked:.1f}, if nobody waited")
        _dots(panels[3 * i + 2], names, values, text="{:.1f}".format, bound=bound)
        panels[3 * i + 2].set(title=f"{above}GPU allocated, mean over time", xlabel=_OF_GPU)
    _save(figure, path, _common_title(rows))


def queues(rows: Rows, path: Path) -> None:
    """Systems side by side, means over the seeds: GPUs that did useful work, work that was lost or a share
    that nobody could use, waiting times (p95 and mean) per queue, and the cost of the nodes in use."""
    systems = _unique(rows, "system")
    columns = [name for name in rows[0] if name not in ("trace", "system")]
    mean = {
        (system, name): fmean(float(row[name] or 0) for row in rows if row["system"] == system)
        for system in systems
        for name in columns
    }
    figure, panels = _panels(4, 8)
    _held(panels[0], systems, mean)
    for panel, figures, title in ((panels[1], "p95", "95th percentile"), (panels[2], "mean", "mean")):
        waits(panel, systems, mean, figures)
        panel.set(title=f"hours in the queue, {title}")
    cost = [100 * mean[system, "cost"] / (mean[systems[0], "cost"] or 1) for system in systems]
    bars = panels[3].bar(systems, cost, color=OTHERS[1], width=0.6)
    panels[3].bar_label(bars, fmt="%.0f", padding=2)
    panels[3].set(title=f"cost of the nodes in use, {systems[0]} = 100", ylim=(0, 1.12 * max(cost)))
    for panel in panels:
        panel.tick_params(axis="x", labelsize=9)
        panel.grid(axis="y", alpha=0.25)
    for panel in panels[:3]:
        panel.legend(frameon=False, fontsize=8, loc="upper center", ncols=3, columnspacing=1.2)
    _save(figure, path, _common_title(rows))


def waits(panel: Axes, names: Sequence[str], mean: Mapping[tuple[str, str], float], figure: str) -> None:
    """Hours in the queue, a group of bars for each name; every bar with its value, because many are 0."""
    start = f"wait_{figure}_"
    columns = [column for name, column in mean if name == names[0] and column.startswith(start)]
    columns = [column for column in columns if any(mean.get((name, column)) is not None for name in names)]
    width = 0.84 / max(len(columns), 1)
    columns = columns if columns and columns[0].removeprefix(start) in CLASSES else columns[::-1]
    for i, column in enumerate(columns):
        hours = [(mean.get((name, column)) or 0) / 3600 for name in names]
        places = [place + (i - (len(columns) - 1) / 2) * width for place in range(len(names))]
        of = column.removeprefix(start)
        colour = (OURS, *OTHERS)[i % (1 + len(OTHERS))]
        bars = panel.bar(places, hours, width * 0.93, color=colour, label=CLASSES.get(of, of))
        panel.bar_label(bars, [_short(value) for value in hours], fontsize=7, padding=1)
    panel.set_xticks(range(len(names)), names)
    panel.set_yscale("symlog", linthresh=0.1)
    panel.set_yticks([0, 0.1, 1, 10, 100, 1000], ["0", "0.1", "1", "10", "100", "1000"])
    panel.minorticks_off()
    panel.set_ylim(0, 6000)  # room for the legend


def _held(panel: Axes, systems: Sequence[str], mean: Mapping[tuple[str, str], float]) -> None:
    """What the GPUs are held for, one part of the bar upon the other."""
    lowest = [0.0] * len(systems)
    for name, less, colour, label in (
        ("useful", None, OTHERS[0], "useful work"),
        ("allocated", "useful", OURS, "work done again"),
        ("held", "allocated", UNAVOIDABLE, "unused rest of whole GPUs"),
    ):
        parts = [mean[system, name] - (mean[system, less] if less else 0) for system in systems]
        bars = panel.bar(systems, parts, 0.6, bottom=lowest, color=colour, label=label)
        texts = [f"{part:.0f}" if part >= 4 else "" for part in parts]
        panel.bar_label(bars, texts, label_type="center", color="black" if colour == UNAVOIDABLE else "white")
        lowest = [a + b for a, b in zip(lowest, parts, strict=True)]
    panel.set(title="GPUs held, % of capacity, mean over time", ylim=(0, 112))


def _dots(
    panel: Axes,
    names: Sequence[str],
    values: Sequence[float],
    spread: Sequence[float] = (),
    *,
    text: Callable[[float], str],
    bound: tuple[float, str] | None = None,
) -> None:
    """A dot with a text for each name, on an axis that shows the differences; a dashed line at the bound."""
    errors = spread or [0.0] * len(names)
    colours = [OURS if name == "inventory" else OTHERS[4] if name == "today" else OTHERS[0] for name in names]
    for name, value, colour, error in zip(names, values, colours, errors, strict=True):
        panel.errorbar(value, name, xerr=error or None, fmt="o", color=colour, markersize=7, capsize=3)
        panel.annotate(
            text(value), (value, name), (0, 8), textcoords="offset points", ha="center", fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    ends = [value + sign * error for value, error in zip(values, errors, strict=True) for sign in (-1, 1)]
    if bound:
        panel.axvline(bound[0], color=_BOUND, linestyle="--", linewidth=1.2, zorder=0)
        panel.annotate(
            bound[1], (bound[0], 0), (-4, 5), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="right", fontsize=8, color=_BOUND,
        )  # fmt: skip
        ends.append(bound[0])
    room = 0.12 * (max(ends) - min(ends)) or max(1.0, 0.02 * abs(max(ends)))
    panel.set_xlim(min(ends) - room, max(ends) + room)
    panel.set_ylim(len(names) - 0.2, -0.7)
    panel.grid(axis="x", alpha=0.25)


def _with_gain(today: float, value: float) -> str:
    return f"{value:.0f} ({value - today:+.0f})" if value != today else f"{value:.0f}"


def _short(value: float) -> str:
    """Two digits."""
    if value < 0.005:
        return "0"
    return f"{value:.2f}" if value < 1 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _known(rows: Rows, trace_name: str, policy: str, column: str) -> list[float]:
    of = (trace_name, policy)
    return [row[column] for row in rows if (row["trace"], row["policy"]) == of and row[column] is not None]


def _common_title(rows: Rows) -> str:
    traces = _unique(rows, "trace")
    return traces[0] if len(traces) == 1 else ""


def _unique(rows: Rows, column: str) -> list[str]:
    return list(dict.fromkeys(str(row[column]) for row in rows))


def _panels(count: int, lines: int, *, across: int = 2) -> tuple[Figure, list[Axes]]:
    """Panels, each high enough for so many lines."""
    down = -(-count // across)
    size = (5.4 * across, max(2.4, 0.42 * lines + 1.2) * down)
    figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False)
    return figure, list(axes.flat)


def _save(figure: Figure, path: Path, title: str) -> None:
    for panel in figure.axes:
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.tight_layout(w_pad=2, h_pad=2)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
