"""preempt: keep kube-scheduler's victims where they really make the pod fit, drop the node where they do not.

kube-scheduler's own dry run counts devices but does not ask extenders, so a node that it proposes may still
not take the pod. It reads ``Pods[0]`` as the victim of highest priority, and the whole reply fails on a UID
that is not on the node or a node without victims. A pod without a GPU is none of Stowage's business: its
candidates go back as they came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from extender.cluster.state import PossiblyBound, State
from extender.dialects.pod_request import RequestError, request_of
from extender.k8s.objects import Pod
from extender.protocol.codec import Candidate, PreemptArgs, PreemptResult
from extender.verbs.evaluate import as_devices, codes_for, only_devices, without
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
    """The victims, highest priority first; none at all where one is not known to run on the node."""
    found = [_on(state, node, uid) for uid in dict.fromkeys(candidate.victims)]  # each is evicted once
    known = [pod for pod in found if pod is not None]
    return sorted(known, key=lambda pod: -pod.priority) if len(known) == len(found) else []


def _on(state: State, node: str, uid: str) -> Pod | None:
    """The pod of this UID if it is bound to the node, as far as the watch shows or ``bind`` knows."""
    pod = state.pod_by_uid(uid)
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
    # Devices for claims are for kube-scheduler's own dry run to find.
    given = as_devices(state, pod, request, node)
    if only_devices(pod, request, given):
        return True
    held = [taken for victim in victims for taken in state.taken_by(victim) if taken.row == row]
    with (
        state.fleet.without(held),
        state.fleet_view_for(pod, possibly_bound) as fleet,
        _when_plugin_is_idle(fleet, row),
    ):
        codes = codes_for(state, fleet, pod, without(request, given), np.array([row]))
        return bool(codes[0] == Reason.FITS)


@contextmanager
def _when_plugin_is_idle(fleet: Fleet, row: int) -> Iterator[None]:
    """Inside the block, a node whose device plugin is busy with a pod that starts is open: that passes sooner
    than the victims are gone, and the pod that starts may be one of them."""
    reason = Reason(int(fleet.arrays.blocked[row]))
    if reason is not Reason.PLUGIN_BUSY:
        yield
        return
    fleet.block(row, Reason.FITS)
    try:
        yield
    finally:
        fleet.block(row, reason)
