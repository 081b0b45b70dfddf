"""Nodes that would allocate a pod a weaker device than its present one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from packing.fleet.fleet import Fleet
from packing.fleet.placement import share_mib
from packing.model.node_spec import NodeSpec, resolve_on
from packing.model.request import WHOLE, Request

_ABOUT = 0.98
"""The memory of equal GPUs varies slightly with the ECC mode and the driver."""


class Device(NamedTuple):
    """The device that a node allocates for each device of a request; each figure is the minimum over all its
    kinds of devices: 1 for whole GPUs (0: fractions), the value of the GPU, compute in milli, memory in MiB
    (0 if unknown), and 1 on nodes that are not spot."""

    whole: float
    value: float
    compute_milli: float
    memory_mib: float
    lasting: float

    def is_weaker_than(self, other: Device) -> bool:
        """Whether any figure is lower."""
        return any(mine < _ABOUT * its for mine, its in zip(self, other, strict=True))


def weaker_rows(fleet: Fleet, request: Request, has: Device) -> npt.NDArray[np.bool_]:
    """(N,) where a request would be allocated weaker devices than it ``has``: a fraction (a replica or a MIG
    instance) instead of a whole GPU, a GPU of less value, less memory or compute, or a spot node.

    Nodes without such devices are not weaker; the request does not fit there anyway.
    """
    weaker = np.zeros(fleet.arrays.capacity, bool)
    for row in fleet.rows.values():
        gets = device_on(fleet, row, request)
        weaker[row] = gets is not None and gets.is_weaker_than(has)
    return weaker


def device_on(fleet: Fleet, row: int, request: Request) -> Device | None:
    """The device that a request would be allocated on a node; None if the node has no device for it."""
    spec = fleet.specs[row]
    if spec is None:
        return None
    served = resolve_on(spec, request)
    sizes = [_of_pool(spec, name) for name, _ in served.devices]
    if served.shares and spec.gpus:
        mib = min(share_mib(fleet, row, gpu, served.shares) for gpu in range(len(spec.gpus)))
        sizes.append((float(served.shares.compute_milli >= WHOLE), served.shares.compute_milli, mib))
    known = [size for size in sizes if size]
    if not known:
        return None
    whole, compute, memory = (min(figures) for figures in zip(*known, strict=True))
    return Device(whole, float(fleet.arrays.gpu_value[row]), compute, memory, float(not spec.spot))


def _of_pool(spec: NodeSpec, resource: str) -> tuple[float, float, float] | None:
    """Whether a device is a whole GPU (1 or 0), its compute in milli and its memory in MiB."""
    for pool in spec.pools:
        if pool.resource == resource:
            return float(pool.is_whole), pool.compute_milli, pool.memory_mib
    return None
