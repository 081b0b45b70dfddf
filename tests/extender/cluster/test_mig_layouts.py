"""The state follows the ConfigMaps of the MIG manager, in any order of events."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.state import State
from extender.explain.node import view_node
from extender.k8s.objects import Deleted, Event, Listed, Upserted
from extender.source.list_watch import ListWatch
from extender.source.watched_kinds import mig_layouts
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod, make_state, why
from tests.extender.inventory.test_mig_manager import CONFIG, CUSTOM, NAME, layouts, manifest, mig_node

PER_NODE_SELECTOR = "app.kubernetes.io/component=nvidia-mig-manager,nvidia.com/node-name"


def known(state: State) -> bool:
    view = view_node(state, "n", 0.0)
    assert view is not None
    assert view.read_from is not None
    return bool(view.read_from.layout) and all(pool.each for pool in view.pools)


def test_nodes_follow_their_label_and_the_configmap_at_once() -> None:
    state = make_state(mig_node("custom-mig", CUSTOM))
    assert not known(state)
    state.apply([Upserted(layouts())])
    assert known(state)
    state.apply([Upserted(mig_node("all-3g.40gb", CUSTOM))])
    assert not known(state)
    assert "does not match MIG layout all-3g.40gb" in state.problems["n"]
    assert why(state, make_pod("p", 2, resource="nvidia.com/mig-2g.20gb"), "n") is Reason.FITS
    three = {"nvidia.com/mig-3g.40gb": 4}
    state.apply([Upserted(mig_node("all-3g.40gb", three))])
    assert known(state)
    assert not state.problems
    state.apply([Upserted(layouts(CONFIG.replace('"3g.40gb": 2', '"3g.40gb": 1')))])
    assert known(state)
    assert len(shape(state).gpus) == 4


def shape(state: State) -> NodeSpec:
    found = state.fleet.specs[state.fleet.rows["n"]]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (Deleted("ConfigMap", NAME), "does not exist"),
        (Listed("ConfigMap", frozenset()), "does not exist"),
        (Upserted(layouts("mig-configs: [")), f"{NAME}: config.yaml is not YAML"),
        (
            Upserted(layouts(CONFIG.replace('"1g.10gb": 7', '"1g.10gb": 700'))),
            "layout 'custom-mig' is left out",
        ),
    ],
)
def test_without_a_layout_only_allocatable_counts(event: Any, problem: str) -> None:
    state = make_state(mig_node("custom-mig", CUSTOM))
    guessed = shape(state)
    state.apply([Upserted(layouts()), Listed("ConfigMap", frozenset({NAME})), event])
    assert shape(state) == guessed
    assert problem in state.problems["MIG layouts of all nodes"]
    state.apply([Upserted(layouts())])
    assert known(state)
    assert not state.problems


def test_a_configmap_that_was_never_there_is_a_problem() -> None:
    state = make_state(mig_node("custom-mig", CUSTOM))
    state.apply([Listed("ConfigMap", frozenset())])
    assert "does not exist" in state.problems["MIG layouts of all nodes"]


def two_nodes() -> State:
    """n and m have the same layout, by their labels."""
    node = mig_node("custom-mig", CUSTOM)
    return make_state(node, replace(node, name="m"))


@pytest.mark.parametrize("node", ["n", ""])
@pytest.mark.parametrize("gone", [Deleted("ConfigMap", "gpu/a"), Listed("ConfigMap", frozenset({"gpu/b"}))])
def test_of_two_configmaps_the_other_stays(gone: Event, node: str) -> None:
    both = [layouts(node=node, name="gpu/b"), layouts(node=node, name="gpu/a")]
    for order in (both, both[::-1]):
        state = two_nodes()
        state.apply([Upserted(one) for one in order])
        assert state.nodes.sources["n"].layout == "configmap gpu/a"
        about = f"MIG layouts of {node or 'all nodes'}"
        assert "gpu/a is used, one of 2 ConfigMaps" in state.problems[about]
        state.apply([gone])
        assert state.nodes.sources["n"].layout == "configmap gpu/b"
        assert about not in state.problems


def test_a_node_without_a_layout_label_misses_no_configmap() -> None:
    state = two_nodes()
    state.apply([Upserted(layouts(node="m")), Listed("ConfigMap", frozenset({NAME}))])
    assert state.problems.keys() == {"MIG layouts of n"}
    state.apply([Upserted(make_node("n"))])
    assert not state.problems


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("default-mig-parted-config", {"fieldSelector": "metadata.name=default-mig-parted-config"}),
        ("", {"labelSelector": PER_NODE_SELECTOR}),
    ],
)
def test_the_configmap_is_listed_and_watched(name: str, selector: dict[str, str]) -> None:
    page = {"metadata": {"resourceVersion": "7"}, "items": [manifest()]}
    protocol = ListWatch(mig_layouts("gpu-operator", name))
    request = protocol.next_request()
    assert request.path == "/api/v1/namespaces/gpu-operator/configmaps"
    assert request.query.items() >= selector.items()
    assert protocol.page(json.dumps(page).encode()) == [
        Upserted(layouts()),
        Listed("ConfigMap", frozenset({NAME})),
    ]
    assert protocol.next_request().query.items() >= selector.items()
    change = {"type": "DELETED", "object": manifest()}
    assert protocol.chunk(json.dumps(change).encode() + b"\n") == [Deleted("ConfigMap", NAME)]
