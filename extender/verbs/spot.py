"""Restartable pods prefer spot nodes, and others avoid them or get none (setting ``spot``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from extender.cluster.state import Rows, State
from extender.k8s.objects import Pod
from extender.queues.queue import is_restartable
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import Request

SPOT_BIAS = 2.0
"""What a node of the other kind costs more, in GPUs for each GPU that the pod takes. A placement costs about
one for each on average (``packing/cost/slots.py``), so a pod goes to the kind that it prefers unless it would
take much scarcer room there. Policies other than ``inventory`` have costs up to 100: there it only breaks
ties."""


def refuse_spot(
    state: State, fleet: Fleet, pod: Pod, rows: Rows, codes: npt.NDArray[np.int8]
) -> npt.NDArray[np.int8]:
    """The reason codes, with ``ON_SPOT`` for all spot nodes if the pod must not get one: also where they are
    full, because no eviction helps there. Row -1 is a node that is not known."""
    if state.spot != "require" or is_restartable(pod, state.rights.queue_of(pod)):
        return codes
    refused = (fleet.arrays.spot[rows] > 0) & (rows >= 0)
    return np.where(refused, np.int8(Reason.ON_SPOT), codes)


def spot_costs(state: State, pod: Pod, request: Request, rows: Rows) -> Floats:
    """What these rows cost more because they are spot nodes, or because they are not: (len(rows),), in GPUs.
    A pod that takes no counted GPU counts as one."""
    if state.spot == "ignore":
        return np.zeros(rows.size, np.float32)
    preferred = is_restartable(pod, state.rights.queue_of(pod))
    sizes = gpu_sizes(state.fleet, request)[rows]
    cost = SPOT_BIAS * np.where(sizes > 0, sizes, np.float32(1))
    return np.where((state.fleet.arrays.spot[rows] > 0) == preferred, 0, cost).astype(np.float32)
