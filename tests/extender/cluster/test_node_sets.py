"""The sets of nodes that pods insist on: learned from pods, bounded, and known of every node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster import demand
from extender.cluster.demand import MOST_CLASSES, MOST_SETS, choose_sets
from extender.cluster.factory import GuardedPolicy, state_of
from extender.cluster.policy_refresh import PolicyRefresher, plan_now
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.affinity import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    SchedulingConstraints,
    Taint,
    Toleration,
)
from extender.k8s.node_filter import NodeFilter, NodeRequirement, node_requirement
from extender.k8s.objects import Container, Deleted, Listed, Node, Pod, PodSpec, Upserted
from extender.settings import ExpectedRequest
from extender.untrusted.limits import TAUGHT_LABELS
from packing.model.request import Request
from packing.policies.registry import POLICIES
from tests.extender.builders import GPU, make_node, make_pod, make_settings

ZONE, POOL, PRODUCT = "topology.kubernetes.io/zone", "pool", "nvidia.com/gpu.product"


def requires(**labels: str) -> NodeRequirement:
    return NodeRequirement(tuple(sorted((key.replace("__", "/"), value) for key, value in labels.items())))


def pod(name: str, selector: Mapping[str, str] | None = None, *terms: NodeSelectorTerm, gpus: int = 1) -> Pod:
    spec = PodSpec(
        (Container("main", (("cpu", "1"), (GPU, str(gpus)))),),
        node_selector=tuple(sorted((selector or {}).items())),
    )
    constraints = SchedulingConstraints(terms or None)
    return Pod("default", name, f"uid-{name}", spec, scheduling_constraints=constraints)


def term(*requirements: tuple[str, str, tuple[str, ...]]) -> NodeSelectorTerm:
    return NodeSelectorTerm(tuple(NodeSelectorRequirement(*one) for one in requirements))


def state_with(*nodes: Node) -> State:
    state = State(GuardedPolicy(POLICIES["inventory"](), POLICIES["best-fit"]()))
    state.apply([*map(Upserted, nodes), Listed("Node", frozenset(node.name for node in nodes))])
    return state


def zones(count: int = 4) -> State:
    return state_with(*(make_node(f"n{i}", labels={ZONE: "ab"[i % 2]}) for i in range(count)))


def allowed(state: State, one: Pod) -> set[str]:
    """The nodes on which the mix counts room for such pods."""
    request = replace(request_of(one), node_set=node_requirement(one))
    kinds = state.fleet.names.allowed(request)
    return {name for name, row in state.fleet.rows.items() if kinds[state.fleet.arrays.model[row]]}


VALUES = st.sampled_from(["a", "b", "c"])
LABELS = st.dictionaries(st.sampled_from([ZONE, POOL, "gen"]), VALUES, max_size=3)
REQUIREMENTS = st.tuples(
    st.sampled_from([ZONE, POOL, "gen"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(VALUES, min_size=1, max_size=2).map(tuple),
)
PODS = st.builds(
    lambda selector, terms: pod("p", selector, *(term(*one) for one in terms)),
    LABELS,
    st.lists(st.lists(REQUIREMENTS, min_size=1, max_size=2), max_size=2),
)


@given(PODS, LABELS)
def test_a_requirement_matches_like_kube_schedulers_filters(one: Pod, labels: dict[str, str]) -> None:
    requirement = node_requirement(one)
    accepted = NodeFilter(one).rejection(Node("n", labels=labels)) is None
    assert (requirement is None or requirement.matches(labels)) == accepted


@given(st.lists(st.tuples(PODS, st.integers(1, 8)), max_size=30), st.lists(LABELS, min_size=1, max_size=12))
def test_a_set_has_the_nodes_that_its_requirement_admits(pods, labels) -> None:
    asked = {requirement: gpus for one, gpus in pods if (requirement := node_requirement(one)) is not None}
    numbers = choose_sets(asked, labels)
    admitted: dict[int, list[bool]] = {}
    for requirement, number in numbers.items():
        column = [requirement.matches(of) for of in labels]
        assert admitted.setdefault(number, column) == column  # equal sets have one number, and no others
        assert not all(column)
    columns = list(map(tuple, admitted.values()))
    assert len({*columns}) == len(columns) <= MOST_SETS
    assert sorted(admitted) == list(range(len(admitted)))
    assert len({*zip(*columns, strict=True)}) <= MOST_CLASSES


def test_a_few_sets_are_told_apart_those_of_products_first() -> None:
    labels = [{PRODUCT: f"gpu{i % 3}", POOL: f"p{i}", ZONE: "z"} for i in range(60)]
    asked = {requires(pool=f"p{i}"): 100.0 + i for i in range(60)}
    asked |= {NodeRequirement(((PRODUCT, f"gpu{i}"),)): 1.0 for i in range(3)}
    rare = NodeRequirement(((PRODUCT, "gpu1"), (POOL, "p1")))
    everywhere = requires(**{"topology.kubernetes.io__zone": "z"})
    numbers = choose_sets(asked | {rare: 0.5, everywhere: 1e9}, labels)
    products = {numbers[NodeRequirement(((PRODUCT, f"gpu{i}"),))] for i in range(3)}
    assert len(products) == 3
    assert len({*numbers.values()}) == MOST_SETS
    most_asked = {f"p{i}" for i in range(60) if requires(pool=f"p{i}") in numbers}
    assert most_asked == {f"p{i}" for i in range(60 - MOST_SETS + 3, 60)}
    assert numbers[rare] == numbers[NodeRequirement(((PRODUCT, "gpu1"),))]  # at least the product counts
    assert everywhere not in numbers


def test_the_number_of_classes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MOST_CLASSES", 4)
    keys = [f"k{i}" for i in range(4)]
    labels = [{key: str(number >> i & 1) for i, key in enumerate(keys)} for number in range(16)]
    numbers = choose_sets({NodeRequirement(((key, "1"),)): 4.0 - i for i, key in enumerate(keys)}, labels)
    assert {requirement.keys[0] for requirement in numbers} == {"k0", "k1"}


async def test_the_mix_tells_apart_what_pods_insist_on() -> None:
    state = zones()
    plain, insists = pod("plain"), pod("insists", {ZONE: "a"})
    same = pod("same", None, term((ZONE, "In", ("a", "nowhere"))))
    state.apply([Upserted(one) for one in (plain, insists, same)])
    await PolicyRefresher(state).refresh_if_due()
    assert allowed(state, insists) == allowed(state, same) == {"n0", "n2"}
    assert allowed(state, plain) == {"n0", "n1", "n2", "n3"}
    assert isinstance(state.policy, GuardedPolicy)
    mix = state.policy.chosen.tables.mix  # type: ignore[attr-defined]
    assert sorted(mix.frequency) == pytest.approx([1 / 3, 2 / 3], rel=1e-3)
    cost = state.policy.cost(state.fleet, request_of(plain))
    in_zone, outside = (
        cost[[state.fleet.rows[name] for name in names]] for names in (["n0", "n2"], ["n1", "n3"])
    )
    assert in_zone.min() > outside.max()
    # Whether a pod fits never depends on its set: kube-scheduler asks only about nodes that it may use.
    assert node_requirement(insists) is not None
    assert request_of(insists).node_set is None


async def test_nodes_that_come_or_change_are_in_their_sets() -> None:
    state = zones(2)
    insists = pod("insists", {ZONE: "a"})
    state.apply([Upserted(insists)])
    await PolicyRefresher(state).refresh_if_due()
    assert allowed(state, insists) == {"n0"}
    state.apply([Upserted(make_node("new", labels={ZONE: "a"}))])
    assert allowed(state, insists) == {"n0", "new"}
    state.apply(
        [Upserted(make_node("n1", labels={ZONE: "a"})), Upserted(make_node("n0", labels={ZONE: "b"}))]
    )
    assert allowed(state, insists) == {"n1", "new"}
    state.apply([Deleted("Node", "n1"), Upserted(make_node("n1", labels={ZONE: "b"}))])
    assert allowed(state, insists) == {"new"}


def test_other_names_of_the_same_sets_change_no_node() -> None:
    state = zones()
    state.apply([Upserted(pod("one", {ZONE: "a"}))])
    plan_now(state)
    layout = state.fleet.layout
    other = pod("other", None, term((ZONE, "In", ("a",))))
    state.apply([Upserted(other)])
    plan_now(state)
    assert allowed(state, other) == {"n0", "n2"}
    assert state.fleet.names.known_set(node_requirement(other)) == node_requirement(pod("x", {ZONE: "a"}))
    assert state.fleet.layout == layout


@pytest.mark.parametrize(("values", "counts"), [(TAUGHT_LABELS - 1, True), (TAUGHT_LABELS, False)])
def test_long_requirements_count_as_none(values: int, counts: bool) -> None:
    one = pod("p", None, term((ZONE, "In", tuple(map(str, range(values))))))
    assert (node_requirement(one) is not None) == counts


def test_what_names_one_node_does_not_count() -> None:
    host = "kubernetes.io/hostname"
    assert node_requirement(pod("p", {host: "n1"})) is None
    assert node_requirement(pod("p", {host: "n1", ZONE: "a"})) == NodeRequirement(((ZONE, "a"),))
    field = NodeSelectorTerm(fields=(NodeSelectorRequirement("metadata.name", "In", ("n1",)),))
    assert node_requirement(pod("p", None, field)) is None
    either = (term((ZONE, "In", ("a",)), (host, "In", ("n1",))), term((host, "In", ("n2",))))
    assert node_requirement(pod("p", None, *either)) is None


def test_what_pods_tolerate_is_a_set_of_nodes_and_so_is_what_is_left_to_the_others() -> None:
    def of_team(name: str, team: str) -> Pod:
        condition = Toleration("node.kubernetes.io/not-ready", "Exists", effect="NoExecute")
        own = (Toleration("team", "Equal", team, "NoSchedule"),) if team else ()
        return replace(pod(name), scheduling_constraints=SchedulingConstraints(None, (*own, condition)))

    def owned_by(team: str) -> tuple[Taint, ...]:
        return (Taint("team", team, "NoSchedule"),)

    nodes = [make_node(name) for name in ("a", "b", "shared")]
    nodes[:2] = (replace(node, taints=owned_by(node.name)) for node in nodes[:2])
    state = state_with(*nodes)
    state.apply([Upserted(of_team(f"p{team}", team)) for team in ("a", "b", "")])
    plan_now(state)
    assert allowed(state, of_team("x", "a")) == {"a", "shared"}
    assert allowed(state, of_team("x", "b")) == {"b", "shared"}
    names, mine = state.fleet.names, of_team("x", "")
    assert node_requirement(mine) is None
    kinds = names.allowed(replace(request_of(mine), node_set=names.known_set(None)))
    assert [name for name, row in state.fleet.rows.items() if kinds[state.fleet.arrays.model[row]]] == [
        "shared"
    ]
    cost = state.policy.cost(state.fleet, request_of(mine))
    assert cost[state.fleet.rows["a"]] < cost[state.fleet.rows["shared"]]  # which others need
    state.apply([Upserted(replace(nodes[0], taints=owned_by("b")))])
    assert allowed(state, of_team("x", "b")) == {"a", "b", "shared"}


def test_a_taint_that_all_pods_tolerate_makes_no_set() -> None:
    node = replace(make_node("n"), taints=(Taint(GPU, "", "NoSchedule"),))
    constraints = SchedulingConstraints(None, (Toleration(GPU, "Exists"),))
    state = state_with(node, make_node("other"))
    state.apply([Upserted(replace(pod("p"), scheduling_constraints=constraints))])
    plan_now(state)
    assert not state.fleet.names.node_sets


def test_a_failure_to_choose_costs_only_the_sets(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError

    state = zones()
    state.apply([Upserted(pod("insists", {ZONE: "a"}))])
    monkeypatch.setattr(demand, "choose_sets", fail)
    plan_now(state)
    assert state.failures.counts == {"node_sets": 1}
    assert "node_sets failed" in caplog.text
    assert allowed(state, pod("insists", {ZONE: "a"})) == {"n0", "n1", "n2", "n3"}


async def test_expected_requests_may_name_nodes() -> None:
    one = ExpectedRequest.model_validate({"resources": {GPU: "1"}, "nodeSelector": {ZONE: "a"}})
    state = state_of(make_settings(demand=[one]))
    nodes = [make_node(f"n{i}", labels={ZONE: "ab"[i]}) for i in range(2)]
    state.apply([*map(Upserted, nodes), Listed("Node", frozenset({"n0", "n1"}))])
    await PolicyRefresher(state).refresh_if_due()
    assert allowed(state, pod("p", {ZONE: "a"})) == {"n0"}
    cost = state.policy.cost(state.fleet, Request(devices=((GPU, 1),)))
    assert cost[state.fleet.rows["n0"]] > cost[state.fleet.rows["n1"]]


def test_many_different_requirements_are_few_types_of_the_mix() -> None:
    state = zones()
    state.apply([Upserted(pod(f"p{i}", {"job": f"j{i}"})) for i in range(200)])
    state.apply([Upserted(make_pod(f"q{i}")) for i in range(10)])
    plan_now(state)
    assert isinstance(state.policy, GuardedPolicy)
    mix = state.policy.chosen.tables.mix  # type: ignore[attr-defined]
    assert len(mix.requests) <= 2  # no node has any of these labels: one set
