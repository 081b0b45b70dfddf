"""The rows of trace replays as aligned text: means over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

from extender.replay.report import aligned

_KEYS = ("trace", "mix", "policy", "system", "arrival", "load")
_NO_FIGURES = (*_KEYS, "seed", "seconds", "interrupted")
_HEADS = {
    "arrival": "arrived, x capacity",
    "allocation": "allocated, %",
    "knee": "arrived when 1 % was dropped, %",
    "failed_pods": "pods dropped",
    "fragmentation": "unusable, %",
    "asked": "requested, %",
    "gpus": "GPUs",
    "allocated": "allocated, %",
    "held": "held, %",
    "useful": "useful, %",
    "lost_gpu_hours": "lost, GPU-hours",
    "cost": "cost, GPU-hours",
    "never_started": "pods never started",
}
"""Column -> its heading in tables."""
Row = dict[str, Any]
Progress = Callable[[str, float], None]


def table(rows: Sequence[Row], width: int = 0) -> str:
    """Means over the seeds, with the standard deviation of the first figure. ``width`` as for ``columns``."""
    if not rows:
        return "nothing was replayed"
    keys = [key for key in _KEYS if key in rows[0]]
    first, *figures = (name for name in rows[0] if name not in _NO_FIGURES)
    lines = [[*(_HEADS.get(name, name) for name in (*keys, first, "±", *figures)), "seeds"]]
    for group, members in _groups(rows, keys):
        spread = f"{pstdev(row[first] for row in members):.2f}"
        known = ([row[name] for row in members if row[name] is not None] for name in (first, *figures))
        means = [f"{fmean(values):.2f}" if values else "-" for values in known]
        lines.append([*map(str, group), means[0], spread, *means[1:], str(len(members))])
    return aligned(lines, width)


def wait_table(rows: Sequence[Row], width: int = 0) -> str:
    """Means over the seeds, with the standard deviation if there are several: a row for each trace and system
    or policy. Waits are the median and the 95th percentile, in minutes; classes without pods are left out."""
    keys = [key for key in _KEYS if key in rows[0]]
    known = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    plain = [name for name in known if name not in _NO_FIGURES and not name.startswith("wait_")]
    classes = [name.removeprefix("wait_p50_") for name in known if name.startswith("wait_p50_")]
    heads = [f"{name} wait, min" for name in classes]
    lines = [[*keys, *(_HEADS.get(name, name) for name in plain), *heads, "seeds"]]
    for group, members in _groups(rows, keys):
        figures = [_mean_and_spread([row[name] for row in members]) for name in plain]
        waits = [f"{_wait(members, 'p50', name)} / {_wait(members, 'p95', name)}" for name in classes]
        lines.append([*group, *figures, *waits, str(len(members))])
    if not any("seed" in row for row in rows):
        lines = [line[:-1] for line in lines]
    return aligned(lines, width)


def _wait(members: Sequence[Row], figure: str, job_class: str) -> str:
    """A figure of the waits of a class of jobs, p50 or p95, in minutes."""
    values = [row[f"wait_{figure}_{job_class}"] for row in members]
    return _mean_and_spread([value if value is None else value / 60 for value in values])


def _groups(rows: Sequence[Row], keys: Sequence[str]) -> Iterable[tuple[tuple[Any, ...], list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups.items()


def _mean_and_spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, spread = fmean(known), pstdev(known)
    digits = 0 if abs(mean) >= 100 or (mean == round(mean) and not spread) else 1
    return f"{mean:.{digits}f}" + (f" ±{spread:.{digits}f}" if len(known) > 1 and spread else "")
