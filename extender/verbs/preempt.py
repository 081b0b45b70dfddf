"""preempt: keep kube-scheduler's victims where their eviction makes the pod fit, and drop the other nodes.

kube-scheduler's own dry run counts devices but does not ask extenders, so a node that it proposes may still
not take the pod. It reads ``Pods[0]`` as the victim of highest priority, and the whole reply fails on a UID
that is not on the node or a node without victims. The candidates of a pod without a GPU are returned
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from extender.cluster.state import PossiblyBound, State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.protocol.codec import Candidate, PreemptArgs, PreemptResult
from extender.verbs.evaluate import codes_for, dra_resources_on, wants_only_dra, without_resources
from packing.fleet.fleet import Fleet
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
    found = [_bound_pod(state, node, uid) for uid in dict.fromkeys(candidate.victims)]  # each is evicted once
    known = [pod for pod in found if pod is not None]
    return sorted(known, key=lambda pod: -pod.priority) if len(known) == len(found) else []


def _bound_pod(state: State, node: str, uid: str) -> Pod | None:
    """The pod of this UID if the watch shows it bound to the node, or it is assumed there."""
    pod = state.pods.by_uid(uid)
    if pod is not None and pod.node_name == node:
        return pod
    assumed = state.assumed_pods.on(uid, node)
    return assumed.pod if assumed else None


def _fits_without(
    state: State, pod: Pod, request: Request, node: str, victims: list[Pod], possibly_bound: PossiblyBound
) -> bool:
    row = state.fleet.rows.get(node)
    if row is None:
        return False
    # kube-scheduler's own dry run finds the devices for claims.
    dra = dra_resources_on(state, pod, request, node)
    if wants_only_dra(pod, request, dra):
        return True
    allocations = (allocation for victim in victims for allocation in state.pods.allocations_of(victim))
    evicted = [allocation for allocation in allocations if allocation.row == row]
    with (
        state.fleet.without(evicted),
        state.fleet_view_for(pod, possibly_bound) as fleet,
        _with_idle_plugin(fleet, row),
    ):
        codes = codes_for(state, fleet, pod, without_resources(request, dra), np.array([row]))
        return bool(codes[0] == Reason.FITS)


@contextmanager
def _with_idle_plugin(fleet: Fleet, row: int) -> Iterator[None]:
    """Inside the block, a node is open although its device plugin is busy starting a pod. The plugin is idle
    again before the victims are gone, and the starting pod may be one of them."""
    reason = Reason(int(fleet.arrays.blocked[row]))
    if reason is not Reason.PLUGIN_BUSY:
        yield
        return
    fleet.block(row, Reason.FITS)
    try:
        yield
    finally:
        fleet.block(row, reason)
