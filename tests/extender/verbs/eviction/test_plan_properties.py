"""Invariants of eviction plans on random states, and a comparison with all subsets on small nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.queues.disruptions import CHECKPOINT_INTERVAL as INTERVAL
from extender.queues.disruptions import DisruptionLog
from extender.queues.rights import EvictionRules
from extender.verbs.evaluate import reason_on
from extender.verbs.eviction.node_pods import Bound, Prices, candidates_on, work_of
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from packing.model.reasons import Reason
from packing.victims.rights import ROOM_SECONDS
from packing.victims.victims import Cost
from tests.examples import examples
from tests.extender.builders import (
    NOW,
    NodeSelectorRequirement,
    PodDisruptionBudget,
    make_node,
    make_pod,
    make_state,
    why,
)

SHARED = {
    "stowage.dev/gpu-sharing": "true",
    "nvidia.com/gpu.count": "3",
    "nvidia.com/gpu.memory": "81559",
}


@st.composite
def running(draw, name: str, node: str, shares: bool) -> Pod:
    """A pod on a node with whole GPUs, or with parts of one GPU."""
    labels = {"stowage.dev/queue": draw(st.sampled_from(["backfill", "batch", "none"]))}
    if gang := draw(st.sampled_from(["", "", "g", "h"])):
        labels |= {"stowage.dev/gang": gang, "stowage.dev/gang-min": draw(st.sampled_from(["1", "2"]))}
    size, gpu = draw(st.sampled_from([200, 400, 600])), draw(st.integers(0, 2))
    parts = {"stowage.dev/gpu-compute": f"{size}m", "stowage.dev/gpu-indices": str(gpu)}
    return make_pod(
        name,
        0 if shares else draw(st.integers(0, 2)),
        node_name=node,
        priority=draw(st.integers(0, 3)),
        started=NOW - draw(st.sampled_from([0, 60, 5000, 50_000])),
        cpu=draw(st.sampled_from(["1", "20"])),
        labels=labels,
        annotations=parts if shares else {},
        deleting=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def cases(draw, most_pods: int = 7) -> tuple[State, Pod]:
    """A state of up to two nodes that either count their GPUs or share them, and a pod that waits."""
    shares, objects = draw(st.booleans()), []
    for node in ["a", "b"][: draw(st.integers(1, 2))]:
        objects.append(make_node(node, 3, labels=SHARED if shares else {}))
        objects += [
            draw(running(f"{node}{number}", node, shares))
            for number in range(draw(st.integers(0, most_pods)))
        ]
    gpus = draw(st.integers(1, 3))
    asks = {"stowage.dev/gpu-compute": draw(st.sampled_from(["300m", "700m"])), "stowage.dev/gpus": str(gpus)}
    pod = make_pod(
        "p",
        0 if shares else gpus,
        priority=draw(st.integers(1, 4)),
        cpu=draw(st.sampled_from(["1", "40"])),
        annotations=asks if shares else {},
    )
    return make_state(*objects, binds=shares), pod


@settings(max_examples=examples(150))
@given(cases(), st.booleans(), st.booleans())
def test_plans_are_valid_fair_and_contain_nobody_without_need(case, to_equals: bool, whole: bool) -> None:
    state, pod = case
    rules = state.rules_for(pod, NOW, to_equals=to_equals)
    found = plan_evictions(state, pod, list(state.nodes), NOW, to_equals=to_equals, whole_gangs=whole)
    ranks = [(bool(plan.to_evict), plan.cost) for plan in found]  # first those whose victims leave anyway
    assert ranks == sorted(ranks)
    for plan in found:
        leave = (*plan.victims, *plan.other_nodes)
        assert plan.victims
        assert not any(rules.why_not([victim for victim in leave if not victim.deleting]))
        assert [v.priority for v in plan.victims] == sorted((v.priority for v in plan.victims), reverse=True)
        assert whole or not plan.other_nodes
        assert all_gangs_are_useful(state, plan)
        assert fits_without(state, pod, plan.node, plan.victims)
        for victim in plan.victims:
            rest = [one for one in plan.victims if one is not victim]
            if not leaves_with_its_gang(state, plan, victim):
                assert not fits_without(state, pod, plan.node, rest)


def fits_without(state: State, pod: Pod, node: str, evicted) -> bool:
    """Whether the pod fits in a state without these pods."""
    gone = {one.key for one in evicted}
    pods = [one for one in state.pods.values() if one.key not in gone]
    left = make_state(*state.nodes.values(), *pods, binds=state.binds)
    return why(left, pod, node) is Reason.FITS


def all_gangs_are_useful(state: State, plan: EvictionPlan) -> bool:
    """Whether each gang keeps its minimum, or leaves as a whole, or was too small before."""
    gone = {pod.key for pod in (*plan.victims, *plan.other_nodes)}
    for victim in plan.victims:
        gang = state.gangs.gang_of(victim)
        if gang and not victim.deleting:
            members = [pod for pod in state.gangs.members(gang.key) if not pod.deleting]
            stay = sum(pod.key not in gone for pod in members)
            if 0 < stay < gang.minimum:
                return False
    return True


def leaves_with_its_gang(state: State, plan: EvictionPlan, victim: Pod) -> bool:
    gang = state.gangs.gang_of(victim)
    if not gang:
        return False
    gone = {pod.key for pod in (*plan.victims, *plan.other_nodes)}
    return all(pod.key in gone for pod in state.gangs.members(gang.key) if not pod.deleting)


@settings(max_examples=examples(100))
@given(cases(most_pods=5))
def test_a_plan_is_found_where_there_is_one_and_its_cost_is_not_below_the_least(case) -> None:
    """How much above: tests/packing/victims."""
    state, pod = case
    state.apply([Deleted("Pod", one.key) for one in list(state.pods.values()) if one.deleting])
    rules = state.rules_for(pod, NOW)
    for node in state.nodes:
        plans = plan_evictions(state, pod, [node], NOW)
        if why(state, pod, node) in (Reason.FITS, Reason.OVERCOMMITTED):  # what it holds is not known
            assert plans == []
            continue
        prices = Prices(
            state.disruptions, NOW, {one.pod.priority for one in evictable_on(state, rules, node)}
        )
        best = cheapest_of_all(state, pod, rules, prices, node)
        assert bool(plans) == (best is not None)
        for plan in plans:
            assert best is not None
            assert plan.cost >= (*best[:-1], best[-1] + ROOM_SECONDS * plan.room)


def cheapest_of_all(state: State, pod: Pod, rules: EvictionRules, prices: Prices, node: str) -> Cost | None:
    """The least cost of all subsets of the candidates on one node that gangs allow."""
    evictable, costs = evictable_on(state, rules, node), []
    for size in range(len(evictable) + 1):
        for chosen in combinations(evictable, size):
            gone = {bound.pod.key for bound in chosen}
            if any(not allowed(state, rules, bound.pod, gone) for bound in chosen):
                continue
            with state.fleet.without([held for bound in chosen for held in bound.held]):
                if reason_on(state, pod, request_of(pod), node) is Reason.FITS:
                    costs.append(tuple(prices.costs(work_of(state, chosen)).sum(axis=0).tolist()))
    return min(costs, default=None)


def evictable_on(state: State, rules: EvictionRules, node: str) -> list[Bound]:
    [candidates] = candidates_on(state, rules, [node])
    return [one for one, may in zip(candidates.pods.running, candidates.may_leave, strict=True) if may]


def allowed(state: State, rules: EvictionRules, victim: Pod, gone: set[str]) -> bool:
    gang = state.gangs.gang_of(victim)
    if gang is None:
        return True
    members = state.gangs.members(gang.key)
    stay = [pod for pod in members if pod.key not in gone]
    return len(stay) >= gang.minimum or not (stay or any(rules.why_not(members)))


LABELS = "bcd"


@st.composite
def guarded_cases(draw) -> tuple[State, Pod, set[str]]:
    """A full node whose pods are in up to three budgets, a pod that waits, and the UIDs of a proposed set."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=2, max_size=8))
    pods = [
        make_pod(
            f"p{number}",
            gpus,
            node_name="n",
            started=NOW - draw(st.sampled_from([0, 3600, 36_000, 360_000])),
            labels={label: "yes" for label in LABELS if draw(st.booleans())},
        )
        for number, gpus in enumerate(sizes)
    ]
    state = make_state(make_node("n", sum(sizes)), *pods)
    for label in LABELS:
        selector = (NodeSelectorRequirement(label, "In", ("yes",)),)
        allowed = draw(st.integers(0, 2))
        state.apply([Upserted(PodDisruptionBudget("default", label, selector, allowed))])
    waits = make_pod("waits", draw(st.integers(1, sum(sizes))), priority=100)
    return state, waits, {pod.uid for pod in pods if draw(st.booleans())}


@settings(max_examples=examples(150))
@given(guarded_cases())
def test_no_plan_violates_more_budgets_than_the_proposed_pods(case) -> None:
    state, waits, proposed = case
    [plan] = plan_evictions(state, waits, ["n"], NOW, proposed={"n": proposed})
    on_node = [pod for pod in state.pods.on_node("n") if pod.uid in proposed]
    chosen = [pod for pod in state.pods.on_node("n") if pod in plan.victims]
    assert plan.pdb_violations == sum(state.budgets.violations(chosen))
    if fits_without(state, waits, "n", on_node):
        assert plan.pdb_violations <= sum(state.budgets.violations(on_node))


changes = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from(["delete", "end", "age", "gpu", "lose"])), max_size=4
)


@settings(max_examples=examples(150))
@given(cases(), changes, st.booleans())
def test_a_plan_with_what_was_kept_is_that_of_a_fresh_state(case, steps, to_equals: bool) -> None:
    """Whatever happened since the last plan. Also: what the numbers say is what ``why_not`` says."""
    state, pod = case
    plan_evictions(state, pod, list(state.nodes), NOW, to_equals=to_equals)
    for number, change in steps:
        pods = list(state.pods.values())
        if pods:
            apply_change(state, pods[number % len(pods)], change)
    fresh = make_state(*state.nodes.values(), *state.pods.values(), binds=state.binds)
    fresh.disruptions = state.disruptions
    for now in (NOW, NOW + 5000):
        asked = pod, list(state.nodes), now
        assert plan_evictions(state, *asked, to_equals=to_equals) == plan_evictions(
            fresh, *asked, to_equals=to_equals
        )
        rules = state.rules_for(pod, now, to_equals=to_equals)
        for candidates in candidates_on(state, rules, list(state.nodes)):
            running = [bound.pod for bound in candidates.pods.running]
            assert candidates.may_leave.tolist() == [not why for why in rules.why_not(running)]


def apply_change(state: State, pod: Pod, change: str) -> None:
    match change:
        case "delete":
            state.apply([Deleted("Pod", pod.key)])
        case "end":
            state.apply([Upserted(replace(pod, deleting=True))])
        case "age":
            state.apply([Upserted(replace(pod, annotations={**pod.annotations, INTERVAL: "7"}))])
        case "gpu":
            state.apply([Upserted(replace(pod, spec=make_pod("x", 1, cpu="3").spec))])
        case "lose":
            state.disruptions = DisruptionLog(now=lambda: NOW)
            state.disruptions.record_loss(
                replace(pod, uid="x"), "", "PreemptionByScheduler", 1, lambda at: 0.0
            )
            state.apply([Upserted(replace(pod, created=NOW))])
