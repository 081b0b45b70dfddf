"""preempt: keep kube-scheduler's victims where their eviction makes the pod fit, and drop the other nodes.

kube-scheduler's own dry run counts devices but does not ask extenders, so a node that it proposes may still
not take the pod. It reads ``Pods[0]`` as the victim of highest priority, and the whole reply fails on a UID
that is not on the node or a node without victims. The candidates of a pod without a GPU are returned
unchanged.
"""

from __future__ import annotations

from extender.cluster.state import PossiblyBound, State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.protocol.codec import Candidate, PreemptArgs, PreemptResult
from extender.verbs.evaluate import reason_on
from packing.model.reasons import Reason
from packing.model.request import Request


def preempt(state: State, args: PreemptArgs, possibly_bound: PossiblyBound = ()) -> PreemptResult:
    """The candidates whose victims are known and whose eviction makes the pod fit."""
    try:
        request = request_of(args.pod)
    except RequestError:
        return PreemptResult()
    kept = {}
    for node, candidate in args.candidates.items():
        victims = _victims(state, node, candidate)
        if not victims:
            continue
        if not request.wants_gpu:
            kept[node] = candidate
        elif _fits_without(state, args.pod, request, node, victims, possibly_bound):
            kept[node] = Candidate([pod.uid for pod in victims], candidate.pdb_violations)
    return PreemptResult(kept)


def _victims(state: State, node: str, candidate: Candidate) -> list[Pod]:
    """The victims, highest priority first; empty where one is not known to run on the node."""
    on_node = {pod.uid: pod for pod in state.pods.on_node(node)}
    victims = dict.fromkeys(candidate.victims)  # each is evicted once
    if not victims.keys() <= on_node.keys():
        return []
    return sorted((on_node[uid] for uid in victims), key=lambda pod: -pod.priority)


def _fits_without(
    state: State, pod: Pod, request: Request, node: str, victims: list[Pod], possibly_bound: PossiblyBound
) -> bool:
    """Whether the pod fits on the node without the victims. The device plugin is idle again before they are
    gone, and the pod that it starts may be one of them."""
    row = state.fleet.rows.get(node)
    allocations = (allocation for victim in victims for allocation in state.pods.allocations_of(victim))
    with state.fleet.without([allocation for allocation in allocations if allocation.row == row]):
        return reason_on(state, pod, request, node, possibly_bound, idle=True) is Reason.FITS
