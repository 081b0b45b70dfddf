"""MIG tables by mask agree with brute force, and instances never overlap."""

from functools import reduce
from itertools import chain, combinations
from operator import or_

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.mask_tables import best_fill, expected_slots, fill_by_mask
from bench.packing.mig import POLICIES, ProfileMix
from bench.packing.mig_masks import MigMasks
from bench.packing.pattern_bounds import worth_by_patterns
from packing.model.gpu_catalog import find_model
from tests.examples import examples
from tests.packing.cost.test_pattern_lp import lp_over

COMPUTE = (1, 2, 3, 4, 7)
A100 = MigMasks.of(find_model("NVIDIA-A100-SXM4-80GB").geometry, COMPUTE)
FREQUENCY = np.array([0.5, 0.25, 0.15, 0.05, 0.05])


@st.composite
def geometries(draw):
    """Up to three profiles with up to three starts each on six slices."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    starts = []
    for size in sizes:
        first = draw(st.lists(st.integers(0, 6 - size), min_size=1, max_size=3, unique=True))
        starts.append(tuple(((1 << size) - 1) << start for start in first))
    return MigMasks(6, tuple(starts), tuple(starts))


def layouts(windows):
    """Every set of disjoint windows, the slow way: (mask, profiles)."""
    flat = [(t, window) for t, starts in enumerate(windows.starts) for window in starts]
    for chosen in chain.from_iterable(combinations(flat, size) for size in range(len(flat) + 1)):
        mask = reduce(or_, (window for _, window in chosen), 0)
        if mask.bit_count() == sum(window.bit_count() for _, window in chosen):
            yield mask, [t for t, _ in chosen]


@settings(max_examples=examples(40))
@given(geometries(), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_fill_by_mask_is_the_best_of_all_sets_of_windows(windows, worth):
    worth = np.array(worth[: len(windows.starts)])
    table, sets = best_fill(windows, worth), list(layouts(windows))
    for mask in range(64):
        best = max(sum(worth[t] for t in kinds) for taken, kinds in sets if not taken & mask)
        assert table[mask] == pytest.approx(best)


@settings(max_examples=examples(40))
@given(geometries())
def test_slots_and_patterns_are_those_of_all_sets_of_windows(windows):
    sets = list(layouts(windows))
    assert len(list(windows.layouts())) == len(sets)
    for t in range(len(windows.starts)):
        alone = [(taken, kinds) for taken, kinds in sets if set(kinds) <= {t}]
        for mask in range(64):
            assert windows.slots[t, mask] == max(len(kinds) for taken, kinds in alone if not taken & mask)
    counts = {tuple(kinds.count(t) for t in range(len(windows.starts))) for _, kinds in sets}
    patterns = {tuple(pattern) for pattern in windows.patterns.tolist()}
    assert patterns <= counts
    assert all(any((np.array(p) >= c).all() for p in patterns) for c in counts)


@settings(max_examples=examples(40))
@given(geometries(), st.lists(st.floats(0, 3), min_size=3, max_size=3))
def test_the_lp_over_maximal_patterns_is_that_over_all_layouts(windows, demand):
    """Also where nobody asks for a profile that every maximal pattern has."""
    kinds = len(windows.starts)
    values, demand = windows.sizes / 6, np.array(demand[:kinds])
    counts = np.array([[held.count(t) for t in range(kinds)] for _, held in layouts(windows)])
    exact = lp_over(counts.T, values, demand)
    worth, optimum = worth_by_patterns(windows.patterns, values, demand)
    assert optimum == pytest.approx(exact, abs=1e-6)
    assert demand @ (values - worth) + (counts @ worth).max() == pytest.approx(exact, abs=1e-6)


def test_the_tables_match_the_known_geometry():
    assert A100.slots[:, 0].tolist() == [7, 3, 2, 1, 1]
    assert A100.slots[:, 0b00000001].tolist() == [6, 2, 1, 0, 0]
    patterns = {tuple(p) for p in A100.patterns.tolist()}
    assert {(7, 0, 0, 0, 0), (1, 3, 0, 0, 0), (0, 0, 2, 0, 0), (0, 0, 1, 1, 0), (0, 0, 0, 0, 1)} <= patterns
    assert (0, 1, 2, 0, 0) not in patterns


def test_slots_and_fill_never_rise_by_placing():
    fill = fill_by_mask(A100, np.array(COMPUTE) / 7, FREQUENCY)
    for mask in range(256):
        for window in (window for starts in A100.starts for window in starts if not window & mask):
            assert (A100.slots[:, mask | window] <= A100.slots[:, mask]).all()
            assert fill[mask | window] <= fill[mask]


def test_slots_to_come_count_what_may_leave():
    soon = expected_slots(A100, FREQUENCY)
    assert soon[:, 0].tolist() == A100.slots[:, 0].tolist()
    one, full = 0b01000000, 0b11111111
    assert 0 < soon[4, full] < soon[4, one] < 1  # one small instance is sooner gone than all that fill a GPU
    assert soon[4, one] == pytest.approx(0.1)  # a 1g alone


def test_mfi_counts_profiles_that_nobody_asks_for():
    """1g with double memory: windows of two slices at 0, 2, 4 and 6. The mask hits one of them, one 1g, the
    2g and the 3g at 4; 7g would not fit in seven slices."""
    assert A100.blocked[0b00010000] == 1 + 2 + 2 + 4


@settings(max_examples=examples(30))
@given(st.sampled_from(POLICIES), st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_instances_never_overlap_and_never_take_more_than_the_gpu_has(policy, steps):
    host, held = ProfileMix("m", A100, COMPUTE, FREQUENCY, gpus=2).host(policy), []
    for leaves, which in steps:
        if leaves and held:
            host.leave(held.pop(which % len(held))[1])
            continue
        kind = which % len(COMPUTE)
        placed = host.place(kind)
        taken = [[window for _, (gpu, window) in held if gpu == one] for one in range(2)]
        room = any(not any(start & w for w in on) for on in taken for start in A100.starts[kind])
        assert (placed is not None) == room
        if placed is not None:
            held.append((kind, placed))
            assert placed[1] in A100.starts[kind]
    for one in range(2):
        mine = [(kind, window) for kind, (gpu, window) in held if gpu == one]
        assert sum(COMPUTE[kind] for kind, _ in mine) <= 7
        assert sum(window for _, window in mine) == reduce(or_, (window for _, window in mine), 0)
