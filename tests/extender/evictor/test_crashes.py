"""A replica that dies anywhere in its work costs nobody anything: the next one, which knows only what the API
server has, evicts the rest of the minimum and nobody else."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

from tests.examples import some
from tests.extender.apiserver import ApiServer
from tests.extender.evictor.replica import Start, log, node, nominated, pod

WRITES = 8
"""Of a plan with two victims: nomination, two dry runs, twice eviction and Event, the Event on the pod."""


@pytest.fixture(autouse=True)
def full_nodes(api: ApiServer) -> None:
    """n1 has the two cheaper victims. Those on n2 have a higher priority."""
    for name, priority in (("n1", 0), ("n2", 50)):
        api.put(node(name, gpus=2))
        for number in range(2):
            api.put(pod(f"v-{name}-{number}", name, priority=priority))
    api.put(pod("p", gpus=2))


@pytest.fixture
def start(start: Start) -> Start:
    return partial(start, nomination_seconds=30)


def evicted(api: ApiServer) -> list[str]:
    return sorted(key for _, key, _ in log(api, "evict"))


async def crash_after(start: Start, writes: int) -> None:
    """A replica makes so many writes. Then it is gone, and all that it knew."""
    replica = start()
    replica.leader.lose_after = writes
    await replica.rounds(2)
    replica.source.stop()


CHEAPER = ["ml/v-n1-0", "ml/v-n1-1"]


async def test_how_many_writes_there_are(api: ApiServer, start: Start) -> None:
    await start().rounds(2)
    assert len(api.evictions.log) == WRITES
    assert (evicted(api), nominated(api)) == (CHEAPER, "n1")


@pytest.mark.parametrize(("writes", "cleared"), some(product(range(WRITES + 1), [False, True]), 7))
async def test_a_crash_after_any_write(api: ApiServer, start: Start, writes: int, cleared: bool) -> None:
    await crash_after(start, writes)
    assert len(api.evictions.log) == writes
    if cleared:
        api.put(pod("p", gpus=2))
    second = start()
    await second.rounds(20)
    assert (evicted(api), nominated(api)) == (CHEAPER, "n1")
    for name in CHEAPER:
        api.delete(name)
    api.put(pod("p", "n1", gpus=2, priority=100))
    await second.rounds(20)
    assert evicted(api) == CHEAPER
    assert second.evictor.actions.book.holds == {}


@pytest.mark.parametrize("writes", some(range(1, WRITES)))
async def test_a_crash_after_which_the_pod_needs_no_room(api: ApiServer, start: Start, writes: int) -> None:
    """Another node has room by now: those that the dead replica has not evicted stay."""
    await crash_after(start, writes)
    before = evicted(api)
    api.put(node("n3", gpus=2))
    await start().rounds(20)
    assert evicted(api) == before


@pytest.mark.parametrize("writes", some(range(1, WRITES)))
async def test_a_crash_after_which_the_pod_is_gone(api: ApiServer, start: Start, writes: int) -> None:
    await crash_after(start, writes)
    before = evicted(api)
    api.delete("ml/p")
    await start().rounds(20)
    assert evicted(api) == before
