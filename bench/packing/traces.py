"""Reads the nodes and pods of a trace from CSV files, in the columns of the openb cluster trace.

nodes: ``sn, cpu_milli, memory_mib, gpu, model``; pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli``
and, where known, ``gpu_spec`` (allowed models, separated by a bar; empty for any), ``creation_time``,
``deletion_time`` (seconds), ``qos``. The traces have no GPU memory: a share takes the same fraction of it as
of compute. Impossible rows are rejected; errors name the file and the line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from extender.untrusted.limits import QUOTED, quoted, shorten
from packing.fleet.arrays import LARGEST
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import WHOLE, Request, Shares

_T = TypeVar("_T")
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MOST_GPUS = 64
_MOST_SECONDS = 1e11  # 3,000 years: Unix times in milliseconds exceed it


class BadInput(ValueError):
    """A file that cannot be replayed; the text names the file and, for a trace, the line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod of a trace, and its line in the file; times in seconds, ``None`` if the file has none."""

    name: str
    request: Request
    created: float | None = None
    deleted: float | None = None
    qos: str = ""
    line: int = 0

    @property
    def duration(self) -> float:
        """Seconds, infinite if the pod does not end."""
        return math.inf if self.deleted is None or self.created is None else self.deleted - self.created


def read_nodes(path: Path) -> list[NodeSpec]:
    """The nodes, in the order of the file; at least one has a GPU. Raises ``BadInput``."""
    lines: dict[str, int] = {}

    def parse(row: Mapping[str, str], line: int) -> NodeSpec:
        return _node(row, _unique("sn", row["sn"], line, lines))

    nodes = list(_rows(path, _NODE_COLUMNS, parse))
    if not any(node.gpus for node in nodes):
        raise BadInput(f"{path}: no node has a GPU")
    return nodes


def read_pods(path: Path, nodes: Sequence[NodeSpec] = (), *, timed: bool = False) -> list[Arrival]:
    """The pods, in the order of the file; at least one requests GPU. Equal requests are one object. If
    ``nodes`` are given, each pod allows one of their models; if ``timed``, each has a creation time. Raises
    ``BadInput``."""
    known: dict[Request, Request] = {}
    lines: dict[str, int] = {}
    models = {node.model for node in nodes if node.model and node.gpus}

    def parse(row: Mapping[str, str], line: int) -> Arrival:
        name = _unique("name", row["name"], line, lines)
        request = known.setdefault(asked := _request(row), asked)
        if nodes and request.models and not request.models & models:
            raise ValueError(f"gpu_spec: no node has the model {_with_near(request.models, models)}")
        created, deleted = _seconds(row, "creation_time"), _seconds(row, "deletion_time")
        if created is not None and deleted is not None and deleted < created:
            raise ValueError(f"deletion_time {deleted:g} is before creation_time {created:g}")
        return Arrival(name, request, created, deleted, row.get("qos") or "", line)

    pods = list(_rows(path, _POD_COLUMNS, parse))
    if not any(pod.request.shares for pod in pods):
        raise BadInput(f"{path}: no pod requests a GPU")
    if untimed := [pod for pod in pods if timed and pod.created is None]:
        raise BadInput(f"{path}, line {untimed[0].line}: pod {quoted(untimed[0].name)} has no creation_time")
    return pods


def _rows(path: Path, columns: Sequence[str], parse: Callable[[Mapping[str, str], int], _T]) -> Iterator[_T]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a byte order mark
            reader = csv.DictReader(file)
            if problem := _header_problem(reader.fieldnames or (), columns):
                raise BadInput(f"{path}, line 1: {problem}")
            for row in reader:
                try:
                    if None in row:
                        raise ValueError("has too many cells")
                    yield parse(row, reader.line_num)
                except (TypeError, ValueError) as error:
                    raise BadInput(f"{path}, line {reader.line_num}: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: is not CSV: {error}") from None


def _header_problem(found: Sequence[str], expected: Sequence[str]) -> str:
    """The problem with these columns, "" if there is none."""
    missing = [name for name in expected if name not in found]
    if not missing:
        return "a column is named twice" if len(set(found)) < len(found) else ""
    for separator, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(found) == 1 and set(found[0].split(separator)) & set(expected):
            return f"columns are separated by {called}; expected commas (save it as CSV with commas)"
    for others, option, other in ((_NODE_COLUMNS, "--nodes", "--pods"), (_POD_COLUMNS, "--pods", "--nodes")):
        if others != expected and set(others) <= set(found):
            return f"these are the columns of {option}, but the file was passed as {other}"
    columns = quoted(", ".join(found)) if found else "none"
    return f"column {missing[0]!r} is missing{_did_you_mean(missing[0], found)}; the file has {columns}"


def _unique(column: str, name: str, line: int, lines: dict[str, int]) -> str:
    """The name, if no earlier line has it. ``lines``: the line of each name so far."""
    if not name:
        raise ValueError(f"{column} is empty")
    if (first := lines.setdefault(name, line)) != line:
        raise ValueError(f"{column} {quoted(name)} is also in line {first}")
    return name


def _with_near(models: Collection[str], known: Collection[str]) -> str:
    [first, *_] = sorted(models)
    names = quoted(" or ".join(sorted(models)))
    return f"{names}{_did_you_mean(first, known)}; the nodes have {', '.join(sorted(known)) or 'none'}"


def _did_you_mean(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name.lower(), {one.lower(): one for one in known}, n=1, cutoff=0.6)
    return f" (did you mean {next(one for one in known if one.lower() == near[0])!r}?)" if near else ""


def _node(row: Mapping[str, str], name: str) -> NodeSpec:
    gpus = (Gpu(WHOLE, divisible=True),) * _number(row, "gpu", _MOST_GPUS)
    cpu, memory = _number(row, "cpu_milli"), _number(row, "memory_mib")
    if gpus and not (cpu and memory):
        column = "memory_mib" if cpu else "cpu_milli"
        raise ValueError(f"{len(gpus)} GPUs, but {column} is 0: no pod could run there")
    return NodeSpec(name, cpu, memory << 20, gpus, model=row["model"] or None)


def _request(row: Mapping[str, str]) -> Request:
    count, milli = _number(row, "num_gpu", _MOST_GPUS), _number(row, "gpu_milli", WHOLE)
    if bool(count) != bool(milli):
        raise ValueError(f"num_gpu is {count}, but gpu_milli is {milli}: both or neither are 0")
    models = row.get("gpu_spec") or ""
    return Request(
        _number(row, "cpu_milli"),
        _number(row, "memory_mib") << 20,
        shares=Shares(count, milli, memory_milli=milli) if count else None,
        models=frozenset(models.split("|")) if models and count else None,
    )


def _number(row: Mapping[str, str], column: str, most: int = LARGEST) -> int:
    """Parse an integer from 0 to ``most``; an empty cell is 0. ``csv`` fills lines that are too short with
    None."""
    text = row[column]
    if text is None:
        raise ValueError("has too few cells")
    try:
        number = int(text or 0)
    except ValueError:
        hint = " (thousandths: half a GPU or CPU is 500)" if column.endswith("milli") and "." in text else ""
        raise ValueError(f"{column}: {quoted(text)} is not a whole number{hint}") from None
    if not 0 <= number <= most:
        raise ValueError(f"{column}: {shorten(text, QUOTED)} is not between 0 and {most}")
    return number


def _seconds(row: Mapping[str, str], column: str) -> float | None:
    text = row.get(column)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MOST_SECONDS:
        raise ValueError(f"{column}: {quoted(text)} is not a time in seconds, from 0")
    return seconds
