"""The policy learns from arrivals, once from each, and its tables follow in the background."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extender import planner
from extender.dialects import request_of
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
    monkeypatch.setattr(planner, "LEARNT", 3)
    looks = Planner(state)
    state.apply([Upserted(make_pod("p0", 8))])
    await looks.look()  # one will do the first time: nothing is known yet
    request = request_of(make_pod("small", 1))
    before = state.policy.cost(state.fleet, request).copy()
    state.apply([Upserted(make_pod(f"q{i}", 1)) for i in range(2)])
    await looks.look()  # two more will not, so soon
    np.testing.assert_array_equal(state.policy.cost(state.fleet, request), before)
    state.apply([Upserted(make_pod("q3", 1))])
    await looks.look()
    assert not np.array_equal(state.policy.cost(state.fleet, request), before)


async def test_a_plan_that_fails_changes_nothing(state, caplog, monkeypatch):
    def fail(fleet):
        raise ArithmeticError

    monkeypatch.setattr(state.policy, "plan", fail)
    state.apply([Upserted(make_pod("p", 8))])
    await Planner(state).look()
    assert "could not be brought up to date" in caplog.text
