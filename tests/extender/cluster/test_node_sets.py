"""The sets of nodes that pods insist on: learned from pods, bounded, and known of every node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from extender.cluster import demand
from extender.cluster.demand import MOST_SETS, choose_sets
from extender.cluster.factory import GuardedPolicy
from extender.cluster.policy_refresh import plan_now
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.affinity import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    SchedulingConstraints,
)
from extender.k8s.node_filter import NodeRequirement, node_requirement
from extender.k8s.objects import Container, Listed, Node, Pod, PodSpec, Upserted
from extender.untrusted.limits import TAUGHT_LABELS
from packing.policies.registry import POLICIES
from tests.extender.builders import GPU, make_node, make_pod

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


def test_many_different_requirements_are_few_types_of_the_mix() -> None:
    state = zones()
    state.apply([Upserted(pod(f"p{i}", {"job": f"j{i}"})) for i in range(200)])
    state.apply([Upserted(make_pod(f"q{i}")) for i in range(10)])
    plan_now(state)
    assert isinstance(state.policy, GuardedPolicy)
    mix = state.policy.chosen.tables.mix  # type: ignore[attr-defined]
    assert len(mix.requests) <= 2  # no node has any of these labels: one set
