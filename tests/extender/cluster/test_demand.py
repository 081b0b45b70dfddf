"""Figures of what pods ask for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.demand import SIZES, DemandMonitor, distance, size_of
from extender.cluster.factory import state_of
from extender.k8s.objects import Upserted
from extender.settings import ExpectedRequest
from packing.cost.demand import Mix
from packing.fleet.fleet import Fleet
from packing.model.request import Request, Shares
from tests.extender.builders import GPU, make_node, make_pod, make_settings, make_state

ONE, EIGHT = Request(8000, 64 << 30, ((GPU, 1),)), Request(64_000, 512 << 30, ((GPU, 8),))
weights = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 100), min_size=1).map(
    lambda counts: {Request(ord(name)): count / sum(counts.values()) for name, count in counts.items()}
)


@given(weights, weights, weights)
def test_the_distance_is_a_metric_from_0_to_1(a, b, c) -> None:
    assert distance(a, a) == 0
    assert 0 <= distance(a, b) <= 1 + 1e-9
    assert math.isclose(distance(a, b), distance(b, a))
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


@pytest.mark.parametrize(
    ("gpus", "size"),
    [(0.14, "part"), (0.5, "part"), (1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (8, "5-8"), (9, "9 or more")],
)
def test_sizes(gpus: float, size: str) -> None:
    assert size_of(gpus) == size


def test_the_mix_moves_until_it_is_planned_again() -> None:
    monitor = DemandMonitor(Fleet())
    assert (monitor.moved_since_plan, monitor.moved_since_settings) == (0, None)
    assert monitor.by_size() == dict.fromkeys(SIZES, 0.0)
    for _ in range(10):
        monitor.demand.observe(ONE)
    monitor.planned()
    assert monitor.moved_since_plan == 0
    for _ in range(10):
        monitor.demand.observe(EIGHT)
    assert monitor.moved_since_plan == pytest.approx(0.5, abs=0.001)
    assert monitor.by_size() == {**dict.fromkeys(SIZES, 0.0), "1": pytest.approx(0.5, abs=0.001),
                                 "5-8": pytest.approx(0.5, abs=0.001)}  # fmt: skip
    assert monitor.beside().cpu_milli == pytest.approx(8000)
    assert monitor.beside().memory_mib == pytest.approx(64 << 10)
    monitor.planned()
    assert monitor.moved_since_plan == 0


def test_a_share_counts_by_the_larger_of_its_parts() -> None:
    fleet = make_state(make_node("a", 1)).fleet
    monitor = DemandMonitor(fleet)
    monitor.demand.observe(Request(1000, shares=Shares(1, 250, memory_milli=500)))
    assert monitor.beside().cpu_milli == pytest.approx(2000)
    assert monitor.by_size()["part"] == pytest.approx(1)


def test_how_far_the_mix_has_moved_from_the_settings() -> None:
    monitor = DemandMonitor(Fleet())
    monitor.expect(Mix.of({ONE: 1.0}))
    assert monitor.moved_since_settings == 0
    for _ in range(200):  # as many as the prior counts for
        monitor.demand.observe(EIGHT)
    assert monitor.moved_since_settings == pytest.approx(0.5, abs=0.01)


def test_the_watch_teaches_it_and_the_settings_do() -> None:
    state = make_state(make_node("a", 8))
    state.apply([Upserted(make_pod("p", 2)), Upserted(make_pod("too-large", 9))])
    assert state.learner.monitor.by_size()["2"] == 1
    expected = ExpectedRequest(weight=1, resources={GPU: "4"})
    assert state_of(make_settings(demand=(expected,))).learner.monitor.by_size()["3-4"] == pytest.approx(1)
