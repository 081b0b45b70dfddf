"""The pictures of the comparison. Need matplotlib (the ``plot`` extra)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.packing.runs import BOUND, Result

_OURS = "#d1495b"
_OTHERS = ("#1b6ca8", "#3a9d8f", "#e09f3e", "#8d6a9f", "#6c757d", "#7fb069", "#17becf", "#99582a", "#adb5bd")
_OF_BOUND, _UNAVOIDABLE = "#2b2d42", "#ced4da"


def arrivals(results: Sequence[Result], traces: Sequence[str], path: Path) -> None:
    """Allocation against arrivals from 75 %, a panel for each trace, a line for each policy, a cross for the
    bound."""
    traces = [trace for trace in traces if any(result.task.trace == trace for result in results)]
    figure, panels = _panels(len(traces))
    colours = _colours(result.task.label for result in results)
    for panel, trace in zip(panels, traces, strict=True):
        for result in (result for result in results if result.task.trace == trace):
            label, colour = result.task.label, colours[result.task.label]
            if result.curve is None:
                panel.plot(100, result.allocation, "x", color=colour, markersize=9, mew=2, label=label)
            else:
                wide = 2.2 if colour == _OURS else 1.2
                panel.plot(*result.curve, color=colour, linewidth=wide, label=label)
        panel.plot([0, 130], [0, 130], ":", color="#adb5bd", linewidth=1, zorder=0)
        lowest = min(result.allocation for result in results if result.task.trace == trace)
        panel.set(title=trace, xlabel="GPU arrived, % of capacity", xlim=(75, 130))
        panel.set_ylim(max(60, lowest - 12), 100)
    _save(figure, panels, path)


def unallocated(results: Sequence[Result], gpus: int, path: Path) -> None:
    """GPUs left when as many have arrived as there are, a bar for each policy, mean over the traces; no
    scheduler can avoid the pale part."""
    labels = dict.fromkeys(result.task.label for result in results)
    left = {
        label: gpus * (1 - fmean(result.allocation for result in results if result.task.label == label) / 100)
        for label in labels
    }
    floor = left.pop(BOUND, 0.0)
    ordered = sorted(left, key=lambda label: -left[label])
    colours = _colours(labels)
    figure, axes = pyplot.subplots(figsize=(8, 0.42 * len(ordered) + 1.3))
    widths = [left[label] - floor for label in ordered]
    axes.barh(ordered, widths, left=floor, color=[colours[label] for label in ordered], height=0.68)
    unavoidable = "no scheduler avoids these (offline bound)"
    axes.barh(ordered, floor, color=_UNAVOIDABLE, height=0.68, label=unavoidable)
    for label in ordered:
        end, text = (left[label], label), f"{left[label]:.0f}"
        axes.annotate(text, end, (4, 0), textcoords="offset points", va="center")
    traces = len({result.task.trace for result in results})
    of = f"mean of {traces} traces" if traces > 1 else results[0].task.trace
    axes.set(xlabel=f"of {gpus} GPUs, left unallocated when as many have arrived ({of})")
    axes.set_xlim(0, 1.1 * max(left.values()))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def samples(results: Sequence[Result], nodes: int, path: Path) -> None:
    """Allocation against the number of fitting nodes looked at, a panel for each trace; all nodes at the
    right."""
    traces = list(dict.fromkeys(result.task.trace for result in results))
    labels = list(dict.fromkeys(result.task.label for result in results))
    figure, panels = _panels(len(traces))
    colours = _colours(labels)
    for panel, trace in zip(panels, traces, strict=True):
        for label in labels:
            points = sorted(
                (result.task.options.sample or nodes, result.allocation)
                for result in results
                if (result.task.trace, result.task.label) == (trace, label)
            )
            panel.plot(*zip(*points, strict=True), "o-", color=colours[label], markersize=4, label=label)
        ticks = sorted({result.task.options.sample or nodes for result in results})
        panel.set_xscale("log")
        panel.set_xticks(ticks, ["all" if tick == nodes else str(tick) for tick in ticks])
        panel.minorticks_off()
        panel.set(title=trace, xlabel="fitting nodes looked at")
    _save(figure, panels, path)


def queues(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Systems side by side, means over the seeds: GPUs that did useful work, work that was lost or a share
    that nobody could use, waiting times (p95 and mean) per queue, and the cost of the nodes in use."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    mean = {
        (system, name): fmean(row[name] or 0 for row in rows if row["system"] == system)
        for system in systems
        for name in rows[0]
        if name not in ("trace", "system")
    }
    figure, panels = _panels(4)
    _held(panels[0], systems, mean)
    for panel, figures, title in ((panels[1], "p95", "95th percentile"), (panels[2], "mean", "mean")):
        _waits(panel, systems, mean, figures)
        panel.set(title=f"hours in the queue, {title}")
    cost = [mean[system, "cost"] / mean[systems[0], "cost"] * 100 for system in systems]
    bars = panels[3].bar(systems, cost, color=_OTHERS[1], width=0.6)
    panels[3].bar_label(bars, fmt="%.0f", padding=2)
    panels[3].set(title=f"cost of the nodes in use, {systems[0]} = 100", ylim=(0, 1.12 * max(cost)))
    for panel in panels:
        panel.tick_params(axis="x", labelsize=9)
        panel.set_axisbelow(True)
        panel.grid(axis="y", alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[:3]:
        panel.legend(frameon=False, fontsize=8, loc="upper center", ncols=3, columnspacing=1.2)
    figure.tight_layout(w_pad=2, h_pad=2)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _held(panel: Axes, systems: Sequence[str], mean: Mapping[tuple[str, str], float]) -> None:
    """What the GPUs are held for, one part of the bar upon the other."""
    lowest = [0.0] * len(systems)
    for name, less, colour, label in (
        ("useful", None, _OTHERS[0], "useful work"),
        ("allocated", "useful", _OURS, "work done again"),
        ("held", "allocated", _UNAVOIDABLE, "unused rest of whole GPUs"),
    ):
        parts = [mean[system, name] - (mean[system, less] if less else 0) for system in systems]
        bars = panel.bar(systems, parts, 0.6, bottom=lowest, color=colour, label=label)
        texts = [f"{part:.0f}" if part >= 4 else "" for part in parts]
        panel.bar_label(
            bars, texts, label_type="center", color="black" if colour == _UNAVOIDABLE else "white"
        )
        lowest = [a + b for a, b in zip(lowest, parts, strict=True)]
    panel.set(title="GPUs held, % of capacity, mean over time", ylim=(0, 112))


def _waits(panel: Axes, systems: Sequence[str], mean: Mapping[tuple[str, str], float], figure: str) -> None:
    """Hours in the queue, a group of bars for each system; every bar with its value, because many are 0."""
    start = f"wait_{figure}_"
    names = [name.removeprefix(start) for system, name in mean if system == systems[0] and start in name]
    colours = (_OURS, *_OTHERS)
    for i, name in enumerate(reversed(names)):
        hours = [mean[system, start + name] / 3600 for system in systems]
        places = [place + (i - 1) * 0.28 for place in range(len(systems))]
        bars = panel.bar(places, hours, 0.26, color=colours[i % len(colours)], label=name)
        panel.bar_label(bars, [_short(value) for value in hours], fontsize=7, padding=1)
    panel.set_xticks(range(len(systems)), systems)
    panel.set_yscale("symlog", linthresh=0.1)
    panel.set_yticks([0, 0.1, 1, 10, 100, 1000], ["0", "0.1", "1", "10", "100", "1000"])
    panel.minorticks_off()
    panel.set_ylim(0, 6000)  # room for the legend


def _short(value: float) -> str:
    return (
        "0"
        if value < 0.005
        else f"{value:.2f}"
        if value < 1
        else f"{value:.2g}"
        if value < 10
        else f"{value:.0f}"
    )


def _colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label; the default policy and the bound always have the same one."""
    unique = list(dict.fromkeys(labels))
    others = [label for label in unique if label not in ("inventory", BOUND)]
    colours = dict(zip(others, _OTHERS * (1 + len(others) // len(_OTHERS)), strict=False))
    return {"inventory": _OURS, BOUND: _OF_BOUND} | colours


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    across = min(count, 2)
    down = -(-count // across)
    figure, axes = pyplot.subplots(down, across, figsize=(5.4 * across, 3.7 * down), squeeze=False)
    panels = list(axes.flat)
    for spare in panels[count:]:
        spare.remove()
    return figure, panels[:count]


def _save(figure: Figure, panels: Sequence[Axes], path: Path) -> None:
    for panel in panels[::2]:
        panel.set_ylabel("GPU allocated, % of capacity")
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.legend(handles, labels, loc="lower center", ncols=min(5, len(labels)), frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
