"""The nodes on which evictions may make a pod fit, found without looking at single pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from extender.cluster.state import Rows, State
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.verbs.evaluate import codes_for, dra_resources, may_stack, without_resources
from extender.verbs.shortfall import shortfall
from packing.fleet.feasibility import eviction_may_help, fits_when_empty
from packing.model.reasons import Reason
from packing.model.request import Request

MOST_NODES = 100
"""Nodes that are searched for one pod: so many candidates kube-scheduler collects in a cluster of up to 1,000
nodes (``minCandidateNodesAbsolute``, and 10 % of the nodes if they are more)."""
MOST_NODES_WITH_CLAIMS = 8
"""The same where devices are allocated to claims: each try there is a run of the allocator."""


@dataclass(frozen=True, slots=True)
class PromisingNode:
    """A node, the forms of the request that its counts and shares may meet, and whether the rest are devices
    of claims."""

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
    """The known nodes that pass kube-scheduler's own filters, where the pod does not fit now and would on the
    empty node; at most ``MOST_NODES``, those that lack least. A node with ``required`` victims may fit."""
    accepted = NodeFilter(pod).rejection
    known = [
        name
        for name in dict.fromkeys(nodes)
        if name in state.fleet.rows and (node := state.nodes.get(name)) and not accepted(node)
    ]
    names = NodeNames.of(known)
    dra = dra_resources(state, pod, request, names) or [()] * len(known)
    counted: list[int] = []
    by_claims: list[int] = []
    for number, resources in enumerate(dra):
        (by_claims if resources or pod.spec.claims else counted).append(number)
    rows, has_required = state.rows(names)[counted], [known[number] in required for number in counted]
    worth = _worth_searching(state, pod, request, rows, has_required) if counted else {}
    found = [PromisingNode(known[counted[n]], forms, by_claims=False) for n, forms in worth.items()]
    with_claims = [
        PromisingNode(known[n], (without_resources(request, dra[n]),), by_claims=True) for n in by_claims
    ]
    return found + with_claims[:MOST_NODES_WITH_CLAIMS]


def _worth_searching(
    state: State,
    pod: Pod,
    request: Request,
    rows: Rows,
    has_required: Sequence[bool],
) -> dict[int, tuple[Request, ...]]:
    """By the index of the rows where evictions may help, those that lack least first: in which forms."""
    with state.fleet_view_for(pod) as fleet, fleet.plugins_idle(rows):
        codes = codes_for(state, fleet, pod, request, rows)
        lacks = shortfall(fleet, rows, request)
        possible = {request: fits_when_empty(fleet, request)[rows]}
        if stacked := request.stacked:
            possible[stacked] = fits_when_empty(fleet, stacked)[rows] & may_stack(fleet, rows)
    may_help = eviction_may_help(codes) | (np.array(has_required, bool) & (codes == Reason.FITS))
    worth = np.flatnonzero(np.logical_or.reduce([*possible.values()]) & may_help)
    nearest = worth[np.argsort(lacks[worth], kind="stable")][:MOST_NODES].tolist()
    return {n: tuple(form for form, on_rows in possible.items() if on_rows[n]) for n in nearest}
