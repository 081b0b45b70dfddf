"""preemptable and reclaimable: which pods of a node may be evicted for a pod.

Volcano proposes pods (preemptable: of the same queue, reclaimable: of other queues), takes those that all
plugins of a tier agree on, and evicts them one after another, those of lowest priority first, until the pod
fits. So the answer is the cheapest plan with these pods: evicting others does not help, or costs more.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.protocol.volcano import Task, Vote
from extender.untrusted.limits import VOLCANO_NODES
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions, rules_for
from extender.verbs.volcano.session import Session
from packing.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class Victims:
    """The vote, the UIDs of the pods that may be evicted, and the plans that say so."""

    vote: Vote
    uids: frozenset[str] = frozenset()
    plans: tuple[EvictionPlan, ...] = ()


def victims(session: Session, pod: Pod, candidates: Sequence[Task]) -> Victims:
    """Of these candidates, those to evict for the pod.

    Where the pod fits without evictions, Volcano wants to evict for a reason that Stowage does not know, such
    as the bounds of a queue: then all whose eviction the rules allow. A pod without GPUs: no opinion.
    """
    try:
        request = request_of(pod)
    except RequestError:
        return Victims(Vote.REJECT)
    if not request.wants_gpu:
        return Victims(Vote.ABSTAIN)
    uids: set[str] = set()
    plans: list[EvictionPlan] = []
    for node, proposed in _by_node(candidates).items():
        known = _running(session, node, proposed)
        if session.reason(pod, request, node, later=True) is Reason.FITS:
            reasons = rules_for(session.state, pod, time.time()).why_not([*known.values()])
            uids |= {uid for uid, why in zip(known, reasons, strict=True) if not why}
        else:
            plans += _plans(session, pod, node, known.keys())
    uids |= {one.uid for plan in plans for one in plan.victims if not session.leaves(one)}
    return Victims(Vote.PERMIT if uids else Vote.REJECT, frozenset(uids), tuple(plans))


def _by_node(candidates: Sequence[Task]) -> dict[str, set[str]]:
    """The UIDs of the candidates by node, for the first nodes."""
    by_node: dict[str, set[str]] = {}
    for one in candidates:
        if one.NodeName in by_node or len(by_node) < VOLCANO_NODES:
            by_node.setdefault(one.NodeName, set()).add(one.UID)
    return by_node


def _running(session: Session, node: str, uids: Collection[str]) -> dict[str, Pod]:
    """The pods of these UIDs that run on the node and do not leave it."""
    if node not in session.state.nodes:
        return {}
    on_node = session.state.pods.on_node(node)
    return {pod.uid: pod for pod in on_node if pod.uid in uids and not session.leaves(pod)}


def _plans(session: Session, pod: Pod, node: str, uids: Collection[str]) -> list[EvictionPlan]:
    """The cheapest plan that evicts none but these pods."""
    if not uids:
        return []
    with session.state.fleet.without(session.leaving_on(node)):
        return plan_evictions(session.state, pod, [node], time.time(), only=uids)
