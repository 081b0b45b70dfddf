"""Several GPUs of one container are several physical GPUs, where a node can give them.

Where the setting or the pod requires that, the fleet refuses other nodes
(``packing/fleet/separate_gpus.py``).
"""

from __future__ import annotations

import numpy as np

from extender.cluster.state import Rows
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.separate_gpus import missing_gpus, separation
from packing.model.request import Request

MISSING_GPU_COST = 1000.0
"""What it costs to give another part of a GPU instead of a GPU: more than all that a policy weighs."""


def separation_costs(fleet: Fleet, request: Request, rows: Rows) -> Floats:
    """What these rows cost more because they would give a container several parts of one GPU:
    (len(rows),)."""
    if separation(fleet, request) == "ignore":
        return np.zeros(rows.size, np.float32)
    cost: Floats = np.float32(MISSING_GPU_COST) * missing_gpus(fleet, request, rows)
    return cost
