"""The plots of the comparison. They require matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.packing.runs import BOUND, Result

OURS = "#d1495b"
OTHERS = ("#1b6ca8", "#3a9d8f", "#e09f3e", "#8d6a9f", "#6c757d", "#7fb069", "#17becf", "#99582a", "#adb5bd")
UNAVOIDABLE = "#ced4da"
_OF_BOUND = "#2b2d42"


def arrivals(results: Sequence[Result], traces: Sequence[str], path: Path) -> None:
    """Allocation against arrivals from 75 %, with a panel for each trace, a line for each policy, and a cross
    for the bound."""
    traces = [trace for trace in traces if any(result.task.trace == trace for result in results)]
    figure, panels = _panels(len(traces))
    colors = _colors(result.task.label for result in results)
    for panel, trace in zip(panels, traces, strict=True):
        for result in (result for result in results if result.task.trace == trace):
            label, color = result.task.label, colors[result.task.label]
            if result.curve is None:
                panel.plot(100, result.allocation, "x", color=color, markersize=9, mew=2, label=label)
            else:
                wide = 2.2 if color == OURS else 1.2
                panel.plot(*result.curve, color=color, linewidth=wide, label=label)
        panel.plot([0, 130], [0, 130], ":", color="#adb5bd", linewidth=1, zorder=0)
        lowest = min(result.allocation for result in results if result.task.trace == trace)
        panel.set(title=trace, xlabel="GPU arrived, % of capacity", xlim=(75, 130))
        panel.set_ylim(max(60, lowest - 12), 100)
    _save(figure, panels, path)


def unallocated(results: Sequence[Result], gpus: int, path: Path) -> None:
    """Unallocated GPUs when the arrived demand equals the capacity, a bar for each policy, mean over the
    traces; the pale part is unavoidable."""
    labels = dict.fromkeys(result.task.label for result in results)
    left = {
        label: gpus * (1 - fmean(result.allocation for result in results if result.task.label == label) / 100)
        for label in labels
    }
    floor = left.pop(BOUND, 0.0)
    ordered = sorted(left, key=lambda label: -left[label])
    colors = _colors(labels)
    figure, axes = pyplot.subplots(figsize=(8, 0.42 * len(ordered) + 1.3))
    widths = [left[label] - floor for label in ordered]
    axes.barh(ordered, widths, left=floor, color=[colors[label] for label in ordered], height=0.68)
    unavoidable = "unavoidable (offline bound)"
    axes.barh(ordered, floor, color=UNAVOIDABLE, height=0.68, label=unavoidable)
    for label in ordered:
        end, text = (left[label], label), f"{left[label]:.0f}"
        axes.annotate(text, end, (4, 0), textcoords="offset points", va="center")
    traces = len({result.task.trace for result in results})
    of = f"mean of {traces} traces" if traces > 1 else results[0].task.trace
    axes.set(xlabel=f"of {gpus} GPUs, unallocated when the arrived demand equals the capacity ({of})")
    axes.set_xlim(0, 1.1 * max(left.values()))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def samples(results: Sequence[Result], nodes: int, path: Path) -> None:
    """Allocation against the number of fitting nodes considered, a panel for each trace; all nodes at the
    right."""
    traces = list(dict.fromkeys(result.task.trace for result in results))
    labels = list(dict.fromkeys(result.task.label for result in results))
    figure, panels = _panels(len(traces))
    colors = _colors(labels)
    for panel, trace in zip(panels, traces, strict=True):
        for label in labels:
            points = sorted(
                (result.task.options.sample or nodes, result.allocation)
                for result in results
                if (result.task.trace, result.task.label) == (trace, label)
            )
            panel.plot(*zip(*points, strict=True), "o-", color=colors[label], markersize=4, label=label)
        ticks = sorted({result.task.options.sample or nodes for result in results})
        panel.set_xscale("log")
        panel.set_xticks(ticks, ["all" if tick == nodes else str(tick) for tick in ticks])
        panel.minorticks_off()
        panel.set(title=trace, xlabel="fitting nodes considered")
    _save(figure, panels, path)


def _colors(labels: Iterable[str]) -> dict[str, str]:
    """A color for each label; those of the default policy and the bound are always the same."""
    unique = list(dict.fromkeys(labels))
    others = [label for label in unique if label not in ("inventory", BOUND)]
    colors = dict(zip(others, OTHERS * (1 + len(others) // len(OTHERS)), strict=False))
    return {"inventory": OURS, BOUND: _OF_BOUND} | colors


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
