"""preempt: keep kube-scheduler's victims where they really make the pod fit, drop the node where they do not.

kube-scheduler's own dry run counts devices but does not ask extenders, so a node that it proposes may still
not take the pod. It reads ``Pods[0]`` as the victim of highest priority, and the whole reply fails on a UID
that is not on the node or a node without victims.
"""

from __future__ import annotations

from extender.dialects import RequestError, request_of
from extender.objects import Pod
from extender.state import State
from extender.verbs.verdict import as_devices, only_devices, without
from extender.wire import Candidate, PreemptArgs, PreemptResult
from packing.reasons import Reason
from packing.request import Request


def preempt(state: State, args: PreemptArgs) -> PreemptResult:
    """The candidates whose victims are known and whose eviction makes the pod fit."""
    try:
        request = request_of(args.pod)
    except RequestError:
        return PreemptResult()
    kept = {}
    for node, candidate in args.candidates.items():
        victims = _victims(state, node, candidate)
        if victims and _fits_without(state, args.pod, request, node, victims):
            kept[node] = Candidate([pod.uid for pod in victims], candidate.pdb_violations)
    return PreemptResult(kept)


def _victims(state: State, node: str, candidate: Candidate) -> list[Pod]:
    """The victims, highest priority first; none at all where one is not known to run on the node."""
    pods = [state.pod_by_uid(uid) for uid in dict.fromkeys(candidate.victims)]  # each is evicted once
    known = [pod for pod in pods if pod is not None and pod.node_name == node]
    return sorted(known, key=lambda pod: -pod.priority) if len(known) == len(pods) else []


def _fits_without(state: State, pod: Pod, request: Request, node: str, victims: list[Pod]) -> bool:
    row = state.fleet.rows.get(node)
    if row is None:
        return False
    # Devices for claims are for kube-scheduler's own dry run to find.
    given = as_devices(state, pod, request, node)
    if only_devices(pod, request, given):
        return True
    held = [taken for victim in victims if (taken := state.ledger.taken(victim.key)) is not None]
    with state.fleet.without(held), state.as_for(pod) as fleet:
        return bool(fleet.reasons(without(request, given))[row] == Reason.FITS)
