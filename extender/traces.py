"""The files that a replay reads: nodes and pods as CSV, in the columns of the openb cluster trace.

nodes: ``sn, cpu_milli, memory_mib, gpu, model``; pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli``
and, where known, ``gpu_spec`` (models allowed, separated by a bar; empty for any), ``creation_time``,
``deletion_time`` (seconds). A trace that says nothing of GPU memory shares memory as it shares compute.
Errors name the file and the line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from packing.catalogue import Geometry, find_model
from packing.fleet import Gpu, NodeShape
from packing.mig import ProfileMix, Windows
from packing.mixes import ShareMix, Work
from packing.request import WHOLE, Request, Shares

_T = TypeVar("_T")


class BadTrace(ValueError):
    """A trace file that cannot be read; the text says where."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod of a trace; times in seconds, ``None`` where the file has none."""

    name: str
    request: Request
    created: float | None = None
    deleted: float | None = None


def read_nodes(path: Path) -> list[NodeShape]:
    """The nodes, in the order of the file."""
    return list(_rows(path, _node))


def read_pods(path: Path) -> list[Arrival]:
    """The pods, in the order of the file; equal requests are one object."""
    known: dict[Request, Request] = {}

    def pod(row: Mapping[str, str]) -> Arrival:
        request = _request(row)
        return Arrival(
            row["name"],
            known.setdefault(request, request),
            _seconds(row.get("creation_time")),
            _seconds(row.get("deletion_time")),
        )

    return list(_rows(path, pod))


def _rows(path: Path, parse: Callable[[Mapping[str, str]], _T]) -> Iterator[_T]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            for row in reader:
                try:
                    yield parse(row)
                except KeyError as missing:
                    raise BadTrace(f"{path}: column {missing} is missing") from None
                except (TypeError, ValueError) as wrong:
                    raise BadTrace(f"{path}, line {reader.line_num}: {wrong}") from None
    except (OSError, UnicodeDecodeError) as unreadable:
        raise BadTrace(f"{path}: {unreadable}") from None


def _node(row: Mapping[str, str]) -> NodeShape:
    gpus = tuple(Gpu(WHOLE, divisible=True) for _ in range(int(row["gpu"])))
    return NodeShape(
        row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), gpus, model=row["model"] or None
    )


def _request(row: Mapping[str, str]) -> Request:
    count, milli = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
    models = row.get("gpu_spec") or ""
    return Request(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        shares=Shares(count, milli, memory_milli=milli) if count and milli else None,
        models=frozenset(models.split("|")) if models and count else None,
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text else None


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
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as unreadable:
        raise BadTrace(f"{path}: {unreadable}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise BadTrace(f"{path}: not a file of request mixes: {wrong!r}") from None


def _mix(name: str, requests: list[Mapping[str, Any]], unit: int) -> NamedMix:
    frequency = np.array([float(request["frequency"]) for request in requests])
    frequency /= frequency.sum()
    if "profile" in requests[0]:
        compute = tuple(int(str(request["profile"]).removesuffix("g")) for request in requests)
        windows = Windows.of(_geometry(), compute)
        return NamedMix(ProfileMix(name, windows, compute, frequency), (1.0, 1.2), (0.85, 1.0, 1.2))
    sizes = np.array([[int(request["compute"]), int(request["memory"])] for request in requests])
    return NamedMix(ShareMix(name, sizes, frequency, unit), (1.0, 1.3), (0.9, 1.05))


def _geometry() -> Geometry:
    """Seven compute and eight memory slices: every data-centre part from A100 to B200 divides so."""
    model = find_model("NVIDIA-A100-SXM4-80GB")
    assert model is not None
    assert model.geometry is not None
    return model.geometry
