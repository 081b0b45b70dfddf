"""PriorityClasses and PodDisruptionBudgets in the state: from a watch, from a snapshot, by the settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.cluster.factory import state_of
from extender.k8s.admission_objects import PodDisruptionBudget
from extender.k8s.objects import Deleted, Listed, Upserted
from extender.queues.rights import WhyNot
from extender.source.list_watch import ListWatch
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.source.watched_kinds import WATCHED_KINDS
from tests.extender.builders import make_node, make_pod, make_settings, make_state

SECONDS = "preemption-toleration.scheduling.x-k8s.io/toleration-seconds"
CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "night", "labels": {"stowage.dev/queue": "backfill"}},
    "value": 10,
}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "b", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "x"}}},
    "status": {"disruptionsAllowed": 0},
}
VICTIM = make_pod("victim", priority=10, priority_class="night", labels={"app": "x"}, phase="Running")


def test_a_snapshot_holds_them() -> None:
    snapshot, state = Snapshot(), make_state()
    snapshot.add(json.dumps({"kind": "List", "items": [CLASS, BUDGET]}), "cluster.json")
    snapshot.add(
        json.dumps({"kind": "PriorityClassList", "items": [{"metadata": {"name": "other"}}]}), "b.json"
    )
    assert not snapshot.problems
    SnapshotSource(snapshot, "test").start(state.apply)
    assert state.rights.queues.name_of(VICTIM) == "backfill"
    assert state.budgets.violations([VICTIM]) == (True,)


@pytest.mark.parametrize(("kind", "manifest"), [("PriorityClass", CLASS), ("PodDisruptionBudget", BUDGET)])
def test_a_watch_brings_and_removes_them(kind: Any, manifest: dict[str, Any]) -> None:
    def known() -> tuple[str, tuple[bool, ...]]:
        return state.rights.queues.name_of(VICTIM), state.budgets.violations([VICTIM])

    watch, state = ListWatch(WATCHED_KINDS[kind]), make_state(make_node("n"))
    nothing = known()
    watch.next_request()
    page = {"metadata": {"resourceVersion": "1"}, "items": [manifest]}
    state.apply(watch.page(json.dumps(page).encode()))
    something = known()
    assert something != nothing
    assert kind in state.synced
    watch.next_request()
    state.apply(watch.chunk(json.dumps({"type": "DELETED", "object": manifest}).encode() + b"\n"))
    assert known() == nothing
    state.apply(watch.chunk(json.dumps({"type": "ADDED", "object": manifest}).encode() + b"\n"))
    assert known() == something
    state.apply([Listed(kind, frozenset())])
    assert known() == nothing
    state.apply([Deleted(kind, "unknown")])


def test_what_cannot_be_read_is_a_problem() -> None:
    state = make_state()
    (broken,) = ListWatch(WATCHED_KINDS["PriorityClass"]).page(
        json.dumps(
            {
                "metadata": {"resourceVersion": "1"},
                "items": [{"metadata": {"name": "c", "annotations": {SECONDS: "x"}}}],
            }
        ).encode()
    )[:1]
    state.apply([broken, Upserted(PodDisruptionBudget("d", "b", problem="selector is too large to be read"))])
    assert sorted(state.problems) == ["PodDisruptionBudget d/b", "PriorityClass c"]


def test_the_settings_make_the_rights() -> None:
    kueue = make_pod("k", labels={"kueue.x-k8s.io/managed": "true"})
    preemptor = make_pod("p", priority=1)
    for evict, why in ((False, WhyNot.KUEUE), (True, "")):
        state = state_of(make_settings(evict_kueue_pods=evict))
        assert state.rules_for(preemptor, 0.0).why_not([kueue]) == [why]
    assert state_of(make_settings(queues={"a": {}})).rights.queues.by_name.keys() == {"a"}
