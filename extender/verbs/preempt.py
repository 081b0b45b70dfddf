"""preempt: the pods to evict on the node where their eviction makes the pod fit at the least cost.

kube-scheduler's own dry run counts devices but does not ask extenders, so a node that it proposes may not
take the pod, or other victims may do. It reads ``Pods[0]`` as the victim of highest priority, and the whole
reply fails on a UID that is not on the node or a node without victims. From 1.38 on it also proposes nodes
where it found no victims, because only an extender refused. docs/preemption.md has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extender.cluster.other_resources import takes_another_pod
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import has_unknown_filters
from extender.k8s.objects import Pod
from extender.protocol.codec import Candidate, PreemptArgs, PreemptResult
from extender.untrusted.limits import LISTED_NAMES
from extender.verbs.evaluate import dra_resources, wants_only_dra
from extender.verbs.eviction.coming_room import room_is_coming
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from extender.verbs.eviction.report import in_one_line
from extender.verbs.gang_fit import gang_may_fit
from packing.model.reasons import Reason
from packing.model.request import Request

NO_EVICTIONS_HELP = "no evictions make the pod fit"
ROOM_IS_COMING = "pods that leave already make room for the pod"


@dataclass(frozen=True, slots=True)
class Preemption(PreemptResult):
    """The reply, and the plans that it was made from, the best first. ``empty``: why it names no victims."""

    plans: tuple[EvictionPlan, ...] = ()
    empty: str = NO_EVICTIONS_HELP


def preempt(state: State, args: PreemptArgs, now: float, *, most: int = 1) -> Preemption:
    """The ``most`` best candidates with their victims. ``now`` in Unix seconds."""
    try:
        request = request_of(args.pod)
    except RequestError:
        return Preemption()
    if _is_gone(state, args.pod):
        return Preemption()
    proposed = {
        node: victims
        for node, candidate in args.candidates.items()
        if (victims := _victims(state, node, candidate)) is not None
    }
    if not request.wants_gpu:
        return Preemption({node: args.candidates[node] for node, victims in proposed.items() if victims})
    if not gang_may_fit(state, args.pod, request):
        return Preemption(empty=Reason.GANG_DOES_NOT_FIT.text)
    by_claims = _by_claims(state, args.pod, request, list(proposed))
    required = {
        node: [pod.uid for pod in required_victims(state, args.pod, node, victims)]
        for node, victims in proposed.items()
    }
    nodes = [node for node in proposed if node not in by_claims]
    plans = plan_evictions(
        state,
        args.pod,
        nodes,
        now,
        required=required,
        proposed={node: {pod.uid for pod in victims} for node, victims in proposed.items()},
    )
    chosen = ([plan for plan in plans if not plan.pdb_violations] or plans)[:most]
    if chosen and chosen[0].to_evict and room_is_coming(state, args.pod, now, proposed):
        return Preemption(empty=ROOM_IS_COMING)  # kube-scheduler tries the pod again when that room is there
    if not chosen:
        return Preemption(
            {node: _ordered(args, node, proposed[node]) for node in by_claims if proposed[node]}
        )
    # A reply needs a victim. Deleting pods that terminate already changes nothing.
    candidates = {
        plan.node: Candidate([pod.uid for pod in plan.to_evict or plan.victims], plan.pdb_violations)
        for plan in chosen
    }
    return Preemption(candidates, tuple(chosen))


def in_words(state: State, answer: Preemption, proposed: int, now: float) -> str:
    """The answer in one line. ``proposed``: how many candidates kube-scheduler sent; those without a plan are
    returned as they were. ``now`` in Unix seconds."""
    unchanged = f"as proposed: {', '.join(list(answer.candidates)[:LISTED_NAMES])}"
    plans = "; ".join(in_one_line(state, plan, now) for plan in answer.plans)
    chosen = plans or (unchanged if answer.candidates else answer.empty)
    return f"{len(answer.candidates)} of {proposed} candidates: {chosen}"


def _is_gone(state: State, pod: Pod) -> bool:
    """Whether the pod is being deleted, as far as the watch has shown: Kueue may have stopped its job since
    kube-scheduler took it up."""
    known = state.pods.by_uid(pod.uid)
    return pod.deleting or (known is not None and known.deleting)


def required_victims(state: State, pod: Pod, node: str, proposed: Sequence[Pod]) -> Sequence[Pod]:
    """The proposed victims if kube-scheduler may have chosen them for what Stowage does not compute: affinity
    between pods, topology spread, host ports, volumes, claims, resources that Stowage does not place
    by, the number of pods on the node. Otherwise none: then only GPUs, CPU and memory decide."""
    return (
        proposed
        if (
            has_unknown_filters(pod)
            or any(one.has_other_constraints for one in proposed)
            or pod.spec.claims
            or not takes_another_pod(state, node)
        )
        else ()
    )


def _by_claims(state: State, pod: Pod, request: Request, nodes: Sequence[str]) -> set[str]:
    """The nodes where the pod asks for nothing but devices of DRA: there kube-scheduler's victims are right,
    because it allocates the devices."""
    dra = dra_resources(state, pod, request, nodes) or [()] * len(nodes)
    return {
        node for node, resources in zip(nodes, dra, strict=True) if wants_only_dra(pod, request, resources)
    }


def _ordered(args: PreemptArgs, node: str, victims: Sequence[Pod]) -> Candidate:
    return Candidate([pod.uid for pod in victims], args.candidates[node].pdb_violations)


def _victims(state: State, node: str, candidate: Candidate) -> list[Pod] | None:
    """The proposed victims, highest priority first; None where one is not known to run on the node."""
    if node not in state.nodes:
        return None
    on_node = {pod.uid: pod for pod in state.pods.on_node(node)}
    victims = dict.fromkeys(candidate.victims)  # each is evicted once
    if not victims.keys() <= on_node.keys():
        return None
    return sorted((on_node[uid] for uid in victims), key=lambda pod: -pod.priority)
