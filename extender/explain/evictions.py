"""Who would be evicted for a pod that fits nowhere, on which node, at which cost, and who would do it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError, effective_requests
from extender.explain.answers import Actor, EvictionOption, Evictions, EvictorMode
from extender.k8s.objects import Node, Pod
from extender.k8s.quantity import QuantityError, milli, whole
from extender.protocol.node_names import NodeNames
from extender.queues.rights import WhyNot
from extender.untrusted.limits import KEY, LISTED_NAMES, shorten
from extender.verbs.evaluate import dra_resources
from extender.verbs.eviction.plan import EvictionPlan, gpu_hours, losses, plan_evictions, rules_for
from extender.verbs.eviction.promising import promising_nodes
from extender.verbs.gang_fit import gang_may_fit
from packing.model.reasons import Reason

BEST = 3
"""Nodes that are shown of those where evictions help."""
NOT_ENOUGH = "evicting all that may be evicted there is not enough"
DEARER = "evictions there cost more"


def evictions_for(
    state: State,
    pod: Pod,
    nodes: Sequence[str],
    now: float,
    evictor: EvictorMode = "unknown",
) -> Evictions:
    """What would be evicted for a pod that fits on none of these nodes. ``now`` in Unix seconds."""
    try:
        request = state.request_of(pod)
    except RequestError:
        return Evictions()
    lacking = [one.name for one in promising_nodes(state, pod, request, nodes, {})]
    actor: Actor = "kube-scheduler"
    useless = 0  # plans that help the pod, and not its gang
    plans = plan_evictions(state, pod, lacking, now)
    plans = [plan for plan in plans if not plan.pdb_violations] or plans
    plans = [plan for plan in plans if _leaves_the_rest(state, pod, plan, now)]
    acting = (plan for plan in plans if not plan.to_evict or _asks_preempt(state, pod, plan.node))
    shown = list(islice(acting, BEST))
    if not shown:
        actor = "evictor"
        plans = plan_evictions(state, pod, lacking, now, to_equals=True, whole_gangs=True)
        plans = [one for one in plans if not one.pdb_violations and _leaves_the_rest(state, pod, one, now)]
        shown = plans[:BEST]
    if plans and not gang_may_fit(state, pod, request):
        useless, plans, shown = len(plans), [], []
    rules = rules_for(state, pod, now, to_equals=actor == "evictor")
    on_nodes = [one for node in lacking for one in state.pods.on_node(node)]
    others = [one for one in on_nodes if one.uid != pod.uid and not one.deleting]
    protected = Counter(filter(None, rules.why_not(others)))
    stuck = [one for one in on_nodes if one.deleting and not one.is_about_to_go(now)]
    protected.update(f"{WhyNot.STUCK}: {shorten(one.key, KEY)}" for one in stuck[:LISTED_NAMES])
    not_enough = len(lacking) - len(plans) - useless
    elsewhere = {
        Reason.GANG_DOES_NOT_FIT.text: useless,
        DEARER: len(plans) - len(shown),
        NOT_ENOUGH: not_enough,
    }
    return Evictions(
        tuple(_option(state, plan, actor, now) for plan in shown),
        {why: count for why, count in elsewhere.items() if count > 0},
        dict(protected.most_common()),
        evictor,
    )


def _leaves_the_rest(state: State, pod: Pod, plan: EvictionPlan, now: float) -> bool:
    """Whether the node then has enough of what Stowage does not place by, too."""
    gone = {one.uid for one in plan.victims}
    gone |= {one.uid for one in state.pods.on_node(plan.node) if one.is_about_to_go(now)}
    return not any(lacking_on(state, state.nodes[plan.node], asked_by(pod), gone))


def _option(state: State, plan: EvictionPlan, acts: Actor, now: float) -> EvictionOption:
    here = ([pod for pod in plan.victims if pod.deleting is leaving] for leaving in (False, True))
    victims, leaving = (tuple(shorten(pod.key, KEY) for pod in pods[:LISTED_NAMES]) for pods in here)
    others = plan.other_nodes[:LISTED_NAMES]
    elsewhere = tuple(f"{shorten(pod.key, KEY)} on {shorten(pod.node_name, KEY)}" for pod in others)
    return EvictionOption(
        node=plan.node,
        acts=acts,
        pods=len(plan.to_evict),
        victims=victims,
        other_nodes=elsewhere,
        leaving=leaving,
        loses=losses(state, plan, now),
        gpu_hours=gpu_hours(state, plan, now),
        pdb_violations=plan.pdb_violations,
        cost=plan.cost,
    )


def _asks_preempt(state: State, pod: Pod, node: str) -> bool:
    """Whether kube-scheduler asks ``preempt`` about a node where evictions help: from 1.38 on always, before
    that only where it counts too little itself. It never does for gangs of its own, and it evicts nobody for
    devices of claims."""
    if (
        pod.pod_group
        or pod.spec.claims
        or any(dra_resources(state, pod, state.request_of(pod), NodeNames.of([node])))
    ):
        return False
    return state.eviction_helps_extenders or _counts_too_little(state, pod, state.nodes[node])


def _counts_too_little(state: State, pod: Pod, node: Node) -> bool:
    """Whether kube-scheduler's own filter (``NodeResourcesFit``) refuses the node. It adds up the requests of
    all pods, also for resources whose devices Stowage places. A resource that the node does not advertise
    is one that the scheduler's configuration tells it to ignore."""
    taken, wanted = Counter[str](pods=0), {**_requests(pod), "pods": 1}
    for other in state.pods.on_node(node.name):
        if other.uid != pod.uid:
            taken.update(_requests(other))
            taken["pods"] += 1
    return any(total - taken[name] < wanted[name] for name, total in _allocatable(node, wanted))


def _requests(pod: Pod) -> dict[str, int]:
    try:
        return effective_requests(pod.held)
    except RequestError:
        return {}


def _allocatable(node: Node, names: dict[str, int]) -> Iterator[tuple[str, int]]:
    for name in names:
        try:
            if name in node.allocatable:
                yield name, (milli if name == "cpu" else whole)(node.allocatable[name])
        except QuantityError:
            continue
