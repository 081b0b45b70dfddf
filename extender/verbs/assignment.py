"""Assigns shared GPUs of a node to a pod, in annotations that the node's device plugin reads.

``filter`` checks whether a pod's GPUs can be assigned before ``bind`` assigns them, so that no pod is sent to
a node where its binding would always be refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from extender.cluster.claim_check import ReconciledClaims, reconcile_claims
from extender.cluster.state import Rows, State
from extender.dialects.dialect import Chosen
from extender.dialects.pod_request import claims_of, writers_on
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from packing.fleet.fleet import Fleet
from packing.fleet.placement import freest
from packing.model.node_spec import resolve_on
from packing.model.reasons import Reason
from packing.model.request import Request


def annotations_for(
    fleet: Fleet, row: int, pod: Pod, request: Request, gpus: tuple[int, ...]
) -> tuple[dict[str, str], ReconciledClaims]:
    """The annotations that assign these GPUs of a shared-GPU node to a pod, and the result of parsing them.

    Raises RequestError if they would be parsed differently, or no component can assign the GPUs.
    """
    spec = fleet.specs[row]
    assert spec is not None  # the pod fits there
    shares = resolve_on(spec, request).shares
    writers = (d.assignment for d in writers_on(spec.sharing_resource) if d.assigns(pod, spec))
    if shares is None or (assignment_of := next(writers, None)) is None:
        raise RequestError(
            f"Stowage cannot determine each pod's GPU on a node that is shared by {spec.sharing_resource}"
        )
    taken = {gpu: fleet.usage[row].slices(gpu) for gpu in gpus}
    assignment = assignment_of(Chosen(pod, spec, shares, gpus, time.time(), taken))
    bound = replace(pod, node_name=spec.name, annotations={**pod.annotations, **assignment})
    read_back = reconcile_claims(spec, request, claims_of(bound))
    if read_back.problem:
        raise RequestError(f"the pod's own annotations prevent the assignment: {read_back.problem}")
    return assignment, read_back


def refuse_unassignable(
    state: State, fleet: Fleet, pod: Pod, request: Request, rows: Rows, codes: npt.NDArray[np.int8]
) -> npt.NDArray[np.int8]:
    """``codes``, the reason codes of these rows (len(rows),), with ``NO_ASSIGNER`` where the pod fits and
    would use shared GPUs, but no component could assign them.

    One node of each kind (sharing system, GPU model, one or several GPUs) represents all of its kind.
    """
    if state.assigns_all or len(fleet.names.sharing_resources) == 1:  # no node shares its GPUs
        return codes
    fits = np.flatnonzero((codes == Reason.FITS) & (rows >= 0))
    fits = fits[_takes_shared_gpus(fleet, request)[rows[fits]]]
    if not fits.size:
        return codes
    codes = codes.copy()
    kinds = fleet.arrays.sharing[rows[fits]].astype(np.int64) << 32 | fleet.arrays.model[rows[fits]]
    kinds |= (fleet.arrays.memory_capacity[1:2, rows[fits]] > 0).any(axis=0).astype(np.int64) << 48
    for kind in np.unique(kinds):
        alike = fits[kinds == kind]
        if assignment_problem(state, fleet, pod, request, int(rows[alike[0]])):
            codes[alike] = Reason.NO_ASSIGNER
    return codes


def renaming_nodes(state: State, pod: Pod, nodes: Iterable[str]) -> set[str]:
    """Nodes that share their GPUs as a resource that Stowage does not read and the pod requests."""
    names = {name for container in pod.spec.all_containers for name, _ in container.requests if "/" in name}
    if not names:
        return set()
    return {node for node in nodes if state.nodes.counted_as.get(node) in names}


def _takes_shared_gpus(fleet: Fleet, request: Request) -> npt.NDArray[np.bool_]:
    """(N,) whether the request takes GPUs, or fractions of them, that are placed device by device."""
    takes = np.zeros(fleet.arrays.capacity, bool)
    if request.shares:
        takes |= fleet.arrays.sharing == fleet.names.sharing_resources.get(request.shares.resource, -1)
        return takes
    for name, _ in request.devices:
        if name in fleet.names.resources:
            takes |= fleet.arrays.divisible_pool[fleet.names.resources[name]] > 0
    return takes


def assignment_problem(state: State, fleet: Fleet, pod: Pod, request: Request, row: int) -> str:
    """Why no component can assign GPUs of this node, where the pod fits, to the pod; "" if one can."""
    spec = fleet.specs[row]
    assert spec is not None
    if not state.binds:
        # Other systems may have their own extender or binder.
        needs_bind = any(not dialect.giving for dialect in writers_on(spec.sharing_resource))
        return "only bind can" if needs_bind else ""
    try:
        annotations_for(fleet, row, pod, request, freest(fleet, request, row))
    except RequestError as error:
        return str(error)
    return ""
