"""What shards cost, on fleets where the answer is known."""

from __future__ import annotations

import pytest

from bench.packing.shards import allocation, queue_of
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import WHOLE, Request, Shares

NODES = [NodeSpec(f"n{n}", 100_000, 1 << 40, gpus=(Gpu(16_000, divisible=True),) * 4) for n in range(8)]


def whole(count: int) -> Request:
    return Request(1000, 1000, shares=Shares(count, WHOLE, 16_000))


@pytest.mark.parametrize("hashed", [True, False])
def test_one_shard_gives_what_the_fleet_gives(hashed: bool) -> None:
    assert allocation(NODES, [whole(1)] * 32, 1, 0, hashed=hashed) == pytest.approx(100.0)


def test_a_shard_that_is_full_gets_more_pods_at_random_and_drops_them() -> None:
    at_random = allocation(NODES, [whole(1)] * 32, 4, 0, hashed=True)
    freest = allocation(NODES, [whole(1)] * 32, 4, 0, hashed=False)
    assert at_random < freest == pytest.approx(100.0)


def test_the_queue_ends_where_the_capacity_has_arrived() -> None:
    queue = queue_of(NODES, [whole(1), whole(2)], seed=3)
    assert 32 <= sum(request.shares.count for request in queue if request.shares) <= 36
