"""preempt: the pods to evict on the node where their eviction makes the pod fit at the least cost.

kube-scheduler's own dry run counts devices but does not call extenders, so a proposed node may not accept the
pod, or other victims may be sufficient. It reads ``Pods[0]`` as the victim of highest priority, and the whole
reply fails on a UID that is not on the node. Since 1.38 it also proposes nodes without victims, because only
an extender refused: nodes missing in the reply are vetoed, nodes returned without victims are left to the
next extender. Earlier versions fail on a node without victims, and propose none. docs/preemption.md has the
rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.cluster.other_resources import takes_another_pod
from extender.cluster.pod_table import PodTable
from extender.cluster.state import State
from extender.k8s.node_filter import has_unknown_filters
from extender.k8s.objects import Pod
from extender.protocol.codec import PreemptArgs, ProposedVictims
from extender.protocol.node_names import NodeNames
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import LISTED_NAMES
from extender.verbs.evaluate import dra_resources, evaluate, reason_on, wants_only_dra
from extender.verbs.eviction.plan import EvictionPlan, in_one_line, plan_evictions
from extender.verbs.eviction.promising import MOST_NODES
from extender.verbs.gang_fit import gang_may_fit
from packing.model.reasons import Reason
from packing.model.request import Request

NO_EVICTIONS_HELP = "no evictions make the pod fit"
ROOM_IS_COMING = "pods that are already terminating make room for the pod"
STILL_THERE = "nothing fits, and the end of the pods to be evicted for it has not been observed yet"
GO_FOR_ANOTHER = "the pods to evict have just been named for another pod"

LONGEST_NAMED = 30.0
"""Seconds within which victims are expected to end: a broken watch looks open for at most 25. If
kube-scheduler could not evict them, it may look for victims again after that."""
JUST_NOW = 2.0
"""Seconds after which victims that were named for another pod, and still exist, may be named again."""
_KEPT = 4096
"""Maximum number of pods whose victims are kept, and of victims."""
LONGEST_EXPECTED = 60.0
"""Maximum seconds that one pod waits for resources of terminating pods: on a node where pods end all the
time, it could wait forever."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """The remaining candidates by node, and the plans behind them, the best first. ``empty``: why there are
    no candidates."""

    candidates: Mapping[str, ProposedVictims] = field(default_factory=dict)
    plans: tuple[EvictionPlan, ...] = ()
    empty: str = NO_EVICTIONS_HELP


def preempt(state: State, args: PreemptArgs, now: float, *, most: int = 1) -> Preemption:
    """The ``most`` best candidates with their victims. ``now`` in Unix seconds."""
    request = state.request_or_none(args.pod)
    known = state.pods.by_uid(args.pod.uid)
    # Kueue may have stopped the pod's job since kube-scheduler began its attempt.
    if request is None or args.pod.deleting or (known is not None and known.deleting):
        return Preemption()
    proposed = {
        node: victims
        for node, candidate in args.candidates.items()
        if (victims := _victims(state, node, candidate)) is not None
    }
    if not request.wants_gpu:
        return Preemption({node: args.candidates[node] for node in proposed})
    if not gang_may_fit(state, args.pod, request):
        return Preemption(empty=Reason.GANG_DOES_NOT_FIT.text)
    by_claims = _by_claims(state, args.pod, request, list(proposed))
    uids, required = dict[str, dict[str, None]](), dict[str, list[str]]()
    for node, victims in proposed.items():
        uids[node] = dict.fromkeys(pod.uid for pod in victims)
        required[node] = [pod.uid for pod in required_victims(state, args.pod, node, victims)]
    nodes = [node for node in proposed if node not in by_claims]
    plans = plan_evictions(state, args.pod, nodes, now, required=required, proposed=uids)
    chosen = ([plan for plan in plans if not plan.pdb_violations] or plans)[:most]
    if chosen and chosen[0].to_evict and _room_is_coming(state, args.pod, now, proposed):
        return Preemption(empty=ROOM_IS_COMING)  # kube-scheduler retries the pod when those pods have ended
    others = dict[str, ProposedVictims]()
    # Without victims, the pod fits as far as Stowage knows: another extender has refused the node.
    if names := NodeNames.of([node for node, victims in proposed.items() if not victims]):
        fits = evaluate(state, args.pod, request, names).codes == Reason.FITS
        others = {node: ProposedVictims([]) for node in names.where(fits)}
    if not chosen:
        as_proposed = {
            node: ProposedVictims([*uids[node]], args.candidates[node].pdb_violations) for node in by_claims
        }
        return Preemption(others | as_proposed)
    # A reply needs a victim. Deleting pods that are already terminating has no effect.
    candidates = {
        plan.node: ProposedVictims([pod.uid for pod in plan.to_evict or plan.victims], plan.pdb_violations)
        for plan in chosen
    }
    return Preemption(others | candidates, tuple(chosen))


def in_words(state: State, answer: Preemption, proposed: int, now: float) -> str:
    """The answer in one line. ``proposed``: number of candidates from kube-scheduler; those without a plan
    are returned unchanged. ``now`` in Unix seconds."""
    unchanged = f"as proposed: {', '.join(list(answer.candidates)[:LISTED_NAMES])}"
    plans = "; ".join(in_one_line(state, plan, now) for plan in answer.plans)
    chosen = plans or (unchanged if answer.candidates else answer.empty)
    return f"{len(answer.candidates)} of {proposed} candidates: {chosen}"


def required_victims(state: State, pod: Pod, node: str, proposed: Sequence[Pod]) -> Sequence[Pod]:
    """The proposed victims if kube-scheduler may have chosen them because of filters that Stowage does not
    implement: affinity between pods, topology spread, host ports, volumes, claims, resources that Stowage
    does not place, the number of pods on the node. Otherwise none: only GPUs, CPU and memory matter."""
    if has_unknown_filters(pod) or pod.spec.claims or not takes_another_pod(state, node):
        return proposed
    return proposed if any(victim.has_other_constraints for victim in proposed) else ()


def _by_claims(state: State, pod: Pod, request: Request, nodes: Sequence[str]) -> set[str]:
    """The nodes where the pod requests only DRA devices: there kube-scheduler's victims are right, because it
    allocates the devices, if the pod permits the node's GPUs."""
    dra = dra_resources(state, pod, request, nodes) or [()] * len(nodes)
    return {
        node
        for node, resources in zip(nodes, dra, strict=True)
        if wants_only_dra(pod, request, resources) and reason_on(state, pod, request, node) is Reason.FITS
    }


def _victims(state: State, node: str, candidate: ProposedVictims) -> list[Pod] | None:
    """The proposed victims, highest priority first; None if one is not known to run on the node."""
    if node not in state.nodes:
        return None
    on_node = {pod.uid: pod for pod in state.pods.on_node(node)}
    victims = dict.fromkeys(candidate.victims)  # each is evicted once
    if not victims.keys() <= on_node.keys():
        return None
    return sorted((on_node[uid] for uid in victims), key=lambda pod: -pod.priority)


def _room_is_coming(state: State, pod: Pod, now: float, besides: Collection[str] = ()) -> bool:
    """Whether the pod fits without evictions where pods have just ended, or on a node after the end of its
    terminating pods, whatever their cause.

    kube-scheduler proposes only nodes with pods of lower priority. Kueue has its own priorities: a pod that
    it evicts may have the same priority as the pod that receives its quota, so kube-scheduler does not
    propose that node, and would evict another pod just before the resources are free. It would also do so
    when Stowage has observed the end of a pod, and kube-scheduler has not yet.

    ``besides``: nodes whose terminating pods are ignored. ``now`` in Unix seconds. False if kube-scheduler
    may reject a node because of filters that Stowage does not implement.
    """
    if has_unknown_filters(pod) or pod.spec.claims:
        return False
    since = state.pods.expects.get(pod.uid, now)
    if now - since < LONGEST_EXPECTED and _has_just_come(state, pod, now):
        state.pods.expects[pod.uid] = since
        return True
    leaving = (state.pods[key] for key in state.pods.leaving)
    nodes = dict.fromkeys(other.node_name for other in leaving if other.is_about_to_go(now))
    chosen = [node for node in nodes if node not in besides][:MOST_NODES]
    evicts_nobody = replace(pod, never_preempts=True)
    return bool(plan_evictions(state, evicts_nobody, chosen, now))


def _has_just_come(state: State, pod: Pod, now: float) -> bool:
    rejection = state.node_filter(pod).rejection
    known = (node for node in state.pods.just_ended(now) if node in state.nodes)
    ended = [node for node in known if not rejection(state.nodes[node])]
    names = NodeNames.of(ended[:MOST_NODES])
    return bool(ended) and bool(evaluate(state, pod, state.request_of(pod), names).certain.any())


class NamedVictims:
    """The victims that preempt has named for each of the last pods, until the watch shows their deletion.

    kube-scheduler evicts them immediately, and retries the pod when they have ended. A delayed or silently
    broken watch still shows them then. The pod would be refused again, kube-scheduler would look for other
    victims, and so on from node to node: in a soak test, victims were named on 27 nodes for one pod in three
    seconds.

    Until then they are not named for another pod either. kube-scheduler 1.36 evicts in the background, and
    briefly holds the pod back when it begins. If the victims end in that moment, because they were evicted
    for the first pod, nothing wakes the second one (observed in tests/e2e/test_contest.py, with a free GPU).
    """

    def __init__(self) -> None:
        self._named: BoundedMap[str, tuple[list[list[str]], float]] = BoundedMap(_KEPT)
        self._named_for: BoundedMap[str, tuple[str, float]] = BoundedMap(_KEPT)

    def remember_named(self, uid: str, candidates: Mapping[str, ProposedVictims], now: float) -> None:
        """Remember preempt's answer for the pod of this UID: nodes and victims. ``now`` in seconds."""
        victims = [candidate.victims for candidate in candidates.values()]
        if victims:
            size = sum(64 + len(victim) for on_node in victims for victim in on_node)
            self._named.put(uid, (victims, now), size)
        for victim in victims[0] if len(victims) == 1 else ():  # of several nodes kube-scheduler chooses one
            self._named_for.put(victim, (uid, now), 64 + len(victim) + len(uid))

    def go_for_another(
        self, uid: str, candidates: Mapping[str, ProposedVictims], pods: PodTable, now: float
    ) -> bool:
        """Whether all these victims have just been named for another pod, which is nominated, and their
        deletion has not been observed yet. Their end wakes this pod, too."""
        victims = [victim for candidate in candidates.values() for victim in candidate.victims]
        return bool(victims) and all(
            (named := self._named_for.get(victim)) is not None
            and named[0] != uid
            and now - named[1] <= JUST_NOW
            and pods.reservations.node_of(named[0])
            and not _goes(pods, victim)
            for victim in victims
        )

    def still_there(self, uid: str, pods: PodTable, now: float) -> bool:
        """Whether, on each node named for the pod, at least one victim exists and is not terminating."""
        if (named := self._named.get(uid)) is None:
            return False
        victims, at = named
        if now - at > LONGEST_NAMED or any(
            all(_goes(pods, victim) for victim in on_node) for on_node in victims
        ):
            self._named.pop(uid)
            return False
        return True


def _goes(pods: PodTable, uid: str) -> bool:
    known = pods.by_uid(uid)
    return known is None or known.deleting
