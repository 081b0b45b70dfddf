"""Which single change makes room for a gang that does not fit: to uncordon a node, or to move a pod."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import replace
from heapq import nsmallest

import numpy as np

from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Node, Pod
from extender.protocol.node_names import NodeNames
from extender.replay.cluster_engine import as_new
from extender.replay.cluster_pods import PermittedRows, why_it_stays
from extender.untrusted.limits import KEY, shorten
from extender.verbs.evaluate import evaluate
from extender.verbs.gang_fit import Supposed, gang_would_fit
from packing.fleet.downgrade import device_on, weaker_rows
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.reasons import Reason
from packing.model.request import Request

_CORDONED, _MOVED = 16, 24
"""How many cordoned nodes, and pods, are tried."""


def way_for_gang(state: State, pod: Pod, request: Request, now: float) -> str:
    """What to do so that all members of the pod's gang fit that must run together, with the command; "" if no
    single change is known to be enough, and for a pod without such a gang. ``now`` in Unix seconds."""
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang is None or gang.to_place < 2 or state.gangs.running(gang.key):
        return ""
    for node in _cordoned(state, pod):
        nodes = ChainMap({node.name: node}, dict(state.nodes))
        if gang_would_fit(state, pod, request, Supposed(nodes)):
            return f"uncordon a node, and the whole gang fits: kubectl uncordon {shorten(node.name, KEY)}"
    for other, held in _holders(state, request):
        if found := _target(state, other, now):
            target, taken = found
            if gang_would_fit(state, pod, request, Supposed(state.nodes, (held,), (taken,))):
                home, name = shorten(other.node_name, KEY), shorten(other.name, KEY)
                return (
                    f"move {shorten(other.key, KEY)} from {home} to {shorten(target, KEY)}, and the whole "
                    f"gang fits: kubectl cordon {home}, kubectl delete pod {name} "
                    f"-n {shorten(other.namespace, KEY)}, and kubectl uncordon {home} once it runs again"
                )
    return ""


def _cordoned(state: State, pod: Pod) -> Iterator[Node]:
    """Cordoned nodes as they would be without that, where the pod's rules and nothing else closes them."""
    accepts, tried = NodeFilter(pod), 0
    for name in sorted(state.nodes.closed):
        node = state.nodes[name]
        if node.unschedulable and tried < _CORDONED:
            taints = tuple(one for one in node.taints if one.key != "node.kubernetes.io/unschedulable")
            node = replace(node, unschedulable=False, taints=taints)
            if not accepts.rejection(node):
                tried += 1
                yield node


def _holders(state: State, request: Request) -> list[tuple[Pod, Allocation]]:
    """The smallest pods with GPUs on nodes that have what the request asks for."""
    usable = gpu_sizes(state.fleet, request) > 0
    bound = (pod for pod in state.pods.values() if pod.node_name and not pod.deleting)
    held = ((pod, one) for pod in bound if (one := state.allocations.allocation_of(pod.key)))
    found = ((pod, one) for pod, one in held if usable[one.row] and (one.devices or one.shares))
    return nsmallest(_MOVED, found, key=lambda two: (_size(two[1]), two[0].key))


def _size(held: Allocation) -> int:
    return sum(count for _, count in held.devices) * 1000 + sum(share[1] for share in held.shares)


def _target(state: State, other: Pod, now: float) -> tuple[str, Allocation] | None:
    """Where a running pod fits now, with no weaker device, and what it would take there; None if it cannot
    move, or where that is not known."""
    if other.has_other_constraints or why_it_stays(other, now, must_be_created_again=True):
        return None
    if state.budgets.violations([other])[0]:
        return None
    try:
        request = request_of(other)
    except RequestError:
        return None
    fleet, home = state.fleet, state.fleet.rows[other.node_name]
    allowed = PermittedRows(state).rows_that_accept(other)
    if (has := device_on(fleet, home, request)) is not None:
        allowed = allowed & ~weaker_rows(fleet, request, has)
    names = [name for name, row in fleet.rows.items() if allowed[row] and row != home]
    evaluation = evaluate(state, as_new(other), request, NodeNames.of(names))
    fits = np.flatnonzero(evaluation.codes == Reason.FITS)
    if not fits.size or evaluation.forecasts:
        return None
    best = int(fits[np.argmin(evaluation.keys[fits])])
    row = int(evaluation.rows[best])
    if any(lacking_on(state, state.nodes[names[best]], asked_by(other))):
        return None
    return names[best], allocation_of(fleet, row, request, freest_gpus(fleet, row, request))
