"""The policy learns from arrivals, once from each, and its tables follow in the background."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender import planner
from extender.objects import Deleted, Upserted
from extender.planner import Planner
from extender.state import State
from packing.policies import POLICIES
from tests.extender.builders import make_node, make_pod


@pytest.fixture
def state() -> State:
    state = State(POLICIES["inventory"]())
    state.apply([Upserted(make_node(f"n{i}")) for i in range(4)])
    return state


def test_each_pod_teaches_once(state):
    pod = make_pod("p", 2)
    state.apply([Upserted(pod), Upserted(replace(pod, node_name="n0")), Upserted(make_pod("cpu-only", 0))])
    assert state.learnt == 1
    state.apply([Deleted("Pod", pod.key), Upserted(replace(pod, uid="another"))])
    assert state.learnt == 2


async def test_the_plan_follows_what_was_learnt(state, monkeypatch):
    planned = []
    monkeypatch.setattr(state.policy, "adopt", lambda fleet, tables: planned.append(tables))
    monkeypatch.setattr(planner, "LEARNT", 3)
    looks = Planner(state)
    for new, enough in ((1, True), (1, True), (1, False), (1, True), (2, False), (1, True)):
        # As many as are known will do, and three in any case.
        state.apply([Upserted(make_pod(f"p{state.learnt + i}", 1)) for i in range(new)])
        before = len(planned)
        await looks.look()
        assert (len(planned) > before) == enough, (state.learnt, new)


async def test_a_plan_that_fails_changes_nothing(state, caplog, monkeypatch):
    def fail(fleet):
        raise ArithmeticError

    monkeypatch.setattr(state.policy, "plan", fail)
    state.apply([Upserted(make_pod("p", 8))])
    await Planner(state).look()
    assert "could not be brought up to date" in caplog.text
