"""What the row kernels take, as named tuples of arrays: the nodes, one request, the mix, and its worth.

Each is built from a ``Fleet`` or a ``Request`` here, and spread over the arguments of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packing.fleet.fleet import Fleet, Floats
from packing.jit import each_of
from packing.model.request import MOST_DEVICES, Request

ROWS = 9
CPU, MEMORY, COUNT, COMPUTE, SHARE_MIB, SHARE_MILLI, ISLAND, DIVISION, MOST = range(ROWS)
"""Rows of ``RequestArgs.amounts`` and ``MixTypes.amounts``: CPU milli, MiB, GPUs, then each share, island size, the
sharing system (-1: shares that no node takes), and the most shares of a type that count on one GPU."""
LANES = 16
"""The types of a mix are filled up to a multiple of this, so that loops over them vectorise to the end."""


class Nodes(NamedTuple):
    """The arrays of a ``Fleet`` that decide what a node can take, named as there."""

    generation: npt.NDArray[np.int64]
    cpu: Floats
    node_memory: Floats
    model: npt.NDArray[np.int16]
    max_island: npt.NDArray[np.int16]
    overcommitted: npt.NDArray[np.uint8]
    blocked: npt.NDArray[np.int8]
    compute: Floats
    memory: Floats
    memory_capacity: Floats
    divisible: npt.NDArray[np.uint8]
    free: npt.NDArray[np.int32]
    device_gpu: Floats
    divides: npt.NDArray[np.uint8]
    divided: npt.NDArray[np.uint8]
    free_cpu: npt.NDArray[np.int64]
    free_memory: npt.NDArray[np.int64]
    island: npt.NDArray[np.uint8]


class RequestArgs(NamedTuple):
    """A request against a fleet: CPU milli and memory bytes ``exact`` (2,), ``amounts`` (9,), models
    ``allowed`` (M,) 0 or 1, ``devices`` (R,) taken."""

    exact: npt.NDArray[np.int64]
    amounts: Floats
    allowed: npt.NDArray[np.uint8]
    devices: npt.NDArray[np.int32]


class MixTypes(NamedTuple):
    """The T request types of a mix: ``amounts`` (9, T) with a tiny number for 0 where it divides, ``devices``
    (R, T), models ``allowed`` (M, T) 0 or 1, and the resources ``asked`` (A,) that any of them needs."""

    amounts: Floats
    devices: Floats
    allowed: Floats
    asked: npt.NDArray[np.int32]


class Inventory(NamedTuple):
    """What the nodes can still host: ``units`` and ``slots`` (N, T) and the sum of slots (T,)."""

    units: Floats
    slots: Floats
    totals: npt.NDArray[np.float64]


class ValueTables(NamedTuple):
    """What things are worth, in GPUs: ``prices`` (T,) of a slot, ``fill`` (K, B + 1, B + 1) of a GPU's free
    compute and memory, for GPUs of at least ``memory_mib`` (K,) ascending."""

    prices: Floats
    fill: Floats
    memory_mib: Floats


STATES = 32
"""States of a GPU that are remembered. A power of 2."""


class IdenticalNodes(NamedTuple):
    """Nodes in the very same state, for which everything is the same: ``first`` (N,) of them, and the
    generation ``since`` (N,) which that held."""

    first: npt.NDArray[np.int64]
    since: npt.NDArray[np.int64]


class Scratch(NamedTuple):
    """Room for a kernel's own use, as kernels allocate nothing: three of (T,), ``gpu`` (5, G), ``devices``
    (R,), and what was found out last about GPUs in some states: ``states`` (S, 5) and ``gone`` (S, T)."""

    limits: Floats
    needs: Floats
    lost: Floats
    gpu: Floats
    devices: npt.NDArray[np.int32]
    states: Floats
    gone: Floats


class Weights(NamedTuple):
    """Constants of the inventory policy; ``cpu_per_gpu`` in milli."""

    fill: float
    stranding: float
    cpu_per_gpu: float
    step: float


def _an(dtype: str, dimensions: int) -> npt.NDArray[Any]:
    return np.zeros((1,) * dimensions, dtype)


_f1, _f2, _u1, _i2 = _an("f4", 1), _an("f4", 2), _an("u1", 1), _an("i2", 1)
NODES = each_of(
    Nodes(
        _an("i8", 1),
        _f1,
        _f1,
        _i2,
        _i2,
        _u1,
        _an("i1", 1),
        _f2,
        _f2,
        _f2,
        _an("u1", 2),
        _an("i4", 2),
        _f2,
        _an("u1", 2),
        _u1,
        _an("i8", 1),
        _an("i8", 1),
        _an("u1", 2),
    )
)
ASK = each_of(RequestArgs(_an("i8", 1), _f1, _u1, _an("i4", 1)))
TYPES = each_of(MixTypes(_f2, _f2, _f2, _an("i4", 1)))
INVENTORY = each_of(Inventory(_f2, _f2, _an("f8", 1)))
WORTH = each_of(ValueTables(_f1, _an("f4", 3), _f1))
TWINS = each_of(IdenticalNodes(_an("i8", 1), _an("i8", 1)))
SCRATCH = each_of(Scratch(_f1, _f1, _f1, _f2, _an("i4", 1), _f2, _f2))
WEIGHTS = each_of(Weights(1.0, 1.0, 1.0, 1.0))

_MANY = 1e9


def nodes_of(fleet: Fleet) -> Nodes:
    """The fleet's arrays as the row kernels take them. Valid until the fleet grows."""
    return Nodes(
        fleet.generation, fleet.cpu, fleet.node_memory, fleet.model, fleet.max_island,
        fleet.overcommitted, fleet.blocked, fleet.compute, fleet.memory, fleet.memory_capacity,
        fleet.divisible, fleet.free, fleet.device_gpu, fleet.divides, fleet.divided,
        fleet.free_cpu, fleet.free_memory, fleet.island,
    )  # fmt: skip


def layout_of(fleet: Fleet) -> tuple[int, int]:
    """What sized arrays kept beside a fleet depend on; it changes when the fleet grows."""
    return id(fleet), fleet.grown


def ask_of(fleet: Fleet, request: Request) -> RequestArgs:
    """A request against the models and resources of this fleet."""
    devices, known = devices_of(fleet, request)
    allowed = fleet.allowed(request) if known else np.zeros(len(fleet.model_names), np.uint8)
    exact = np.array([request.cpu_milli, request.memory_bytes], np.int64)
    return RequestArgs(exact, amounts_of(fleet, [request])[:, 0].copy(), allowed, devices)


def devices_of(fleet: Fleet, request: Request) -> tuple[npt.NDArray[np.int32], bool]:
    """Counted devices of each resource (R,), and whether the fleet knows all that are asked for."""
    devices = np.zeros(len(fleet.free), np.int32)
    for name, count in request.devices:
        if name not in fleet.resources:
            return devices, False
        resource = fleet.resources[name]
        devices[resource] = min(int(devices[resource]) + count, MOST_DEVICES)
    return devices, True


def amounts_of(fleet: Fleet, requests: Sequence[Request]) -> Floats:
    """The rows of ``RequestArgs.amounts`` for each request: (9, T)."""
    amounts = np.array([_amounts(fleet, request) for request in requests], np.float64).reshape(-1, ROWS)
    return np.ascontiguousarray(amounts.clip(max=_MANY).astype(np.float32).T)


def _amounts(fleet: Fleet, request: Request) -> list[float]:
    part = request.shares
    share = (part.count, part.compute_milli, part.memory_mib, part.memory_milli) if part else (0, 0, 0, 0)
    division = fleet.divisions.get(part.resource, -1) if part else 0
    most = 0 if part is None else 1 if part.count > 1 else _MANY
    island = request.gpus if request.island else 0
    return [request.cpu_milli, request.memory_mib, *share, island, division, most]
