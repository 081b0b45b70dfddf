"""The files that a replay reads: nodes and pods as CSV, in the columns of the openb cluster trace.

nodes: ``sn, cpu_milli, memory_mib, gpu, model``; pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli``
and, where known, ``gpu_spec`` (models allowed, separated by a bar; empty for any), ``creation_time``,
``deletion_time`` (seconds). A trace that says nothing of GPU memory shares memory as it shares compute.
Errors name the file and the line.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.packing.mig import ProfileMix
from bench.packing.mixes import ShareMix, Work
from bench.packing.windows import MigMasks
from packing.fleet.arrays import LARGEST
from packing.model.gpu_catalogue import Geometry, find_model
from packing.model.node_spec import MOST_GPUS, Gpu, NodeSpec
from packing.model.request import WHOLE, Request, Shares

_T = TypeVar("_T")
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class BadTrace(ValueError):
    """A trace file that cannot be read; the text says where."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod of a trace; times in seconds, ``None`` where the file has none."""

    name: str
    request: Request
    created: float | None = None
    deleted: float | None = None


def read_nodes(path: Path) -> list[NodeSpec]:
    """The nodes, in the order of the file; at least one has a GPU."""
    nodes = list(_rows(path, _NODE_COLUMNS, _node))
    again = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if again:
        raise BadTrace(f"{path}: node {again[0]!r} is there twice")
    if not any(node.gpus for node in nodes):
        raise BadTrace(f"{path}: no node has a GPU")
    return nodes


def read_pods(path: Path) -> list[Arrival]:
    """The pods, in the order of the file, of which one asks for GPU; equal requests are one object."""
    known: dict[Request, Request] = {}

    def pod(row: Mapping[str, str]) -> Arrival:
        request = _request(row)
        created, deleted = _seconds(row.get("creation_time")), _seconds(row.get("deletion_time"))
        if created is not None and deleted is not None and deleted < created:
            raise ValueError(f"is deleted at {deleted:g}, before it is created at {created:g}")
        return Arrival(row["name"], known.setdefault(request, request), created, deleted)

    pods = list(_rows(path, _POD_COLUMNS, pod))
    if not any(one.request.shares for one in pods):
        raise BadTrace(f"{path}: no pod asks for GPU")
    return pods


def _rows(path: Path, columns: Sequence[str], parse: Callable[[Mapping[str, str]], _T]) -> Iterator[_T]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel begins with a mark
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise BadTrace(f"{path}: column {missing[0]!r} is missing")
            for row in reader:
                try:
                    yield parse(row)
                except (TypeError, ValueError) as wrong:
                    raise BadTrace(f"{path}, line {reader.line_num}: {wrong}") from None
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as unreadable:
        raise BadTrace(f"{path}: is not CSV: {unreadable}") from None


def _node(row: Mapping[str, str]) -> NodeSpec:
    gpus = (Gpu(WHOLE, divisible=True),) * _number(row, "gpu", MOST_GPUS)
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
    """A whole number from 0 to ``most``; an empty cell is 0. A line that is too short has ``None``."""
    text = row[column]
    if text is None:
        raise ValueError("has too few cells")
    try:
        number = int(text or 0)
    except ValueError:
        raise ValueError(f"{column}: {text[:40]!r} is not a whole number") from None
    if not 0 <= number <= most:
        raise ValueError(f"{column}: {text[:40]} does not lie between 0 and {most}")
    return number


def _seconds(text: str | None) -> float | None:
    seconds = float(text) if text else None
    if seconds is not None and not math.isfinite(seconds):
        raise ValueError(f"{text} is not a time in seconds")
    return seconds


@dataclass(frozen=True, slots=True)
class NamedMix:
    """One mix of a file, and the loads at which it is replayed."""

    work: Work
    fill_loads: tuple[float, ...]
    dynamic_loads: tuple[float, ...]


def read_mixes(path: Path) -> list[NamedMix]:
    """Request mixes over GPUs alone: ``{"unit": 20, "mixes": {name: [{"compute", "memory", "frequency"}]}}``,
    or with ``"profile"`` instead of the sizes for MIG instances on demand."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return [_mix(name, requests, int(data.get("unit", 1))) for name, requests in data["mixes"].items()]
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as unreadable:
        raise BadTrace(f"{path}: is not JSON: {unreadable}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as wrong:
        raise BadTrace(f"{path}: not a file of request mixes: {wrong!r}") from None


def _mix(name: str, requests: list[Mapping[str, Any]], unit: int) -> NamedMix:
    frequency = np.array([float(request["frequency"]) for request in requests])
    if not (np.isfinite(frequency).all() and (frequency >= 0).all() and frequency.sum() > 0):
        raise ValueError(f"{name}: frequencies are numbers from 0, not all of them 0")
    frequency /= frequency.sum()
    if "profile" in requests[0]:
        compute = tuple(int(str(request["profile"]).removesuffix("g")) for request in requests)
        windows = MigMasks.of(_geometry(), compute)
        return NamedMix(ProfileMix(name, windows, compute, frequency), (1.0, 1.2), (0.85, 1.0, 1.2))
    sizes = np.array([[int(request["compute"]), int(request["memory"])] for request in requests])
    if (sizes < 0).any() or (sizes > unit).any() or (sizes.max(axis=1) == 0).any():
        raise ValueError(f"{name}: a request lies between nothing and {unit} units of one GPU")
    return NamedMix(ShareMix(name, sizes, frequency, unit), (1.0, 1.3), (0.9, 1.05))


def _geometry() -> Geometry:
    """Seven compute and eight memory slices: every data-centre part from A100 to B200 divides so."""
    model = find_model("NVIDIA-A100-SXM4-80GB")
    assert model is not None
    assert model.geometry is not None
    return model.geometry
