"""PriorityClasses and PodDisruptionBudgets in the state: from a watch, from a snapshot, by the settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.k8s.objects import Deleted, Listed
from extender.source.list_watch import ListWatch
from extender.source.watched_kinds import WATCHED_KINDS
from tests.extender.builders import make_node, make_pod, make_state

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
