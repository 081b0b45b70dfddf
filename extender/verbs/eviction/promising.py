"""The nodes on which evictions may make a pod fit, found without examining individual pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.cluster.state import Rows, State
from extender.k8s.node_filter import Rule
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.verbs.evaluate import dra_resources, without_resources
from extender.verbs.gang_room import refuse_outside
from extender.verbs.reason_codes import codes_for, may_stack, never_aligned
from packing.fleet.feasibility import (
    eviction_may_help,
    fits_when_empty,
    idle_gpus,
    largest_device,
    separation,
)
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import Request

MOST_NODES = 100
"""Maximum nodes searched for one pod: kube-scheduler's number of candidates in a cluster of up to 1,000 nodes
(``minCandidateNodesAbsolute``; with more nodes, 10 % of them)."""
MOST_NODES_WITH_CLAIMS = 8
"""The same if devices are allocated to claims: each trial there is a run of the allocator."""


@dataclass(frozen=True, slots=True)
class PromisingNode:
    """A node, the forms of the request that its counts and shares may satisfy, and whether the rest are
    devices of claims."""

    name: str
    forms: tuple[Request, ...]
    by_claims: bool


def promising_nodes(
    state: State,
    pod: Pod,
    request: Request,
    nodes: Sequence[str],
    required: Mapping[str, Collection[str]],
) -> list[PromisingNode]:
    """The known nodes that pass kube-scheduler's own filters, where the pod fits only on the empty node; at
    most ``MOST_NODES``, those with the least shortfall. On nodes with ``required`` victims it may fit."""
    rejection = state.node_filter(pod).rejection
    known = [
        name
        for name in dict.fromkeys(nodes)
        if name in state.fleet.rows
        and (node := state.nodes.get(name))
        and rejection(node) in (None, Rule.CLAIM_IN_USE)  # then its user is a ``required`` victim
    ]
    dra = dra_resources(state, pod, request, known) or [()] * len(known)
    by_claims = [
        PromisingNode(name, (without_resources(request, resources),), by_claims=True)
        for name, resources in zip(known, dra, strict=True)
        if resources or pod.spec.claims
    ]
    counted = [name for name, resources in zip(known, dra, strict=True) if not (resources or pod.spec.claims)]
    found = _worth_searching(state, pod, request, counted, required) if counted else []
    return found + by_claims[:MOST_NODES_WITH_CLAIMS]


def _worth_searching(
    state: State,
    pod: Pod,
    request: Request,
    names: Sequence[str],
    required: Collection[str],
) -> list[PromisingNode]:
    """The nodes where evictions may help, those with the least shortfall first."""
    rows = state.rows(NodeNames.of(names))
    with state.fleet_view_for(pod) as fleet, fleet.plugins_idle(rows):
        codes = codes_for(state, fleet, pod, request, rows)
        never = never_aligned(state, fleet, pod, rows, codes)
        lacks = shortfall(fleet, rows, request)
        possible = {request: fits_when_empty(fleet, request)[rows]}
        if stacked := request.stacked:
            possible[stacked] = fits_when_empty(fleet, stacked)[rows] & may_stack(fleet, rows)
    codes = refuse_outside(state, pod, request, rows, codes)
    has_required = np.array([name in required for name in names], np.bool_)
    may_help = (eviction_may_help(codes) & ~never) | (has_required & (codes == Reason.FITS))
    worth = np.flatnonzero(np.logical_or.reduce([*possible.values()]) & may_help)
    nearest = worth[np.argsort(lacks[worth], kind="stable")][:MOST_NODES].tolist()
    forms = {n: tuple(form for form, on_rows in possible.items() if on_rows[n]) for n in nearest}
    return [PromisingNode(names[n], forms[n], by_claims=False) for n in nearest]


def shortfall(fleet: Fleet, rows: Rows, request: Request) -> npt.NDArray[np.float64]:
    """(len(rows),) shortfall of each row: the sum of the missing fractions (0 to 1) of the requested
    amounts."""
    missing = np.zeros(rows.size, np.float64)
    amounts = (fleet.arrays.free_cpu, request.cpu_milli), (fleet.arrays.free_memory, request.memory_bytes)
    for free, asked in amounts:
        missing += np.maximum(asked - free[rows], 0) / max(asked, 1)
    for name, count in request.devices:
        resource = fleet.names.resources.get(name)
        free_devices = np.zeros(rows.size, np.int32)
        if resource is not None and count > 1 and separation(fleet, request) == "require":
            free_devices = np.maximum(idle_gpus(fleet.arrays, resource), 0)[rows]
        elif resource is not None:
            free_devices = fleet.arrays.free_devices[resource][rows]
        missing += np.maximum(count - free_devices, 0) / count
    if (part := request.shares) and part.compute_milli:
        largest = (fleet.arrays.compute * fleet.arrays.divisible)[:, rows].max(axis=0)
        missing += np.maximum(part.compute_milli - largest, 0) / part.compute_milli
    if request.device_mib:
        missing += np.maximum(1 - largest_device(fleet, request)[rows] / request.device_mib, 0)
    return missing
