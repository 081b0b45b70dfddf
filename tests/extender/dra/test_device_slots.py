"""What devices that exclude each other have room for, against the tables of MIG's geometry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.mig_masks import MigMasks
from extender.dra.pools import (
    DeviceKind,
    PoolLayout,
    share_of_counters,
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


@given(st.lists(st.integers(0, len(PARTS) - 1), max_size=4, unique=True), st.integers(0, 7))
def test_amounts_bound_the_counts_and_allocated_devices_do_not_count(taken, compute_left):
    free = LAYOUT.free_counts(frozenset(taken), (*[1] * SLICES, compute_left))
    assert all(free.get(kind, 0) <= compute_left // compute for compute, kind in KINDS.items())
    for compute in COMPUTE:
        there = [i for i, (c, _) in enumerate(PARTS) if c == compute and i not in taken]
        assert (free.get(KINDS[compute], 0) > 0) == (bool(there) and compute <= compute_left)


def test_the_fraction_of_a_partition_is_its_share_of_the_counters():
    assert FRACTIONS[7] == pytest.approx(1.0)
    assert FRACTIONS[1] == pytest.approx((1 + 1 / 7) / 9)
    assert FRACTIONS[1] < FRACTIONS[2] < FRACTIONS[3] < FRACTIONS[4]
