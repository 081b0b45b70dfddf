"""What devices that exclude each other have room for, against the tables of MIG's geometry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.mig_masks import MigMasks
from extender.dra.device_slots import PoolLayout, lost_slots, slot_prices, slots_of
from packing.model.gpu_catalogue import find_model

MODEL = find_model("NVIDIA-H100-80GB-HBM3")
assert MODEL is not None
assert MODEL.geometry is not None
COMPUTE = (1, 2, 3, 4, 7)
WINDOWS = MigMasks.of(MODEL.geometry, COMPUTE)
SLICES = WINDOWS.slices
# A pool of one GPU: counters are its memory slices, and its compute slices as an amount.
PARTS = [(c, window) for c, windows in zip(COMPUTE, WINDOWS.starts, strict=True) for window in windows]
LAYOUT = PoolLayout(
    tuple(compute for compute, _ in PARTS),
    tuple(
        (*((n, 1) for n in range(SLICES) if window >> n & 1), (SLICES, compute)) for compute, window in PARTS
    ),
    (0,) * (SLICES + 1),
)


@given(st.integers(0, (1 << SLICES) - 1))
def test_free_counts_are_what_the_mig_geometry_allows(mask):
    left = (*(1 - (mask >> n & 1) for n in range(SLICES)), 100)
    found = LAYOUT.free_counts(frozenset(), left)
    assert [found.get(compute, 0) for compute in COMPUTE] == WINDOWS.slots[:, mask].tolist()


@given(st.lists(st.integers(0, len(PARTS) - 1), max_size=4, unique=True), st.integers(0, 7))
def test_amounts_bound_the_counts_and_allocated_devices_do_not_count(taken, compute_left):
    free = LAYOUT.free_counts(frozenset(taken), (*[1] * SLICES, compute_left))
    assert all(count <= compute_left // compute for compute, count in free.items())
    for compute in COMPUTE:
        there = [i for i, (c, _) in enumerate(PARTS) if c == compute and i not in taken]
        assert (free.get(compute, 0) > 0) == (bool(there) and compute <= compute_left)


def test_whole_gpus_are_counted_in_groups():
    layout = PoolLayout(("gpu",) * 7, ((),) * 7, ())
    assert layout.gpu_fractions(()) == {"gpu": 1.0}
    found = slots_of([layout.free_counts(frozenset(), ())], {"gpu": 1.0})
    assert found == {("gpu", 1): 7, ("gpu", 2): 3, ("gpu", 4): 1}


def test_the_fraction_of_a_partition_is_its_share_of_the_counters():
    fractions = LAYOUT.gpu_fractions((*[1] * SLICES, 7))
    assert fractions[7] == pytest.approx(1.0)
    assert fractions[1] == pytest.approx((1 + 1 / 7) / 9)
    assert fractions[1] < fractions[2] < fractions[3] < fractions[4]


@given(st.sets(st.integers(0, len(PARTS) - 1), max_size=3), st.integers(0, len(PARTS) - 1))
def test_an_allocation_never_gains_slots(taken, device):
    fractions = LAYOUT.gpu_fractions((*[1] * SLICES, 7))
    full = (*[1] * SLICES, 7)
    before = slots_of([LAYOUT.free_counts(frozenset(taken), full)], fractions)
    left = list(full)
    for counter, amount in LAYOUT.consumption[device]:
        left[counter] -= amount
    after = slots_of([LAYOUT.free_counts(frozenset(taken) | {device}, tuple(left))], fractions)
    assert all(n > 0 for _, n in lost_slots(before, after))
    assert lost_slots(before, before) == ()
    prices = slot_prices(before, fractions)
    assert all(0 < prices[slot] <= fractions[slot[0]] * slot[1] for slot, _ in lost_slots(before, after))
