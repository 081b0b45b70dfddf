"""Nodes and questions that several tests of the fleet use."""

from __future__ import annotations

import numpy as np

from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import Request

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
MIB, GIB = 80_000, 1 << 30


def counted_node(name: str = "n", gpus: int = 8, **more) -> NodeSpec:
    pools = (Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB),) if gpus else ()
    return NodeSpec(name, 64_000, 512 * GIB, (Gpu(MIB),) * gpus, pools, **more)


def divisible_node(name: str = "n", gpus: int = 4, **more) -> NodeSpec:
    cards = tuple(Gpu(MIB, divisible=True, uuid=f"{name}-{i}") for i in range(gpus))
    pool = Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB)
    return NodeSpec(name, 64_000, 512 * GIB, cards, (pool,), sharing_resource=GPU, **more)


def fleet_of(*specs: NodeSpec) -> Fleet:
    """Nodes in rows 0, 1, ..."""
    fleet = Fleet()
    for spec in specs:
        fleet.put(spec)
    return fleet


def why(fleet: Fleet, request: Request, node: str = "n") -> Reason:
    return Reason(int(reasons_for(fleet, request)[fleet.rows[node]]))


def arrays_of(fleet: Fleet) -> dict[str, np.ndarray]:
    return {
        name: array.copy()
        for name, array in vars(fleet.arrays).items()
        if isinstance(array, np.ndarray) and name != "generation"
    }
