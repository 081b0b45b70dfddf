"""Restartable pods prefer spot nodes, others avoid them, and a node that leaves takes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extender.cluster.factory import state_of
from extender.dialects.pod_request import request_of
from extender.inventory.node_state import LEAVING_TAINTS, SPOT_LABELS, is_leaving, is_spot
from extender.k8s.affinity import Taint
from extender.k8s.objects import Deleted, Node, Pod, Upserted
from extender.protocol.node_names import NodeNames
from extender.queues.queue import RESTARTABLE
from extender.settings import Settings
from extender.verbs import evaluate as evaluate_module
from extender.verbs.evaluate import evaluate, reason_on
from packing.model.reasons import Reason
from packing.policies.registry import POLICIES
from tests.extender.builders import make_node, make_pod, make_state, why
from tests.packing.victims.random_nodes import Victim, search_among

SPOT = {"karpenter.sh/capacity-type": "spot"}
LEAVING = (Taint("karpenter.sh/disrupted", "", "NoSchedule"),)


def restartable(name: str = "r", gpus: int = 1) -> Pod:
    return make_pod(name, gpus, annotations={RESTARTABLE: "true"})


def best_of(state, pod: Pod, names: list[str]) -> str:
    evaluation = evaluate(state, pod, request_of(pod), NodeNames.of(names))
    fits = np.flatnonzero(evaluation.codes == Reason.FITS)
    return names[int(fits[evaluation.keys[fits].argmin()])]


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in SPOT_LABELS.items() for v in sorted(values)]
)
def test_spot_nodes_by_label_and_by_taint(name, value):
    assert is_spot(Node("n", labels={name: value}))
    assert is_spot(Node("n", taints=(Taint(name, value, "NoSchedule"),)))
    assert not is_spot(Node("n", labels={name: "on-demand"}))
    assert not is_spot(Node("n", taints=(Taint(name, "no", "NoSchedule"),)))


@pytest.mark.parametrize(
    ("mark", "value", "spot"), [("a/kind=spot", "spot", 1), ("a/kind=spot", "no", 0), ("a/kind", "any", 1)]
)
def test_a_setting_names_further_labels_and_taints(mark, value, spot):
    state = state_of(Settings(spot_nodes=[mark]))
    nodes = (
        make_node("l", labels={"a/kind": value}),
        replace(make_node("t"), taints=(Taint("a/kind", value, "NoSchedule"),)),
    )
    state.apply([*map(Upserted, nodes), Upserted(make_node("other", labels={"b/kind": value}))])
    assert {spec.name for spec in state.fleet.specs if spec and spec.spot} == ({"l", "t"} if spot else set())


@pytest.mark.parametrize("key", sorted(LEAVING_TAINTS))
def test_a_node_that_is_about_to_be_terminated_takes_nothing(key):
    node = make_node("n")
    for effect, reason in (
        ("NoSchedule", Reason.LEAVING),
        ("NoExecute", Reason.LEAVING),
        ("PreferNoSchedule", Reason.FITS),
    ):
        tainted = replace(node, taints=(Taint(key, "", effect),))
        assert is_leaving(tainted) == (reason == Reason.LEAVING)
        assert why(make_state(tainted), make_pod("a"), "n") == reason


@pytest.mark.parametrize(
    "key",
    ["DeletionCandidateOfClusterAutoscaler", "aws-node-termination-handler/rebalance-recommendation", "x"],
)
def test_a_forecast_of_an_interruption_does_not_close_a_node(key):
    assert not is_leaving(Node("n", taints=(Taint(key, "", "NoSchedule"),)))


def inventory_state(*objects):
    state = make_state(*objects)
    state.policy = POLICIES["inventory"]()
    return state


def test_each_pod_goes_to_the_kind_of_node_that_it_prefers():
    state = inventory_state(make_node("s", 2, labels=SPOT), make_node("d", 4))  # "s" is the better fit
    for gpus in (1, 2):
        assert best_of(state, restartable(gpus=gpus), ["d", "s"]) == "s"
        assert best_of(state, make_pod("p", gpus), ["d", "s"]) == "d"
    state.spot = "ignore"
    assert {best_of(state, pod, ["d", "s"]) for pod in (make_pod("p", 2), restartable(gpus=2))} == {"s"}


def test_queue_and_annotation_say_who_is_restartable():
    state = inventory_state(make_node("s", 4, labels=SPOT), make_node("d", 4))
    backfill = {"stowage.dev/queue": "backfill"}
    assert best_of(state, make_pod("a", labels=backfill), ["d", "s"]) == "s"
    assert best_of(state, make_pod("a", labels={"stowage.dev/queue": "interactive"}), ["d", "s"]) == "d"
    refuses = make_pod("a", labels=backfill, annotations={RESTARTABLE: "false"})
    assert best_of(state, refuses, ["d", "s"]) == "d"
    unclear = make_pod("a", labels=backfill, annotations={RESTARTABLE: "maybe" * 1000})
    assert best_of(state, unclear, ["d", "s"]) == "s"


def test_required_pods_that_are_not_restartable_get_no_spot_node():
    state = make_state(make_node("s", labels=SPOT), make_node("d", 1))
    state.spot = "require"
    pod = make_pod("a", 2)
    assert why(state, pod, "s") == Reason.ON_SPOT
    assert reason_on(state, pod, request_of(pod), "s") == Reason.ON_SPOT
    assert why(state, pod, "d") == Reason.TOO_FEW_GPUS
    assert why(state, pod, "unknown") == Reason.UNKNOWN_NODE
    assert why(state, restartable(gpus=2), "s") == Reason.FITS
    state.apply([Upserted(make_pod("full", 8, node_name="s"))])
    assert why(state, pod, "s") == Reason.ON_SPOT  # so nobody is evicted there
    assert why(state, restartable(gpus=2), "s") == Reason.NO_FREE_GPUS
    state.apply([Deleted("Pod", "default/full")])
    state.spot = "prefer"
    assert why(state, pod, "s") == Reason.FITS


def test_no_eviction_makes_room_on_a_node_that_leaves():
    node = make_node("n", 1)
    state = make_state(node, make_pod("old", 1, node_name="n"))
    pod, row = make_pod("new"), state.fleet.rows["n"]
    held = tuple(state.pods.allocations_of(state.pods["default/old"]))
    victims = [Victim(held, (1.0,))]
    assert search_among(state.fleet, request_of(pod), victims, row=row) is not None
    state.apply([Upserted(replace(node, taints=LEAVING))])
    held = tuple(state.pods.allocations_of(state.pods["default/old"]))
    assert search_among(state.fleet, request_of(pod), [Victim(held, (1.0,))], row=row) is None


def test_a_fault_in_the_preference_refuses_no_pod(monkeypatch):
    state = inventory_state(make_node("s", 4, labels=SPOT), make_node("d", 4))
    monkeypatch.setattr(evaluate_module, "spot_costs", lambda *arguments: 1 / 0)
    pod = make_pod("p")
    assert (evaluate(state, pod, request_of(pod), NodeNames.of(["s", "d"])).codes == Reason.FITS).all()
    assert state.failures.counts["rank"] == 1
