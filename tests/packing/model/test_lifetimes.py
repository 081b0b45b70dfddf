"""How long pods run and when nodes get empty: beside a slow integral of the formula, and what heals."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from packing.model.lifetimes import (
    FEWEST,
    HORIZON,
    MOST_KINDS,
    LastEnds,
    Lifetime,
    Lifetimes,
    Running,
    normal_hazard,
)
from tests.examples import examples


def taught(**runs: list[float]) -> LastEnds:
    ends = LastEnds()
    for kind, seconds in runs.items():
        for one in seconds:
            ends.lifetimes.ended((kind,), one)
    return ends


SHORT, LONG = [600.0, 700, 500, 600, 650], [6000.0, 7000, 5000, 6000, 6500]


def prolonged(ends: LastEnds, kind: str, now: float = 0.0) -> tuple[dict[str, float], float]:
    ends.update(now, len(ends.places))
    result = ends.prolonged(kind)
    assert result is not None
    by_place, empty = result
    return {node: float(by_place[place]) for node, place in ends.places.items()}, empty


def survival(x: float, lifetime: Lifetime) -> float:
    return 1 / (1 + (x / lifetime.median) ** lifetime.shape)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from(["short", "long"]), st.floats(0, 20_000)), max_size=5))
def test_the_end_of_a_node_is_prolonged_as_the_formula_says(pods):
    ends = taught(short=SHORT, long=LONG)
    for number, (kind, age) in enumerate(pods):
        ends.starts(str(number), Running("n", (kind,), -age))
    ends.starts("other", Running("other", ("short",), 0.0))
    mean, own = ends.lifetimes.mean, ends.lifetimes.of("long")
    total, before = 0.0, 0.0
    for part in HORIZON:
        x, done = part * mean, 1.0
        for kind, age in pods:
            lifetime = ends.lifetimes.of(kind)
            done *= 1 - survival(age + x, lifetime) / survival(age, lifetime)
        total += (part - before) * survival(x, own) * done
        before = part
    by_node, empty = prolonged(ends, "long")
    assert (by_node["n"] if pods else empty) == pytest.approx(total, rel=1e-6)


def test_a_pod_goes_where_others_run_as_long():
    ends = taught(short=SHORT, long=LONG)
    ends.starts("a", Running("short", ("short",), 0.0))
    ends.starts("b", Running("long", ("long",), 0.0))
    by_node, empty = prolonged(ends, "long")
    assert by_node["long"] < by_node["short"] < empty
    ends.leaves("a")
    assert prolonged(ends, "long")[0]["short"] == pytest.approx(empty)


def test_a_pod_that_outlived_its_kind_is_expected_to_go_on():
    ends = taught(short=SHORT, long=LONG)
    ends.starts("old", Running("old", ("short",), -50_000.0))
    ends.starts("new", Running("new", ("short",), 0.0))
    by_node, _ = prolonged(ends, "short")
    assert by_node["old"] < by_node["new"]
    before = prolonged(ends, "long", 0.0)[0]["new"]
    assert prolonged(ends, "long", 5_000.0)[0]["new"] < before  # it should have ended long ago


def test_a_kind_is_known_once_enough_have_ended_and_eviction_teaches_nothing():
    ends = LastEnds()
    for number in range(FEWEST):
        assert ends.prolonged("k") is None
        ends.starts("p", Running("n", ("k",), 0.0))
        ends.leaves("p")  # evicted
        ends.starts("p", Running("n", ("k",), 0.0))
        ends.leaves("p", 100.0 + number)
    assert prolonged(ends, "k")[1] == pytest.approx(1, abs=0.25)
    assert ends.prolonged("unknown") is None


@given(st.floats(100, 1e7), st.floats(0.2, 1.5), st.integers(0, 99))
@settings(max_examples=examples(20))
def test_median_and_spread_are_learned(median, sigma, seed):
    lifetimes, rng = Lifetimes(), random.Random(seed)
    for _ in range(200):
        lifetimes.ended(("k",), median * math.exp(rng.gauss(0, sigma)))
    known = lifetimes.of("k")
    assert abs(math.log(known.median / max(median, 1))) < max(sigma, 0.3)
    assert known.shape == pytest.approx(math.pi / math.sqrt(3) / sigma, rel=0.7)


@given(st.floats(100, 1e5), st.floats(0.3, 1.2))
@settings(max_examples=examples(20))
def test_while_the_longest_still_run_the_median_is_no_less_true(median, sigma):
    lifetimes, spread = Lifetimes(), NormalDist(math.log(median), sigma)
    runs = [math.exp(spread.inv_cdf((number + 0.5) / 40)) for number in range(40)]
    for seconds in runs:
        if seconds <= median:
            lifetimes.ended(("k",), seconds)
    too_early = lifetimes.of("k").median
    lifetimes.count_running({"k": [median] * sum(seconds > median for seconds in runs)})
    counted = lifetimes.of("k").median
    assert too_early < 0.85 * median
    assert math.log(counted / median) == pytest.approx(0, abs=0.2)


@given(st.lists(st.floats(10, 1e5), min_size=FEWEST, max_size=30), st.lists(st.floats(0, 1e6), max_size=30))
@settings(max_examples=examples(40))
def test_pods_that_run_only_lengthen_what_is_expected(ended, ages):
    lifetimes = taught(k=ended).lifetimes
    before = lifetimes.of("k")
    lifetimes.count_running({"k": ages, "other": [1e9]})
    after = lifetimes.of("k")
    assert after.median >= before.median * (1 - 1e-9)
    assert math.isfinite(after.median)
    assert 0 < after.shape < math.inf
    lifetimes.count_running({})
    assert lifetimes.of("k") == before


def test_pods_that_run_are_counted_by_each_of_their_kinds():
    ends = taught(k=SHORT, all=SHORT)
    before = ends.lifetimes.of("k")
    for number in range(10):
        ends.starts(str(number), Running("n", ("k", "all"), 0.0))
    ends.count_running(1_000.0)
    assert ends.lifetimes.of("k") == ends.lifetimes.of("all")
    assert ends.lifetimes.of("k").median > before.median


def test_kinds_and_nodes_are_bounded():
    ends = LastEnds()
    for number in range(MOST_KINDS + 10):
        for _ in range(FEWEST):
            ends.lifetimes.ended((number,), 10.0)
    assert ends.lifetimes.of(0) is None
    assert ends.lifetimes.of(MOST_KINDS) is not None
    for number in range(300):
        ends.starts("p", Running(f"n{number}", (5000,), 0.0))
    ends.keep({"n7"})
    assert set(ends.places) == {"n7", "n299"}  # a pod runs there
    by_node, empty = prolonged(ends, MOST_KINDS)
    assert by_node["n7"] == pytest.approx(empty) != by_node["n299"]


@given(st.lists(st.floats(-300, 1e6), min_size=1, max_size=20))
def test_the_hazard_is_that_of_scipy(at: list[float]) -> None:
    off = np.array(at)
    expected = np.exp(-(off**2) / 2 - math.log(2 * math.pi) / 2 - log_ndtr(-off))
    close = np.isclose(normal_hazard(off), expected, rtol=1e-5, atol=1e-300)
    assert close[off < 1e5].all()  # beyond, scipy's difference of logarithms is rounded
    assert (normal_hazard(off) >= off).all()


@pytest.mark.parametrize(("runs_vary", "fractions_vary"), [(2.0, 0.1), (0.1, 2.0)])
def test_with_a_limit_the_run_time_follows_what_varies_less(runs_vary, fractions_vary):
    """Run times of a kind, or the fractions of their declared limits."""
    lifetimes, rng = Lifetimes(), random.Random(1)
    for _ in range(50):
        seconds = 1000 * math.exp(rng.gauss(0, runs_vary))
        lifetimes.ended(("k",), seconds, seconds / (0.4 * math.exp(rng.gauss(0, fractions_vary))))
    usual, limited = lifetimes.of("k"), lifetimes.of("k", limit=50_000.0)
    if fractions_vary < runs_vary:
        assert limited.median == pytest.approx(0.4 * 50_000, rel=0.1)
        assert limited.shape > usual.shape
    else:
        assert limited == usual
    assert lifetimes.of("other", limit=50_000.0) is None
