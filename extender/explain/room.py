"""Which single change makes room for a pod or a gang that does not fit: to uncordon a node, a pod
that ends, or one that moves elsewhere."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

import numpy as np

from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.explain.candidates import uncordoned
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Node, Pod
from extender.protocol.node_names import NodeNames
from extender.replay.cluster_engine import as_new
from extender.replay.cluster_pods import PermittedRows, why_it_stays
from extender.untrusted.limits import KEY, shorten
from extender.verbs.evaluate import codes_for, evaluate
from extender.verbs.eviction.promising import promising_nodes
from extender.verbs.gang_fit import Supposed, gang_would_fit
from packing.fleet.downgrade import device_on, weaker_rows
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.reasons import Reason
from packing.model.request import Request

_CORDONED, _MOVED = 16, 24
"""How many cordoned nodes, and pods, are tried."""
_EMPTIED = 2000
"""Pods that are taken away to see whether a gang would fit without them."""


@dataclass(frozen=True, slots=True)
class Leaver:
    """A pod whose place is enough. ``target``: the node where it fits now, "" if it has to end."""

    pod: str
    node: str
    target: str = ""


def leaver(state: State, pod: Pod, request: Request, names: Sequence[str], now: float) -> Leaver | None:
    """The first pod that is found on these nodes whose place is enough for the pod: one that can move before
    one that must end. ``now`` in Unix seconds."""
    first: Leaver | None = None
    for other, held in islice(_holders_on(state, pod, request, names), _MOVED):
        with state.fleet_view_for(pod) as fleet, fleet.without([held]):
            code = int(codes_for(state, fleet, pod, request, np.array([held.row]))[0])
        if code != Reason.FITS:
            continue
        if found := _target(state, other, now):
            return Leaver(other.key, other.node_name, found[0])
        first = first or Leaver(other.key, other.node_name)
    return first


def way_for_gang(state: State, pod: Pod, request: Request, now: float) -> str:
    """What to do so that all members of the pod's gang fit that must run together, with the command; "" if no
    single change is known to be enough, and for a pod without such a gang. ``now`` in Unix seconds."""
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang is None or gang.to_place < 2 or state.gangs.running(gang.key):
        return ""
    known = dict(state.nodes)
    for node in _cordoned(state, pod):
        nodes = ChainMap({node.name: node}, known)
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


def gang_fits_when_empty(state: State, pod: Pod, request: Request) -> bool:
    """Whether the pod's gang would fit if no other pod had a GPU; True where too many have one to try."""
    bound = (other for other in state.pods.values() if other.node_name)
    held = (one for other in bound for one in state.pods.allocations_of(other) if one.devices or one.shares)
    left = tuple(islice(held, _EMPTIED + 1))
    return len(left) > _EMPTIED or gang_would_fit(state, pod, request, Supposed(state.nodes, left))


def _cordoned(state: State, pod: Pod) -> Iterator[Node]:
    """Cordoned nodes as they would be without that, where the pod's rules and nothing else closes them."""
    accepts, tried = NodeFilter(pod), 0
    for name in sorted(state.nodes.closed):
        node = state.nodes[name]
        if node.unschedulable and tried < _CORDONED:
            node = uncordoned(node)
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


def _holders_on(
    state: State, pod: Pod, request: Request, names: Sequence[str]
) -> Iterator[tuple[Pod, Allocation]]:
    """The pods with GPUs of the nodes that lack least, the smallest first on each."""
    for one in promising_nodes(state, pod, request, names, {}):
        others = (
            other for other in state.pods.on_node(one.name) if other.uid != pod.uid and not other.deleting
        )
        held = [(other, taken) for other in others if (taken := state.allocations.allocation_of(other.key))]
        with_gpus = [(other, taken) for other, taken in held if taken.devices or taken.shares]
        yield from sorted(with_gpus, key=lambda two: (_size(two[1]), two[0].key))


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
