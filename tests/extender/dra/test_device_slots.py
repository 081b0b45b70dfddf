"""What devices that exclude each other have room for, against the tables of MIG's geometry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.mig_masks import MigMasks
from extender.dra.device_slots import Shape, counts, lost, prices, room
from packing.model.gpu_catalogue import find_model

MODEL = find_model("NVIDIA-H100-80GB-HBM3")
assert MODEL is not None
assert MODEL.geometry is not None
COMPUTE = (1, 2, 3, 4, 7)
WINDOWS = MigMasks.of(MODEL.geometry, COMPUTE)
SLICES = WINDOWS.slices
# A pool of one GPU: counters are its memory slices, and its compute slices as an amount.
PARTS = [(c, window) for c, windows in zip(COMPUTE, WINDOWS.starts, strict=True) for window in windows]
SHAPE = Shape.of(
    tuple(compute for compute, _ in PARTS),
    tuple(
        (*((n, 1) for n in range(SLICES) if window >> n & 1), (SLICES, compute)) for compute, window in PARTS
    ),
    (0,) * (SLICES + 1),
)


@given(st.integers(0, (1 << SLICES) - 1))
def test_the_room_of_a_gpu_is_what_its_geometry_allows(mask):
    left = (*(1 - (mask >> n & 1) for n in range(SLICES)), 100)
    found = counts(SHAPE, frozenset(), left)
    assert [found.get(compute, 0) for compute in COMPUTE] == WINDOWS.slots[:, mask].tolist()


@given(st.lists(st.integers(0, len(PARTS) - 1), max_size=4, unique=True), st.integers(0, 7))
def test_amounts_bound_the_number_and_the_taken_do_not_count(taken, compute_left):
    free = counts(SHAPE, frozenset(taken), (*[1] * SLICES, compute_left))
    assert all(count <= compute_left // compute for compute, count in free.items())
    for compute in COMPUTE:
        there = [i for i, (c, _) in enumerate(PARTS) if c == compute and i not in taken]
        assert (free.get(compute, 0) > 0) == (bool(there) and compute <= compute_left)


def test_whole_gpus_are_counted_in_groups():
    shape = Shape.of(("gpu",) * 7, ((),) * 7, ())
    assert shape.sizes(()) == {"gpu": 1.0}
    found = room([counts(shape, frozenset(), ())], {"gpu": 1.0})
    assert found == {("gpu", 1): 7, ("gpu", 2): 3, ("gpu", 4): 1}


def test_the_size_of_a_part_is_its_share_of_the_counters():
    sizes = SHAPE.sizes((*[1] * SLICES, 7))
    assert sizes[7] == pytest.approx(1.0)
    assert sizes[1] == pytest.approx((1 + 1 / 7) / 9)
    assert sizes[1] < sizes[2] < sizes[3] < sizes[4]


@given(st.sets(st.integers(0, len(PARTS) - 1), max_size=3), st.integers(0, len(PARTS) - 1))
def test_taking_something_never_pays(taken, device):
    sizes = SHAPE.sizes((*[1] * SLICES, 7))
    full = (*[1] * SLICES, 7)
    before = room([counts(SHAPE, frozenset(taken), full)], sizes)
    left = list(full)
    for counter, amount in SHAPE.consumes[device]:
        left[counter] -= amount
    after = room([counts(SHAPE, frozenset(taken) | {device}, tuple(left))], sizes)
    assert all(n > 0 for _, n in lost(before, after))
    assert lost(before, before) == ()
    worth = prices(before, sizes)
    assert all(0 < worth[slot] <= sizes[slot[0]] * slot[1] for slot, _ in lost(before, after))
