"""Members of a gang go to few nodes that are near each other; other pods pay nothing for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.gang_placement import gang_costs
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.inventory.node_inventory import LEVELS, domains_of
from extender.k8s.objects import Event, Listed, Node, Pod, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.verbs.filter import filter_nodes
from extender.verbs.prioritize import prioritize
from packing.policies.interface import update_now
from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.builders import make_node, make_pod, make_settings

CLIQUE, LEAF, SPINE = "nvidia.com/gpu.clique", "fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"


def gang(count: int, gpus: int, name: str = "g", **fields: Any) -> list[Pod]:
    labels = {"stowage.dev/gang": name}
    return [make_pod(f"{name}-{i}", gpus, labels=labels, **fields) for i in range(count)]


def state_of(*objects: Node | Pod) -> State:
    state = State(POLICIES["inventory"]())
    nodes = frozenset(one.key for one in objects if isinstance(one, Node))
    pods = frozenset(one.key for one in objects if isinstance(one, Pod))
    events: list[Event] = [Upserted(one) for one in objects]
    state.apply([*events, Listed("Node", nodes), Listed("Pod", pods)])
    update_now(state.policy, state.fleet)
    return state


def schedule(state: State, pods: Iterable[Pod]) -> list[str]:
    """The node of each pod: kube-scheduler's calls one after the other, and a binding after each."""
    chosen = []
    for pod in pods:
        names = NodeNames.of(sorted(state.nodes))
        fitting = filter_nodes(state, FilterArgs(pod, names), make_settings(shortlist=3))[0].names
        scores, _ = prioritize(state, FilterArgs(pod, fitting))
        node = list(fitting)[int(scores.argmax())]
        state.apply([Upserted(replace(pod, node_name=node))])
        chosen.append(node)
    return chosen


def nodes(domains: dict[str, int], label: str = CLIQUE, gpus: int = 4) -> list[Node]:
    """So many nodes of each domain, with names that begin with it; their order mixes the domains."""
    return [
        make_node(f"{number}-{domain}", gpus, labels={label: domain})
        for domain, count in domains.items()
        for number in range(count)
    ]


LABELS = [label for level in LEVELS for label in level]


@pytest.mark.parametrize("label", LABELS)
def test_a_gang_stays_in_the_smallest_domain_that_holds_it(label: str) -> None:
    for members, domain in ((3, "small"), (5, "large")):
        pods = gang(members, 4)
        state = state_of(*nodes({"tiny": 1, "small": 3, "large": 6}, label), *pods)
        assert {node.split("-")[1] for node in schedule(state, pods)} == {domain}


def test_members_follow_those_that_are_bound() -> None:
    pods = gang(3, 4)
    state = state_of(*nodes({"x": 3, "y": 3}), *pods)
    state.apply([Upserted(replace(pods[0], node_name="1-y"))])
    assert all(node.endswith("y") for node in schedule(state, pods[1:]))


def test_an_assumed_member_counts_as_bound() -> None:
    pods = gang(2, 4)
    state = state_of(*nodes({"x": 3, "y": 3}), *pods)
    state.assume(pods[0], "2-y", {}, 0.0)
    assert schedule(state, pods[1:])[0].endswith("y")


def test_the_first_label_of_a_level_counts() -> None:
    labels = {"accelerator.topograph.run/domain": "d", CLIQUE: "c", LEAF: "", SPINE: "s"}
    assert domains_of(labels) == (f"{CLIQUE}=c", "", f"{SPINE}=s", "")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[State, list[int], int]:
    """Nodes in random domains, the rows of bound members, and the GPUs of a member."""
    count = draw(st.integers(1, 6))
    labels = [
        {key: draw(st.sampled_from("ab")) for key in (CLIQUE, LEAF, SPINE) if draw(st.booleans())}
        for _ in range(count)
    ]
    state = state_of(*(make_node(f"n{i}", 4, labels=one) for i, one in enumerate(labels)))
    bound = draw(st.lists(st.integers(0, count - 1), max_size=3))
    return state, [state.fleet.rows[f"n{i}"] for i in bound], draw(st.sampled_from([1, 2, 4]))


@settings(max_examples=examples(60))
@given(clusters(), st.integers(1, 6))
def test_costs_against_an_obvious_count(cluster: tuple[State, list[int], int], missing: int) -> None:
    state, bound, gpus = cluster
    request = request_of(make_pod("p", gpus))
    found = gang_costs(state.fleet, state.nodes.network.ids(state.fleet), request, bound, missing)
    names = {row: name for name, row in state.fleet.rows.items()}

    def shared(a: str, b: str) -> float:
        if a == b:
            return 1.0
        pairs = zip(state.nodes.network.of(a), state.nodes.network.of(b), (0.8, 0.5, 0.3, 0.15), strict=True)
        return max((near for one, other, near in pairs if one and one == other), default=0.0)

    for row, name in names.items():
        if bound:
            nearness = float(np.mean([shared(name, names[other]) for other in bound]))
        else:
            nearness = room_nearby(state, name, missing, 4 // gpus)
        assert found[row] == pytest.approx(gpus * (1 - nearness), abs=1e-4)


def room_nearby(state: State, name: str, missing: int, on_node: int) -> float:
    own = (name, *state.nodes.network.of(name))
    sizes: Sequence[Counter[str]] = [
        Counter((other, *state.nodes.network.of(other))[level] for other in state.nodes) for level in range(5)
    ]
    best = 0.0
    for domain, size, near in zip(own, sizes, (1.0, 0.8, 0.5, 0.3, 0.15), strict=True):
        room = size[domain] * on_node
        if domain and room >= missing:
            best = max(best, near * (0.9 + 0.1 * missing / room))
    return best
