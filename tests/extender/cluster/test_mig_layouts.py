"""The state follows the ConfigMaps of the MIG manager, in any order of events."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from extender.cluster.state import State
from extender.explain.node import view_node
from extender.k8s.objects import Deleted, Listed, Upserted
from extender.source.list_watch import ListWatch
from extender.source.snapshot import Snapshot
from extender.source.watched_kinds import mig_layouts
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from tests.extender.builders import make_pod, make_state, why
from tests.extender.inventory.test_mig_manager import CONFIG, CUSTOM, NAME, layouts, manifest, mig_node


def known(state: State) -> bool:
    view = view_node(state, "n", 0.0)
    assert view is not None
    assert view.read_from is not None
    return bool(view.read_from.layout) and all(pool.each for pool in view.pools)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_events_does_not_matter(order: tuple[int, ...]) -> None:
    small = "nvidia.com/mig-1g.10gb"
    pod = make_pod("p", 5, resource=small, node_name="n")
    objects = (mig_node("custom-mig", CUSTOM), layouts(), pod)
    state = make_state()
    state.apply([Upserted(objects[index]) for index in order])
    row = state.fleet.rows["n"]
    assert state.fleet.arrays.compute[:4, row].tolist() == [1000, 1000 - 5 * 142, 1000, 1000]
    assert state.fleet.arrays.free_devices[state.fleet.names.resources[small], row] == 2
    assert not state.problems
    assert known(state)


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
        (Deleted("ConfigMap", ""), "is not there"),
        (Listed("ConfigMap", frozenset()), "is not there"),
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
    state.apply([Upserted(layouts()), event])
    assert shape(state) == guessed
    assert problem in state.problems["MIG layouts of all nodes"]
    state.apply([Upserted(layouts())])
    assert known(state)
    assert not state.problems


def test_a_configmap_that_was_never_there_is_a_problem() -> None:
    state = make_state(mig_node("custom-mig", CUSTOM))
    state.apply([Listed("ConfigMap", frozenset())])
    assert "is not there" in state.problems["MIG layouts of all nodes"]


def test_a_node_may_have_a_configmap_of_its_own() -> None:
    state = make_state(mig_node("custom-mig", CUSTOM))
    state.apply([Upserted(layouts(node="n")), Listed("ConfigMap", frozenset({"n"}))])
    assert known(state)
    assert not state.problems
    state.apply([Upserted(layouts("[", node="other")), Deleted("ConfigMap", "n")])
    assert not known(state)
    assert set(state.problems) == {"MIG layouts of n", "MIG layouts of other"}
    state.apply([Deleted("ConfigMap", "other"), Deleted("Node", "n")])
    assert not state.problems


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("default-mig-parted-config", {"fieldSelector": "metadata.name=default-mig-parted-config"}),
        ("", {"labelSelector": "app.kubernetes.io/component=nvidia-mig-manager"}),
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
        Listed("ConfigMap", frozenset({""})),
    ]
    assert protocol.next_request().query.items() >= selector.items()
    change = {"type": "DELETED", "object": manifest()}
    assert protocol.chunk(json.dumps(change).encode() + b"\n") == [Deleted("ConfigMap", "")]


def test_a_snapshot_may_contain_other_configmaps() -> None:
    other = {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "-----"}}
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": [other, manifest(), other]}), "cluster.json")
    assert list(snapshot.others.values()) == [layouts()]
    assert not snapshot.problems
