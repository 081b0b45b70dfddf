"""Reads the nodes and pods of a trace from CSV files, in the columns of the openb cluster trace.

nodes: ``sn, cpu_milli, memory_mib, gpu, model``; pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli``
and, where known, ``gpu_spec`` (allowed models, separated by a bar; empty for any), ``creation_time``,
``deletion_time`` (seconds), ``qos``. The traces have no GPU memory: a share takes the same part of it as of
compute. Errors name the file and the line.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from packing.fleet.arrays import LARGEST
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import WHOLE, Request, Shares

_T = TypeVar("_T")
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MOST_GPUS = 64


class BadInput(ValueError):
    """A file that cannot be replayed; the text names the file and, of a trace, the line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod of a trace; times in seconds, ``None`` where the file has none."""

    name: str
    request: Request
    created: float | None = None
    deleted: float | None = None
    qos: str = ""


def read_nodes(path: Path) -> list[NodeSpec]:
    """The nodes, in the order of the file; at least one has a GPU. Raises ``BadInput``."""
    nodes = list(_rows(path, _NODE_COLUMNS, _node))
    duplicates = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if duplicates:
        raise BadInput(f"{path}: node {duplicates[0]!r} is listed twice")
    if not any(node.gpus for node in nodes):
        raise BadInput(f"{path}: no node has a GPU")
    return nodes


def read_pods(path: Path) -> list[Arrival]:
    """The pods, in the order of the file; at least one asks for GPU. Equal requests are one object. Raises
    ``BadInput``."""
    known: dict[Request, Request] = {}

    def parse(row: Mapping[str, str]) -> Arrival:
        request = known.setdefault(asked := _request(row), asked)
        created, deleted = _seconds(row.get("creation_time")), _seconds(row.get("deletion_time"))
        if created is not None and deleted is not None and deleted < created:
            raise ValueError(f"deletion_time {deleted:g} is before creation_time {created:g}")
        return Arrival(row["name"], request, created, deleted, row.get("qos") or "")

    pods = list(_rows(path, _POD_COLUMNS, parse))
    if not any(pod.request.shares for pod in pods):
        raise BadInput(f"{path}: no pod asks for GPU")
    return pods


def _rows(path: Path, columns: Sequence[str], parse: Callable[[Mapping[str, str]], _T]) -> Iterator[_T]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a byte order mark
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise BadInput(f"{path}: column {missing[0]!r} is missing")
            for row in reader:
                try:
                    yield parse(row)
                except (TypeError, ValueError) as error:
                    raise BadInput(f"{path}, line {reader.line_num}: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: is not CSV: {error}") from None


def _node(row: Mapping[str, str]) -> NodeSpec:
    gpus = (Gpu(WHOLE, divisible=True),) * _number(row, "gpu", _MOST_GPUS)
    cpu, memory = _number(row, "cpu_milli"), _number(row, "memory_mib")
    return NodeSpec(row["sn"], cpu, memory << 20, gpus, model=row["model"] or None)


def _request(row: Mapping[str, str]) -> Request:
    count, milli = _number(row, "num_gpu"), _number(row, "gpu_milli", WHOLE)
    if count and not milli:
        raise ValueError(f"{count} GPUs, but gpu_milli is 0")
    models = row.get("gpu_spec") or ""
    return Request(
        _number(row, "cpu_milli"),
        _number(row, "memory_mib") << 20,
        shares=Shares(count, milli, memory_milli=milli) if count else None,
        models=frozenset(models.split("|")) if models and count else None,
    )


def _number(row: Mapping[str, str], column: str, most: int = LARGEST) -> int:
    """A whole number from 0 to ``most``; an empty cell is 0. ``csv`` fills a line that is too short with
    None."""
    text = row[column]
    if text is None:
        raise ValueError("has too few cells")
    try:
        number = int(text or 0)
    except ValueError:
        raise ValueError(f"{column}: {text[:40]!r} is not a whole number") from None
    if not 0 <= number <= most:
        raise ValueError(f"{column}: {text[:40]} is not between 0 and {most}")
    return number


def _seconds(text: str | None) -> float | None:
    seconds = float(text) if text else None
    if seconds is not None and not math.isfinite(seconds):
        raise ValueError(f"{text} is not a time in seconds")
    return seconds
