"""The plot of a replay with queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.packing.plots import OTHERS, OURS, UNAVOIDABLE

Rows = Sequence[Mapping[str, Any]]


def queues(rows: Rows, path: Path) -> None:
    """Systems side by side, means over the seeds: GPUs that did useful work, lost work or unusable shares,
    waiting times (p95 and mean) per queue, and the cost of the nodes in use."""
    systems = list(dict.fromkeys(str(row["system"]) for row in rows))
    columns = [name for name in rows[0] if name not in ("trace", "system")]
    mean = {
        (system, name): fmean(float(row[name] or 0) for row in rows if row["system"] == system)
        for system in systems
        for name in columns
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(10.8, 9.1))
    panels = list(axes.flat)
    _held(panels[0], systems, mean)
    for panel, figures, title in ((panels[1], "p95", "95th percentile"), (panels[2], "mean", "mean")):
        _waits(panel, systems, mean, figures)
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
    for panel in panels:
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(w_pad=2, h_pad=2)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _waits(panel: Axes, names: Sequence[str], mean: Mapping[tuple[str, str], float], figure: str) -> None:
    """Hours in the queue, a group of bars for each name; every bar shows its value, because many are 0."""
    start = f"wait_{figure}_"
    columns = [column for name, column in mean if name == names[0] and column.startswith(start)]
    columns = [column for column in columns if any(mean.get((name, column)) is not None for name in names)]
    width = 0.84 / max(len(columns), 1)
    for i, column in enumerate(columns[::-1]):
        hours = [(mean.get((name, column)) or 0) / 3600 for name in names]
        places = [place + (i - (len(columns) - 1) / 2) * width for place in range(len(names))]
        color = (OURS, *OTHERS)[i % (1 + len(OTHERS))]
        bars = panel.bar(places, hours, width * 0.93, color=color, label=column.removeprefix(start))
        panel.bar_label(bars, [_short(value) for value in hours], fontsize=7, padding=1)
    panel.set_xticks(range(len(names)), names)
    panel.set_yscale("symlog", linthresh=0.1)
    panel.set_yticks([0, 0.1, 1, 10, 100, 1000], ["0", "0.1", "1", "10", "100", "1000"])
    panel.minorticks_off()
    panel.set_ylim(0, 6000)  # room for the legend


def _held(panel: Axes, systems: Sequence[str], mean: Mapping[tuple[str, str], float]) -> None:
    """The use of allocated GPUs, as stacked bars."""
    lowest = [0.0] * len(systems)
    for name, less, color, label in (
        ("useful", None, OTHERS[0], "useful work"),
        ("allocated", "useful", OURS, "repeated work"),
        ("held", "allocated", UNAVOIDABLE, "unused rest of whole GPUs"),
    ):
        parts = [mean[system, name] - (mean[system, less] if less else 0) for system in systems]
        bars = panel.bar(systems, parts, 0.6, bottom=lowest, color=color, label=label)
        texts = [f"{part:.0f}" if part >= 4 else "" for part in parts]
        panel.bar_label(bars, texts, label_type="center", color="black" if color == UNAVOIDABLE else "white")
        lowest = [a + b for a, b in zip(lowest, parts, strict=True)]
    panel.set(title="GPUs held, % of capacity, mean over time", ylim=(0, 112))


def _short(value: float) -> str:
    """Format with two digits."""
    if value < 0.005:
        return "0"
    return f"{value:.2f}" if value < 1 else f"{value:.2g}" if value < 10 else f"{value:.0f}"
