"""Why a pod does not fit on rows of the fleet: a reason code for each.

This is one form of a request on its own; ``evaluate`` adds costs and the pod's gang.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from extender.cluster.state import Rows, State
from extender.dialects.hami import MIG
from extender.k8s.objects import Pod
from extender.queues.queue import is_restartable
from extender.verbs.assignment import refuse_unassignable, renaming_nodes
from packing.fleet.arrays import Flags
from packing.fleet.feasibility import eviction_may_help, reasons_for
from packing.fleet.fleet import Fleet
from packing.model.numa import REFUSING
from packing.model.reasons import Reason
from packing.model.request import Request

Codes = npt.NDArray[np.int8]

NEVER = ~eviction_may_help(np.arange(max(Reason) + 1, dtype=np.int8))
"""(codes,) where neither room nor evictions help."""
NEVER[Reason.FITS] = False


def codes_for(state: State, fleet: Fleet, pod: Pod, request: Request, rows: Rows) -> Codes:
    """(len(rows),) reason codes for these rows of the pod's fleet view. DRA devices are ignored."""
    codes = codes_of_form(state, fleet, pod, request, rows)
    if (stacked := request.stacked) is None:
        return codes
    others = codes_of_form(state, fleet, pod, stacked, rows)
    return np.where(stacked_is_better(fleet, rows, codes, others), others, codes)


def codes_of_form(state: State, fleet: Fleet, pod: Pod, request: Request, rows: Rows) -> Codes:
    """(len(rows),) as ``codes_for``, of this form of the request only."""
    codes = np.append(reasons_for(fleet, request), np.int8(state.unknown_node.value))[rows]  # -1 is the last
    return refuse(state, fleet, pod, request, rows, codes)


def refuse(state: State, fleet: Fleet, pod: Pod, request: Request, rows: Rows, codes: Codes) -> Codes:
    """The codes, with reasons for nodes that fit but must not be used."""
    if not request.wants_gpu:
        return _by_cpu_and_memory(state, fleet, pod, request, rows)
    codes = refuse_unassignable(state, fleet, pod, request, rows, codes)
    if request.whole:
        codes = np.where((rows >= 0) & ~may_stack(fleet, rows), np.int8(Reason.PART_OF_A_GPU), codes)
    if state.numa:
        codes = _refuse_misaligned(state, fleet, pod, rows, codes)
    if fleet.spot_rows and state.spot == "require" and not is_restartable(pod, state.rights.queue_of(pod)):
        # Also full nodes, because evictions do not help there. Row -1 is an unknown node.
        refused = (fleet.arrays.spot[rows] > 0) & (rows >= 0)
        codes = np.where(refused, np.int8(Reason.ON_SPOT), codes)
    if state.large_jobs.table.current:
        codes = _refuse_reserved(state, pod, rows, codes)
    return codes


def _refuse_reserved(state: State, pod: Pod, rows: Rows, codes: Codes) -> Codes:
    """The codes, with ``RESERVED`` on nodes that are reserved for large jobs, where room would be enough."""
    closed = [state.large_jobs.rows(reservation) for reservation in state.large_jobs.closed_to(pod)]
    if not closed:
        return codes
    at = np.flatnonzero(np.logical_or.reduce(closed)[rows])
    at = at[(rows[at] >= 0) & ~NEVER[codes[at]]]
    codes = codes.copy()
    codes[at] = Reason.RESERVED.value
    return codes


def _by_cpu_and_memory(state: State, fleet: Fleet, pod: Pod, request: Request, rows: Rows) -> Codes:
    """The codes of a pod without GPUs: problems of GPUs are ignored, but nodes are refused whose GPUs it may
    request by a name that Stowage does not read."""
    arrays, codes = fleet.arrays, np.zeros(rows.size, np.int8)
    if request.memory_bytes:
        codes[arrays.free_memory[rows] < request.memory_bytes] = Reason.NO_FREE_MEMORY
    if request.cpu_milli:
        codes[arrays.free_cpu[rows] < request.cpu_milli] = Reason.NO_FREE_CPU
    codes[rows < 0] = state.unknown_node
    renamed = [fleet.rows[name] for name in renaming_nodes(state, pod, state.nodes.counted_as)]
    codes[np.isin(rows, renamed)] = Reason.UNREADABLE
    return codes


def _refuse_misaligned(state: State, fleet: Fleet, pod: Pod, rows: Rows, codes: Codes) -> Codes:
    """The reason codes, with ``MISALIGNED`` where the pod fits but kubelet would reject it; also where it
    fits only after evictions, if kubelet would still reject it after all of them."""
    refused = np.zeros(rows.size, np.bool_)
    for which, idle in (codes == Reason.FITS, False), (eviction_may_help(codes), True):
        refused[which] = state.numa.misaligned(fleet, pod, rows[which], REFUSING, idle=idle)
    return np.where(refused, np.int8(Reason.MISALIGNED), codes) if refused.any() else codes


def never_aligned(state: State, fleet: Fleet, pod: Pod, rows: Rows, codes: Codes) -> Flags:
    """(len(rows),) where kubelet would reject the pod even on the empty node, so evictions do not help."""
    found: Flags = codes == Reason.MISALIGNED
    found[found] = state.numa.misaligned(fleet, pod, rows[found], REFUSING, idle=True)
    return found


def stacked_is_better(fleet: Fleet, rows: Rows, codes: Codes, stacked: Codes) -> Flags:
    """(len(rows),) where the pod fits, or can fit after evictions, only if its containers share GPUs, by the
    codes of both forms."""
    fits = (codes != Reason.FITS) & (stacked == Reason.FITS)
    can_fit = (codes != Reason.FITS) & ~eviction_may_help(codes) & eviction_may_help(stacked)
    better: Flags = may_stack(fleet, rows) & (fits | can_fit)
    return better


def may_stack(fleet: Fleet, rows: Rows) -> Flags:
    """(len(rows),) where containers of a pod may share a GPU. MIG instances are never shared."""
    divides: Flags = np.array([kind.mode != MIG for kind in fleet.names.kinds])[fleet.arrays.model[rows]]
    return divides
