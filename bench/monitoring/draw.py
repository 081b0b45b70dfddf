"""Draws the panels from Prometheus's answers, in the arrangement of Grafana. Requires matplotlib."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.monitoring.prometheus import Series
from bench.monitoring.queries import Panel

_COLUMNS = 3
Answers = Mapping[str, Sequence[tuple[str, Series]]]
"""By panel title: name and values of each series."""


def legend_of(text: str, labels: Mapping[str, str]) -> str:
    """A legend with its labels filled in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text)


def draw(title: str, panels: Sequence[Panel], answers: Answers, path: Path) -> None:
    """Draw one row of the dashboard; seconds are relative to the first sample of all series."""
    times = [at for series in answers.values() for _, one in series for at in (one.times[0], one.times[-1])]
    span = min(times, default=0.0), max(times, default=0.0)
    rows = -(-len(panels) // _COLUMNS)
    figure, axes = pyplot.subplots(rows, _COLUMNS, figsize=(6 * _COLUMNS, 4 * rows), squeeze=False)
    for spare in axes.flat[len(panels) :]:
        spare.set_axis_off()
    for panel, area in zip(panels, axes.flat, strict=False):
        _panel(area, panel, answers[panel.title], span)
    figure.suptitle(title, x=0.01, ha="left", fontsize=15)
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    pyplot.close(figure)


def _panel(area: Axes, panel: Panel, series: Sequence[tuple[str, Series]], span: tuple[float, float]) -> None:
    if not series:
        area.text(0.5, 0.5, f"no data: {panel.may_be_empty}", ha="center", va="center")
    times = sorted({at for _, one in series for at in one.times})
    lines = [(name, dict(zip(one.times, one.values, strict=True))) for name, one in series]
    seconds = [at - span[0] for at in times]
    if panel.stacked and lines:
        area.stackplot(
            seconds, [[of.get(at, 0.0) for at in times] for _, of in lines], labels=[n for n, _ in lines]
        )
    elif lines:
        for name, of in lines:
            area.plot(seconds, [of.get(at, float("nan")) for at in times], label=name, linewidth=1.3)
    area.set_ylim(bottom=0)
    area.set_xlim(0, max(1.0, span[1] - span[0]))
    area.set_title(f"{panel.title} [{panel.unit}]", fontsize=11, loc="left")
    area.tick_params(labelsize=8)
    area.grid(alpha=0.3)
    if lines:
        handles, names = area.get_legend_handles_labels()
        shown = [textwrap.shorten(name, 30, placeholder="...") for name in names]
        area.legend(
            handles[:12], shown[:12], loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False,
            fontsize=7, ncols=3 if max(map(len, shown)) < 20 else 2,
        )  # fmt: skip
