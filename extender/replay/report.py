"""The rows of a replay as aligned text or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from extender.cluster.totals import Totals
from extender.untrusted.visible import columns, csv_text, many, visible, wrapped

_FREED = {"whole_gpus_free": "whole GPU", "whole_nodes_free": "node"}
"""Figure -> its unit."""
_SHOWN = 10

Row = Mapping[str, Any]


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV, without the node of each pod."""

    def cell(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return "; ".join(f"{name}: {text}" for name, text in value.items())

    names = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name != "placed"]
    return csv_text([names, *([cell(row.get(name)) for name in names] for row in rows)])


def snapshot_table(rows: Sequence[Row], width: int = 0) -> str:
    """A cluster in its current state, and packed by each policy."""
    today, *packed = rows
    sizes = [f"{size} GPUs" for size in today["could_start"]]
    lines = [["policy", *sizes, "whole GPUs", "whole nodes", "worth in A100s", "moved", "left in place"]]
    for row in rows:
        free = [*row["could_start"].values(), *(row[name] for name in (*_FREED, "free_worth"))]
        moves = ["-", "-"] if row is today else [str(row["moved_pods"]), str(row["kept_pods"])]
        lines.append([str(row["policy"]), *map(str, free), *moves])
    running = today["pods"] + today["pinned_pods"]
    of = f"{today['pods']} of {running} running GPU pods can be placed again"
    title = wrapped(f"{visible(today['trace'])}: {Totals(**today['totals']).text}", width)
    legend = "Jobs of each size that could still start, and free GPUs and nodes:"
    parts = [*title, of, *_meaning(today, packed), "", legend, aligned(lines, width)]
    parts += _by_model(rows, width)
    if today["pinned"]:
        pinned = [[f"{count:>4}", why] for why, count in today["pinned"].items()]
        parts += [f"Pinned to their nodes: {today['pinned_pods']} GPU pods", aligned(pinned, left=True)]
    return "\n".join([*parts, *chain.from_iterable(map(_kept, rows))])


def _meaning(today: Row, packed: Sequence[Row]) -> Iterator[str]:
    """The meaning of the result, in a sentence for each policy."""
    for row in packed:
        free = [_more(row, today, name, what) for name, what in _FREED.items()]
        start, before = row["could_start"], today["could_start"]
        jobs = [*filter(None, (_more(start, before, size, f"{size}-GPU job") for size in start))]
        said = [" and ".join(filter(None, free)) + " would be free"] if any(free) else []
        said += [f"{jobs[0]} could start"] if jobs else []
        said = said or ["no change from today"]
        if held := row["held_back"]:
            pods = f"{held} pods" if held > 1 else "1 pod"
            said.append(f"{pods} kept from a weaker device (--allow-downgrade)")
        if row["on_parts"]:
            on_parts = f"{many(row['on_parts'], 'pod')} on fractions of GPUs while whole ones are free"
            said.append(f"{on_parts} (stowage.dev/whole-gpu, plain_gpu)")
        yield f"{row['policy']}: {'; '.join(said)}."


def _more(row: Row, today: Row, name: str, what: str) -> str:
    """The difference of a row from today, "" for none."""
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


def _kept(row: Row) -> Iterator[str]:
    if kept := row["kept"]:
        yield f"Left in place under {row['policy']}, which found no node for them when placing all pods:"
        yield aligned([["   ", *pair] for pair in list(kept.items())[:_SHOWN]], left=True)
        if len(kept) > _SHOWN:
            yield f"     and {len(kept) - _SHOWN} more"


def aligned(lines: Sequence[Sequence[str]], width: int = 0, *, left: bool = False) -> str:
    """Columns of equal width, aligned right or left."""
    return "\n".join(columns(lines, () if left else range(len(lines[0])), width=width))
