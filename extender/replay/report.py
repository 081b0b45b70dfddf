"""The rows of a replay as aligned text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean, pstdev
from typing import Any

_KEYS = ("trace", "mix", "policy", "arrival", "load")
_MOVES = ("moved_pods", "kept_pods")
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
    today = rows[0]
    lines = [["policy", "whole GPUs free", "whole nodes free", "pods on another node", "pods left in place"]]
    for row in rows:
        figures = [str(row[name]) for name in ("whole_gpus_free", "whole_nodes_free", *_MOVES)]
        lines.append([str(row["policy"]), *figures[:2], *(["-", "-"] if row is today else figures[2:])])
    running = today["pods"] + today["pinned_pods"]
    of = f"{today['pods']} of {running} running GPU pods can be placed again"
    title = f"{today['trace']}: {today['nodes']} nodes with {today['gpus']} GPUs; {of}"
    return "\n".join([title, aligned(lines), *_pinned(today), *chain.from_iterable(map(_kept, rows))])


def _pinned(today: Mapping[str, Any]) -> Iterator[str]:
    if today["pinned"]:
        yield f"Pinned to their nodes: {today['pinned_pods']} GPU pods"
        yield aligned([[f"{count:>4}", why] for why, count in today["pinned"].items()], left=True)


def _kept(row: Mapping[str, Any]) -> Iterator[str]:
    if kept := row["kept"]:
        yield f"Left in place under {row['policy']}, because it finds no place for them elsewhere:"
        yield aligned([["   ", *pair] for pair in list(kept.items())[:_SHOWN]], left=True)
        if len(kept) > _SHOWN:
            yield f"     and {len(kept) - _SHOWN} more"


def aligned(lines: Sequence[Sequence[str]], *, left: bool = False) -> str:
    """Columns of equal width, flush right or left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    pad = str.ljust if left else str.rjust
    return "\n".join("  ".join(map(pad, line, widths)).rstrip() for line in lines)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else "-"
