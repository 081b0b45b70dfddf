"""What is recommended on mixed fleets gives what it promises."""

import pytest

from bench.packing.mixed_fleets import moves


@pytest.mark.parametrize("seed", [1, 3])
def test_moves_are_carried_out_in_any_order_and_nobody_gets_a_weaker_device(seed):
    found = moves(seed, 0.7, arrivals=40)
    assert found.helped >= 2
    assert found.moves > found.helped
    assert not found.problems
    assert not found.weaker
