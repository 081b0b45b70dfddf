"""What makes room for a pod or a gang that does not fit: to uncordon a node, a pod that ends, or some that
move elsewhere."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from extender.cluster.gang_placement import WaitingMembers, place_together
from extender.cluster.state import State
from extender.explain.candidates import uncordoned
from extender.k8s.objects import Node, Pod
from extender.plan.room_by_moves import (
    asked_together,
    mode_for,
    room_by_moves,
    rule_of,
    starting_together,
    would_make_room,
)
from extender.replay.cluster_pods import PermittedRows
from extender.settings import Mode, Settings
from extender.untrusted.limits import GANG_PLACED
from extender.verbs.evaluate import codes_for
from extender.verbs.eviction.promising import promising_nodes
from extender.verbs.gang_fit import Supposed, gang_would_fit, wants_dra
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.plan.move_rule import MoveRule

_CORDONED, _TRIED = 16, 24
"""How many cordoned nodes are tried, and pods on others."""
_WHO = {
    "on": "wait: the evictor moves others once it has waited for long enough: ",
    "recommend": "let the evictor move others (evictor: on, consolidation: on): ",
}
_EMPTIED = 2000
"""Pods that are taken away to see whether a gang would fit without them."""


def room_by_others(state: State, pod: Pod, settings: Settings | None, now: float) -> str:
    """Who could move elsewhere so that the pod fits, or its whole gang, and who does it; "" if no few moves
    are known to be enough. ``settings`` of the evictor, None if they are not known; ``now`` in Unix seconds.
    """
    permitted, pods = PermittedRows(state), starting_together(state, pod)
    mode = _mode(state, pods, settings) if settings else "off"

    def nodes_of(one: Pod) -> list[str]:
        rows = permitted.rows_that_accept(one)
        return [name for name, row in state.fleet.rows.items() if rows[row]]

    usual = rule_of(settings) if settings else MoveRule()
    for rule in ((usual, None) if mode != "off" else (None,)) if pods else ():
        room = room_by_moves(state, pods, nodes_of, now, most=usual.moves, rule=rule, questions=_TRIED)
        if room:
            return f"{_WHO[mode] if rule else ''}{would_make_room(room)}"
    return ""


def fit_at_once(state: State, pod: Pod, request: Request, count: int) -> int:
    """How many of ``count`` such pods fit now by GPUs, CPU and memory, 0 if that is not known."""
    one = WaitingMembers(pod, request)
    least, most = 0, 0 if wants_dra(state, one) else min(count, GANG_PLACED)
    with state.fleet_view_for(pod) as fleet:
        while least < most:
            half = (least + most + 1) // 2
            members = [replace(one, count=half)]
            fits = place_together(fleet, state.policy, state.nodes, members) is not None
            least, most = (half, most) if fits else (least, half - 1)
    return least


def _mode(state: State, pods: Sequence[Pod], settings: Settings) -> Mode:
    """Whether the evictor moves others for pods that start together."""
    requests = asked_together(state, pods)
    serves = bool(requests) and sum(one.gpus for one in requests) >= settings.consolidation_gpus
    return mode_for(state, pods[0], settings) if serves else "off"


def whose_end(state: State, pod: Pod, request: Request, names: Sequence[str]) -> Pod | None:
    """The first pod that is found on these nodes whose place is enough for the pod."""
    for other, held in islice(_holders_on(state, pod, request, names), _TRIED):
        with state.fleet_view_for(pod) as fleet, fleet.without([held]):
            code = int(codes_for(state, fleet, pod, request, np.array([held.row]))[0])
        if code == Reason.FITS:
            return other
    return None


def node_to_uncordon(state: State, pod: Pod, request: Request) -> str:
    """A cordoned node with which all members of the pod's gang fit that must run together; "" if no single
    one is known to be enough, and for a pod without such a gang."""
    for node in _cordoned(state, pod):
        if gang_would_fit(state, pod, request, Supposed(ChainMap({node.name: node}, dict(state.nodes)))):
            return node.name
    return ""


def gang_fits_when_empty(state: State, pod: Pod, request: Request) -> bool:
    """Whether the pod's gang would fit if no other pod had a GPU; True where too many have one to try."""
    bound = (other for other in state.pods.values() if other.node_name)
    held = (one for other in bound for one in state.pods.allocations_of(other) if one.devices or one.shares)
    left = tuple(islice(held, _EMPTIED + 1))
    return len(left) > _EMPTIED or gang_would_fit(state, pod, request, Supposed(state.nodes, left))


def _cordoned(state: State, pod: Pod) -> Iterator[Node]:
    """Cordoned nodes as they would be without that, where the pod's rules and nothing else closes them."""
    accepts, tried = state.node_filter(pod), 0
    for name in sorted(state.nodes.closed):
        node = state.nodes[name]
        if node.unschedulable and tried < _CORDONED:
            node = uncordoned(node)
            if not accepts.rejection(node):
                tried += 1
                yield node


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
