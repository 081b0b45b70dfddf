"""Fragmentation of a fleet: GPUs that are free and whole, and free resources that are stranded.

Only nodes *on offer* count: those that accept pods now or, with a busy device plugin, in a moment. A GPU that
accepts no pods (unhealthy, cordoned) counts nowhere, and one that is allocated only as replicas or MIG
instances is never a whole GPU. Stranded are:

- *compute*: the free compute of shared GPUs that have no memory left: less than ``GONE`` of it, or no room
  for one more share. *Memory* likewise, where no compute is left.
- *by CPU*: max(R - C / c, 0), with R the node's free GPU (compute), C its free CPU, and c the CPU that pods
  request per GPU (``Beside``), at most the node's own CPU per GPU minus ``_FOR_OTHERS``: an idle node has
  enough for its GPUs. *By host memory* likewise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import ALMOST_WHOLE, WHOLE_GPU, Doubles, Floats, NodeArrays
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import WHOLE

Bools = npt.NDArray[np.bool_]
_Figures = dict[str, npt.NDArray[Any]]
GONE = 50
"""Thousandths of a GPU's compute or memory. Less than that, or than the fleet's smallest share, counts as
nothing left."""

_FOR_OTHERS = 0.1
"""The fraction of a node's CPU and memory that pods without GPUs, such as those of DaemonSets, may use
without causing a shortage for GPUs."""


@dataclass(frozen=True, slots=True)
class Beside:
    """CPU in milli and host memory in MiB that pods request per GPU; 0 where unknown."""

    cpu_milli: float = 0.0
    memory_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """GPUs and nodes on offer, of one model or of all.

    ``free`` and ``stranded_compute`` are compute in GPUs; ``stranded_by_cpu`` and ``stranded_by_host_memory``
    are free GPUs. ``whole`` GPUs are entirely free, as are all GPUs of ``whole_nodes``. The largest free
    amounts on one node are ``largest_request`` whole GPUs, and ``largest_island`` that are guaranteed to be
    NVLink peers (1 where none are); ``largest_node`` is the most whole GPUs of an empty node.
    """

    nodes: int
    gpus: int
    free: float
    whole: int
    whole_nodes: int
    largest_request: int
    largest_island: int
    largest_node: int
    stranded_compute: float
    stranded_memory_mib: int
    stranded_by_cpu: float
    stranded_by_host_memory: float


NOTHING = Fragmentation(0, 0, 0.0, 0, 0, 0, 0, 0, 0.0, 0, 0.0, 0.0)


def on_offer(fleet: Fleet, closed: Collection[int] = ()) -> Bools:
    """(N,) where nodes accept pods, now or in a moment; ``closed`` rows do not, for reasons outside the fleet
    (cordons)."""
    arrays = fleet.arrays
    offered: Bools = (arrays.blocked == Reason.FITS) | (arrays.blocked == Reason.PLUGIN_BUSY)
    offered &= arrays.overcommitted == 0
    offered[list(closed)] = False
    return offered


def closed_reason(arrays: NodeArrays, row: int) -> Reason:
    """Reason a node accepts no pods at present, ``FITS`` if it accepts them."""
    return Reason.OVERCOMMITTED if arrays.overcommitted[row] else Reason(int(arrays.blocked[row]))


def whole_gpus(arrays: NodeArrays) -> Bools:
    """(G, N) unused GPUs that can be allocated whole, also on closed nodes."""
    whole: Bools = (arrays.offered == WHOLE_GPU) & (arrays.compute == arrays.compute_capacity)
    whole &= arrays.memory == arrays.memory_capacity
    return whole


def whole_nodes(arrays: NodeArrays, whole: Bools) -> Bools:
    """(N,) nodes with GPUs, all of which are among the ``whole`` ones (G, N)."""
    gpus = (arrays.compute_capacity > 0).sum(axis=0)
    found: Bools = (gpus > 0) & (whole.sum(axis=0) == gpus)
    return found


def idle_nodes(arrays: NodeArrays) -> Bools:
    """(N,) nodes with GPUs, all of them unused, however they are allocated."""
    has = arrays.compute_capacity > 0
    idle = (arrays.compute == arrays.compute_capacity) & (arrays.memory == arrays.memory_capacity)
    found: Bools = (idle | ~has).all(axis=0) & has.any(axis=0)
    return found


def free_compute(arrays: NodeArrays, by_memory: Sequence[int]) -> Floats:
    """(G, N) compute left of each GPU in milli, in proportion to the free memory on the rows ``by_memory``,
    whose pods request memory only."""
    left, rows = np.maximum(arrays.compute, 0), list(by_memory)
    share = arrays.memory[:, rows] / np.maximum(arrays.memory_capacity[:, rows], 1)
    left[:, rows] = np.clip(share, 0, 1) * arrays.compute_capacity[:, rows]
    return left


def fragmentation(
    fleet: Fleet, offered: Bools, beside: Beside, by_memory: Sequence[int] = ()
) -> tuple[Fragmentation, dict[str, Fragmentation]]:
    """The figures of all ``offered`` nodes (N,), and those by GPU model ("" for unknown ones).
    ``by_memory``: as for ``free_compute``."""
    of_kind = [kind.model or "" for kind in fleet.names.kinds]
    unique, place = np.unique(of_kind, return_inverse=True)
    names, model = unique.tolist(), place[fleet.arrays.model]  # of each node (N,) the index of its name
    sums, largest = _by_node(fleet, offered, beside, by_memory)

    def figures(nodes: Bools) -> Fragmentation:
        summed = {name: figure[nodes].sum().item() for name, figure in sums.items()}
        most = {name: int(figure[nodes].max(initial=0)) for name, figure in largest.items()}
        return Fragmentation(**summed, **most)

    by_model = {name: figures(model == i) for i, name in enumerate(names)}
    return figures(np.ones_like(offered)), {
        name: of_model for name, of_model in by_model.items() if of_model.nodes
    }


def _by_node(
    fleet: Fleet, offered: Bools, beside: Beside, by_memory: Sequence[int]
) -> tuple[_Figures, _Figures]:
    """Figures of ``Fragmentation``, (N,) each: those that are summed over nodes, and those of which the
    maximum counts."""
    arrays = fleet.arrays
    in_use = (arrays.offered > 0) & offered  # (G, N)
    compute, memory = free_compute(arrays, by_memory), np.maximum(arrays.memory, 0)
    whole = whole_gpus(arrays) & offered
    gpus, whole_count = in_use.sum(axis=0), whole.sum(axis=0)
    free = np.where(in_use, compute, 0).sum(axis=0, dtype=np.float64) / WHOLE
    parts = (arrays.shareable > 0) & offered
    gone = max(GONE, fleet.minimum_milli) / WHOLE
    full = arrays.divisible == 0
    no_compute = full | (compute < gone * WHOLE)
    no_memory = full | (memory < np.float32(gone) * arrays.memory_capacity)
    lacking = partial(_lacking, free, np.maximum((arrays.compute_capacity > 0).sum(axis=0), 1))
    sums = {
        "nodes": gpus > 0,
        "gpus": gpus,
        "free": free,
        "whole": whole_count,
        "whole_nodes": whole_nodes(arrays, whole),
        "stranded_compute": np.where(parts & no_memory, compute, 0).sum(axis=0, dtype=np.float64) / WHOLE,
        "stranded_memory_mib": np.where(parts & no_compute, memory, 0).sum(axis=0, dtype=np.int64),
        "stranded_by_cpu": lacking(arrays.free_cpu, arrays.total_cpu, beside.cpu_milli),
        "stranded_by_host_memory": lacking(
            arrays.free_memory / (1 << 20), arrays.total_memory / (1 << 20), beside.memory_mib
        ),
    }
    largest = {
        "largest_request": whole_count,
        "largest_island": _largest_islands(arrays, whole, offered),
        "largest_node": ((arrays.offered == WHOLE_GPU) & offered).sum(axis=0),
    }
    return sums, largest


def _lacking(
    free_gpus: Doubles,
    gpus: npt.NDArray[np.int64],
    free: npt.NDArray[Any],
    total: npt.NDArray[Any],
    beside_one: float,
) -> Doubles:
    """(N,) free GPUs for which a node lacks another resource; where the usual request per GPU is unknown,
    only a node with none of the resource lacks it."""
    own = (1 - _FOR_OTHERS) * total / gpus
    lacking: Doubles = np.maximum(
        free_gpus - np.maximum(free, 0) / np.clip(own, 1e-6, max(beside_one, 1e-6)), 0
    )
    return lacking


def _largest_islands(arrays: NodeArrays, whole: Bools, offered: Bools) -> npt.NDArray[np.int64]:
    """(N,) the most whole GPUs that can be allocated to one pod as NVLink peers: of one island where GPUs are
    placed one by one, and as many as are guaranteed to be peers where a device plugin chooses."""
    gpus, nodes = whole.shape
    placed = whole & (arrays.shareable > 0)
    cell = (arrays.island.astype(np.int64) * nodes + np.arange(nodes))[placed]
    by_island = np.bincount(cell, minlength=gpus * nodes).reshape(gpus, nodes)
    largest: npt.NDArray[np.int64] = by_island.max(axis=0, initial=0)
    for pool in np.flatnonzero((arrays.device_gpu > ALMOST_WHOLE).any(axis=1)):
        counted = offered & (arrays.divisible_pool[pool] == 0) & (arrays.device_gpu[pool] > ALMOST_WHOLE)
        largest = np.maximum(largest, np.where(counted, arrays.free_peers[pool], 0))
    return largest
