"""Results of a replay for people: a table of means, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Per label: arrived and allocated GPU, both in per cent of the capacity."""

_KEYS = ("trace", "mix", "policy", "arrival", "load")
_NOISY = ("seed",)
_SHOWN = 10


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds, with the standard deviation of the first figure, as aligned text."""
    if not rows:
        return "nothing was replayed"
    keys = [key for key in _KEYS if key in rows[0]]
    figures = [name for name in rows[0] if name not in keys and name not in _NOISY]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    lines = [[*keys, *figures, "±"]]
    for group, members in groups.items():
        means = [_mean([row[name] for row in members]) for name in figures]
        spread = pstdev(row[figures[0]] for row in members)
        lines.append([*map(str, group), *means, f"{spread:.2f}"])
    return _aligned(lines)


def snapshot_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A cluster as it is and as each policy would pack it, as aligned text."""
    one = rows[0]
    lines = [["policy", "whole GPUs free", "whole nodes free", "pods without a place"]]
    for row in rows:
        figures = row["whole_gpus_free"], row["whole_nodes_free"], row["failed_pods"]
        lines.append([str(row["policy"]), *map(str, figures)])
    what = f"{one['nodes']} nodes with {one['gpus']} GPUs, {one['pods']} GPU pods that can be placed again"
    left = [f"No place under {row['policy']}: {_names(row['no_place'])}" for row in rows if row["no_place"]]
    return "\n".join([f"{one['trace']}: {what}", _aligned(lines), *left])


def _names(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else "-"


def plot(curves: Curves, path: Path) -> None:
    """Allocation against arrivals, one line per label. Needs matplotlib (the ``plot`` extra)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for label, (arrived, allocated) in curves.items():
        axes.plot(arrived, allocated, label=label)
    axes.set(xlabel="GPU arrived, % of capacity", ylabel="GPU allocated, % of capacity")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
