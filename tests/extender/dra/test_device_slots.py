"""What devices that exclude each other have room for, against the tables of MIG's geometry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.mig_masks import MigMasks
from extender.dra.pools import (
    DeviceKind,
    PoolLayout,
    lost_slots,
    share_of_counters,
    slot_prices,
    slots_of,
)
from packing.model.gpu_catalog import find_model

MODEL = find_model("NVIDIA-H100-80GB-HBM3")
assert MODEL is not None
assert MODEL.geometry is not None
COMPUTE = (1, 2, 3, 4, 7)
WINDOWS = MigMasks.of(MODEL.geometry, COMPUTE)
SLICES = WINDOWS.slices
# A pool of one GPU: counters are its memory slices, and its compute slices as an amount.
PARTS = [(c, window) for c, windows in zip(COMPUTE, WINDOWS.starts, strict=True) for window in windows]
CONSUMPTION = tuple(
    (*((n, 1) for n in range(SLICES) if window >> n & 1), (SLICES, compute)) for compute, window in PARTS
)
ONE_SET, FULL = (0,) * (SLICES + 1), (*[1] * SLICES, 7)
FRACTIONS = {
    compute: share_of_counters(consumed, ONE_SET, FULL)
    for (compute, _), consumed in zip(PARTS, CONSUMPTION, strict=True)
}
KINDS = {compute: DeviceKind("", "H100", f"{compute}g", part) for compute, part in FRACTIONS.items()}
LAYOUT = PoolLayout(tuple(KINDS[compute] for compute, _ in PARTS), CONSUMPTION, ONE_SET)


@given(st.integers(0, (1 << SLICES) - 1))
def test_free_counts_are_what_the_mig_geometry_allows(mask):
    left = (*(1 - (mask >> n & 1) for n in range(SLICES)), 100)
    found = LAYOUT.free_counts(frozenset(), left)
    assert [found.get(KINDS[compute], 0) for compute in COMPUTE] == WINDOWS.slots[:, mask].tolist()


@given(st.lists(st.integers(0, len(PARTS) - 1), max_size=4, unique=True), st.integers(0, 7))
def test_amounts_bound_the_counts_and_allocated_devices_do_not_count(taken, compute_left):
    free = LAYOUT.free_counts(frozenset(taken), (*[1] * SLICES, compute_left))
    assert all(free.get(kind, 0) <= compute_left // compute for compute, kind in KINDS.items())
    for compute in COMPUTE:
        there = [i for i, (c, _) in enumerate(PARTS) if c == compute and i not in taken]
        assert (free.get(KINDS[compute], 0) > 0) == (bool(there) and compute <= compute_left)


def test_whole_gpus_are_counted_in_groups():
    kind = DeviceKind("", "H100", "gpu", share_of_counters((), (), ()))
    layout = PoolLayout((kind,) * 7, ((),) * 7, ())
    found = slots_of([layout.free_counts(frozenset(), ())])
    assert found == {(kind, 1): 7, (kind, 2): 3, (kind, 4): 1}


def test_the_fraction_of_a_partition_is_its_share_of_the_counters():
    assert FRACTIONS[7] == pytest.approx(1.0)
    assert FRACTIONS[1] == pytest.approx((1 + 1 / 7) / 9)
    assert FRACTIONS[1] < FRACTIONS[2] < FRACTIONS[3] < FRACTIONS[4]


@given(st.sets(st.integers(0, len(PARTS) - 1), max_size=3), st.integers(0, len(PARTS) - 1))
def test_an_allocation_never_gains_slots(taken, device):
    before = slots_of([LAYOUT.free_counts(frozenset(taken), FULL)])
    left = list(FULL)
    for counter, amount in LAYOUT.consumption[device]:
        left[counter] -= amount
    after = slots_of([LAYOUT.free_counts(frozenset(taken) | {device}, tuple(left))])
    assert all(n > 0 for _, n in lost_slots(before, after))
    assert lost_slots(before, before) == ()
    prices = slot_prices(before)
    assert all(0 < prices[slot] <= slot[0].gpu_fraction * slot[1] for slot, _ in lost_slots(before, after))
