"""The rows of a replay as aligned text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

_KEYS = ("trace", "mix", "policy", "arrival", "load")
_SHOWN = 10


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds, with the standard deviation of the first figure."""
    if not rows:
        return "nothing was replayed"
    keys = [key for key in _KEYS if key in rows[0]]
    figures = [name for name in rows[0] if name not in keys and name != "seed"]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    lines = [[*keys, *figures, "±"]]
    for group, members in groups.items():
        means = [_mean([row[name] for row in members]) for name in figures]
        spread = pstdev(row[figures[0]] for row in members)
        lines.append([*map(str, group), *means, f"{spread:.2f}"])
    return aligned(lines)


def queue_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds, with the standard deviation if there are several: a line for each trace and
    system. Waiting times are in minutes."""
    queues = [name.removeprefix("wait_p50_") for name in rows[0] if name.startswith("wait_p50_")]
    plain = ["gpus", "allocated", "held", "useful"]
    waits = [f"wait_{percentile}_{queue}" for queue in queues for percentile in ("p50", "p95")]
    rest = ["evictions", "interruptions", "lost_gpu_hours", "cost", "never_started"]
    heads = [head for queue in queues for head in (f"{queue} p50, min", f"{queue} p95, min")]
    lines = [["trace", "system", *plain, *heads, *rest]]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["trace"], row["system"]), []).append(row)
    for group, members in groups.items():
        minutes = [_mean_and_spread([_minutes(row[name]) for row in members]) for name in waits]
        figures = {name: _mean_and_spread([row[name] for row in members]) for name in (*plain, *rest)}
        lines.append([*group, *(figures[n] for n in plain), *minutes, *(figures[n] for n in rest)])
    return aligned(lines)


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60


def _mean_and_spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, spread = fmean(known), pstdev(known)
    digits = 0 if abs(mean) >= 100 or mean == 0 else 1
    return f"{mean:.{digits}f}" + (f" ±{spread:.{digits}f}" if len(known) > 1 and spread else "")


def snapshot_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A cluster as it is, and as each policy would pack it."""
    today, failed = rows[0], []
    lines = [["policy", "whole GPUs free", "whole nodes free", "pods without a place"]]
    for row in rows:
        figures = row["whole_gpus_free"], row["whole_nodes_free"], row["failed_pods"]
        lines.append([str(row["policy"]), *map(str, figures)])
        if row["no_place"]:
            failed.append(f"No place under {row['policy']}: {_first_names(row['no_place'])}")
    nodes = f"{today['nodes']} nodes with {today['gpus']} GPUs"
    title = f"{today['trace']}: {nodes}, {today['pods']} GPU pods that can be placed again"
    return "\n".join([title, aligned(lines), *failed])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, flush right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def _first_names(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else "-"
