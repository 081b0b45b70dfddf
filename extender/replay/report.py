"""The rows of a replay as aligned text, and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean, pstdev
from typing import Any

from extender.cluster.totals import Totals
from extender.untrusted.visible import columns, csv_text, many, visible, wrapped

_KEYS = ("trace", "mix", "policy", "system", "arrival", "load")
_NO_FIGURES = (*_KEYS, "seed", "seconds", "interrupted")
_FREED = {"whole_gpus_free": "whole GPU", "whole_nodes_free": "node"}
"""Figure -> what more or less of it is."""
_SHOWN = 10
_HEADS = {
    "arrival": "arrived, x capacity",
    "allocation": "allocated, %",
    "knee": "1 % dropped at, %",
    "failed_pods": "pods dropped",
    "fragmentation": "unusable, %",
    "utilisation": "allocated, %",
    "asked": "asked for, %",
    "gpus": "GPUs",
    "allocated": "allocated, %",
    "held": "held, %",
    "useful": "useful, %",
    "lost_gpu_hours": "lost, GPU-hours",
    "cost": "cost, GPU-hours",
    "never_started": "pods never started",
}
"""Column -> what a table calls it."""
_PERCENT = {"allocation", "knee", "fragmentation", "utilisation", "asked", "allocated", "held", "useful"}
CLASSES = {
    "cpu": "no GPU",
    "share": "part of a GPU",
    "1_gpu": "1 GPU",
    "2_to_7_gpus": "2-7 GPUs",
    "8_gpus": "8+ GPUs",
}
"""Classes of a timeline without queues -> what a table calls them."""
LEGENDS = {
    "pods": "allocated: GPU of the nodes, when as much has arrived as they have; ±: standard deviation over"
    " the seeds.\n1 % dropped at: GPU that had arrived when pods with 1 % of it had found no place, in per"
    " cent of the nodes' GPU.\nunusable: free GPU that the next pod cannot be expected to use.",
    "timeline": "allocated: GPU of running pods, mean over time; asked for: the same if nobody had to wait.\n"
    "wait: median / 95th percentile of the pods that started.",
}
"""What is replayed -> what the columns of its table mean."""


Row = Mapping[str, Any]


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
    """Means over the seeds, with the standard deviation if there are several: a line for each trace and
    system or policy. Waits are the median and the 95th percentile, in minutes; classes without pods are left
    out."""
    keys = [key for key in _KEYS if key in rows[0]]
    known = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    plain = [name for name in known if name not in _NO_FIGURES and not name.startswith("wait_")]
    classes = [name.removeprefix("wait_p50_") for name in known if name.startswith("wait_p50_")]
    heads = [f"wait of {CLASSES[name]}, min" if name in CLASSES else f"{name} wait, min" for name in classes]
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


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV. A column that has a unit ends in it: ``allocation_percent``."""
    names = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name != "placed"]
    return csv_text([map(_with_unit, names), *([_cell(row.get(name)) for name in names] for row in rows)])


def _with_unit(name: str) -> str:
    if name == "cost":
        return "cost_gpu_hours"
    unit = "_seconds" * name.startswith("wait_") + "_percent" * (name in _PERCENT)
    return name + unit


def _cell(value: object) -> object:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {text}" for name, text in value.items())
    return value


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


def snapshot_table(rows: Sequence[Row], width: int = 0) -> str:
    """A cluster as it is, and as each policy would pack it."""
    today, *packed = rows
    sizes = [f"{size} GPUs" for size in today["could_start"]]
    lines = [["policy", *sizes, "whole GPUs", "whole nodes", "worth in A100s", "moved", "left in place"]]
    for row in rows:
        free = [*row["could_start"].values(), *(row[name] for name in (*_FREED, "free_worth"))]
        moves = ["-", "-"] if row is today else [str(row["moved_pods"]), str(row["kept_pods"])]
        lines.append([str(row["policy"]), *map(str, free), *moves])
    running = today["pods"] + today["pinned_pods"]
    of = f"{today['pods']} of {running} running GPU pods can be placed again"
    bound = f"at most {today['most_whole_gpus_free']} GPUs can be whole and free"
    title = wrapped(f"{visible(today['trace'])}: {Totals(**today['totals']).text}", width)
    legend = "Jobs of so many GPUs that could still start, and what is free:"
    parts = [*title, f"{of}; {bound}", *_meaning(today, packed), "", legend, aligned(lines, width)]
    parts += _by_model(rows, width)
    return "\n".join([*parts, *_pinned(today), *chain.from_iterable(map(_kept, rows))])


def _meaning(today: Row, packed: Sequence[Row]) -> Iterator[str]:
    """What the result means, in a sentence for each policy."""
    for row in packed:
        free = [_more(row, today, name, what) for name, what in _FREED.items()]
        start, before = row["could_start"], today["could_start"]
        jobs = [*filter(None, (_more(start, before, size, f"{size}-GPU job") for size in start))]
        said = [" and ".join(filter(None, free)) + " would be free"] if any(free) else []
        said += [f"{jobs[0]} could start"] if jobs else []
        said = said or ["as good as today"]
        if held := row["held_back"]:
            pods = f"{held} pods" if held > 1 else "1 pod"
            said.append(f"{pods} would get a weaker device and do not (--allow-downgrade)")
        if row["on_parts"]:
            on_parts = f"{many(row['on_parts'], 'pod')} on parts of GPUs while whole ones are free"
            said.append(f"{on_parts} (stowage.dev/whole-gpu, plain_gpu)")
        yield f"{row['policy']}: {'; '.join(said)}."


def _more(row: Row, today: Row, name: str, what: str) -> str:
    """How much more or less a row has, "" for as much."""
    count = row[name] - today[name]
    return f"{abs(count)} {'more' if count > 0 else 'fewer'} {what}{'s' * (abs(count) > 1)}" if count else ""


def _by_model(rows: Sequence[Row], width: int) -> Iterator[str]:
    models = sorted({model for row in rows for model in row["whole_by_model"]})
    if len(models) < 2:
        return
    lines = [["policy", *models]]
    for row in rows:
        gpus, nodes = row["whole_by_model"], row["nodes_by_model"]
        cells = [f"{gpus.get(model, 0)} ({nodes.get(model, 0)})" for model in models]
        lines.append([str(row["policy"]), *cells])
    yield "\nWhole GPUs (whole nodes) free by model:"
    yield aligned(lines, width)


def _pinned(today: Row) -> Iterator[str]:
    if today["pinned"]:
        yield f"Pinned to their nodes: {today['pinned_pods']} GPU pods"
        yield aligned([[f"{count:>4}", why] for why, count in today["pinned"].items()], left=True)


def _kept(row: Row) -> Iterator[str]:
    if kept := row["kept"]:
        yield f"Left in place under {row['policy']}, which found no room for them when it placed all pods:"
        yield aligned([["   ", *pair] for pair in list(kept.items())[:_SHOWN]], left=True)
        if len(kept) > _SHOWN:
            yield f"     and {len(kept) - _SHOWN} more"


def aligned(lines: Sequence[Sequence[str]], width: int = 0, *, left: bool = False) -> str:
    """Columns of equal width, flush right or left."""
    return "\n".join(columns(lines, () if left else range(len(lines[0])), width=width))
