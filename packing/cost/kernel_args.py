"""The arguments of the cost kernels as records of arrays: nodes, a request, a mix, slots, values, scratch.

Fields have the same names in kernels and in Python. Shapes: N nodes, G GPUs per node, R resources, M GPU
models, T request types of the mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats
from packing.jit import (
    Float32Array,
    Float32Array2D,
    Float32Array3D,
    Float64,
    Float64Array,
    Int8Array,
    Int16Array,
    Int32Array,
    Int32Array2D,
    Int64Array,
    UInt8Array,
    UInt8Array2D,
    checked,
)
from packing.model.request import MOST_DEVICES, WHOLE, Request

if TYPE_CHECKING:
    from packing.fleet.fleet import Fleet

AMOUNTS = 10
CPU, MEMORY, COUNT, COMPUTE, SHARE_MIB, SHARE_MILLI, ISLAND, SHARING, MAX_PER_GPU, PEERS = range(AMOUNTS)
"""Rows of ``amounts``: CPU milli, host memory in MiB, number of shares, then compute milli, MiB and
thousandths of memory per share, GPUs that must be NVLink peers, the index of the sharing resource (-1:
offered by no node), maximum number of shares of this type to count per GPU, and GPUs that should be NVLink
peers, if more than one."""
LANES = 16
"""The number of types of a mix is padded to a multiple of this, so that loops over types vectorize fully."""
STEP = 0.055
"""The cost is rounded up to multiples of this, in GPUs. Found together with ``slots.SCARCITY`` and the
weights of the terms, on the same six traces. The optimum is flat: no rounding costs 0.1 points. Only cpu250
is sensitive: 0.1 costs it 0.4, no rounding 0.7."""
PEER_SLOTS, APART = 0.4, 2 * STEP
"""For islands: the weight, 0 to 1, of the islands' own count in slots for several GPUs; and the cost of a GPU
apart from its peers, a multiple of STEP, so that it changes no rounding where all nodes are equal. Found with
bench/packing/islands.py, seeds 1-4: 4 x STEP gives 1 % more jobs peers, and costs 0.3 points more of
allocation where a device plugin chooses; PEER_SLOTS 0 or 0.25 costs up to 0.1. Above 0.44, on a fleet of two
nodes, a job for eight peers was placed on the degraded switch to spare the intact one."""
GPU_ROWS = 8
"""Number of rows of ``gpu`` in the kernels, the GPUs of one node (see ``node_kernels``)."""
_MANY, _TINY = 1e9, 1e-3


class Nodes(NamedTuple):
    """The arrays of a fleet on which the cost depends (see ``NodeArrays``)."""

    generation: Int64Array
    cpu: Float32Array
    node_memory: Float32Array
    model: Int16Array
    max_island: Int16Array
    overcommitted: UInt8Array
    blocked: Int8Array
    compute: Float32Array2D
    memory: Float32Array2D
    memory_capacity: Float32Array2D
    divisible: UInt8Array2D
    free_devices: Int32Array2D
    device_gpu: Float32Array2D
    divisible_pool: UInt8Array2D
    sharing: UInt8Array
    free_cpu: Int64Array
    free_memory: Int64Array
    island: UInt8Array2D
    nvlink: UInt8Array
    free_peers: Int32Array2D
    surplus_devices: Int32Array2D
    total_devices: Int32Array2D


class RequestArgs(NamedTuple):
    """A request resolved against a fleet: CPU milli and memory bytes ``exact`` (2,), ``amounts`` (10,), GPU
    models ``allowed`` (M,) 0 or 1, counted ``devices`` (R,)."""

    exact: Int64Array
    amounts: Float32Array
    allowed: UInt8Array
    devices: Int32Array


class MixTypes(NamedTuple):
    """The request types of a mix: ``amounts`` (10, T) with a tiny number for 0 where it is a divisor, counted
    ``devices`` (R, T), ``separate`` (R, T) 1 where these must be on separate GPUs, GPU models ``allowed``
    (M, T) 0 or 1, and ``asked``, the indices of the resources that any type requests."""

    amounts: Float32Array2D
    devices: Float32Array2D
    separate: Float32Array2D
    allowed: Float32Array2D
    asked: Int32Array


class SlotCounts(NamedTuple):
    """The number of further requests of each type that the nodes can accept: ``slots`` (N, T), and their sum
    ``totals`` (T,); ``units`` (N, T) shares that the GPUs can hold, and the generation ``counted`` (N,) of
    the node."""

    counted: Int64Array
    units: Float32Array2D
    slots: Float32Array2D
    totals: Float64Array


class ValueTables(NamedTuple):
    """Values in GPUs: ``prices`` (T,) per slot, and ``fill`` (K, B + 1, B + 1) of the free compute and memory
    of a GPU with at least ``memory_mib`` (K,), ascending. Then the weights of two terms of the cost, and the
    CPU milli per free GPU below which it is stranded."""

    prices: Float32Array
    fill: Float32Array3D
    memory_mib: Float32Array
    fill_weight: Float64
    stranding_weight: Float64
    cpu_per_gpu: Float64


class Scratch(NamedTuple):
    """Working memory of a kernel: three arrays (T,), ``gpu`` (GPU_ROWS, G) and ``devices`` (R,)."""

    limits: Float32Array
    needs: Float32Array
    lost: Float32Array
    gpu: Float32Array2D
    devices: Int32Array


class CachedCost(NamedTuple):
    """Costs of one request on each node: ``cost`` (N,), its GPUs as bit masks ``gpus`` (N,), the parts of the
    cost ``terms`` (4, N), and the generation ``seen`` (N,) of the node. ``device`` (N,) is the part of the
    cost that depends only on the kind of node."""

    seen: Int64Array
    cost: Float32Array
    gpus: Int64Array
    terms: Float32Array2D
    device: Float32Array


def nodes_of(fleet: Fleet) -> Nodes:
    """The arrays of a fleet, valid until its layout changes."""
    return checked(Nodes(*(getattr(fleet.arrays, name) for name in Nodes._fields)))


def scratch_for(fleet: Fleet, types: int) -> Scratch:
    """Working memory for kernels over this fleet and this many types."""
    limits, needs, lost = np.zeros((3, types), np.float32)
    gpu = np.zeros((GPU_ROWS, len(fleet.arrays.compute)), np.float32)
    devices = np.zeros(len(fleet.arrays.free_devices), np.int32)
    return checked(Scratch(limits, needs, lost, gpu, devices))


def request_args(fleet: Fleet, request: Request) -> RequestArgs:
    """A request resolved against the models and resources of this fleet."""
    devices, known = _devices_of(fleet, request)
    allowed = fleet.names.allowed(request) if known else np.zeros(len(fleet.names.kinds), np.uint8)
    exact = np.array([request.cpu_milli, request.memory_bytes], np.int64)
    return checked(RequestArgs(exact, _amounts_of(fleet, [request])[:, 0].copy(), allowed, devices))


def mix_types(fleet: Fleet, requests: Sequence[Request], width: int = 0) -> MixTypes:
    """Request types resolved against the models, resources and sharing resources of a fleet, padded to
    ``width`` with types that no model allows."""
    from packing.fleet.feasibility import separation  # has kernels, and others wait for those of the cost

    amounts = _amounts_of(fleet, requests)
    allowed = np.zeros((len(fleet.names.kinds), len(requests)), np.float32)
    devices = np.zeros((len(fleet.arrays.free_devices), len(requests)), np.float32)
    for t, request in enumerate(requests):
        devices[:, t], known = _devices_of(fleet, request)
        allowed[:, t] = fleet.names.allowed(request) if known else 0
    divisors = [CPU, MEMORY, COMPUTE]
    amounts[divisors] = np.maximum(amounts[divisors], _TINY)
    amounts[COUNT] = np.maximum(amounts[COUNT], 1)
    parts = np.array([r.shares is not None and r.shares.compute_milli < WHOLE for r in requests], np.bool_)
    amounts[PEERS, parts | (amounts[PEERS] > fleet.arrays.max_island.max(initial=0))] = 0
    asked = np.flatnonzero(devices.any(axis=1)).astype(np.int32)
    required = np.array([separation(fleet, request) == "require" for request in requests], np.bool_)
    separate = ((devices > 1) & required).astype(np.float32)
    more = [(0, 0), (0, max(0, width - len(requests)))]
    amounts, devices = (np.pad(part, more, constant_values=1) for part in (amounts, devices))
    return checked(MixTypes(amounts, devices, np.pad(separate, more), np.pad(allowed, more), asked))


def _devices_of(fleet: Fleet, request: Request) -> tuple[npt.NDArray[np.int32], bool]:
    """Counted devices of each resource (R,), and whether the fleet has all of them."""
    devices = np.zeros(len(fleet.arrays.free_devices), np.int32)
    for name, count in request.devices:
        if name not in fleet.names.resources:
            return devices, False
        resource = fleet.names.resources[name]
        devices[resource] = min(int(devices[resource]) + count, MOST_DEVICES)
    return devices, True


def _amounts_of(fleet: Fleet, requests: Sequence[Request]) -> Floats:
    amounts = np.array([_amounts(fleet, request) for request in requests], np.float64).reshape(-1, AMOUNTS)
    return np.ascontiguousarray(amounts.clip(max=_MANY).astype(np.float32).T)


def _amounts(fleet: Fleet, request: Request) -> list[float]:
    part = request.shares
    share = (part.count, part.compute_milli, part.memory_mib, part.memory_milli) if part else (0, 0, 0, 0)
    sharing = fleet.names.sharing_resources.get(part.resource, -1) if part else 0
    max_per_gpu = 0 if part is None else 1 if part.count > 1 else _MANY
    island = request.gpus if request.island else 0
    peers = request.gpus if request.gpus > 1 and not request.scattered else 0
    return [request.cpu_milli, request.memory_mib, *share, island, sharing, max_per_gpu, peers]
