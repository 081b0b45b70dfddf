"""Events are applied in their order, a slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import thread_time

from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.objects import Deleted, Event, Upserted
from extender.server.between_answers import _AT_ONCE, _LONGEST_SLICE, _SLICE, EventQueue
from extender.untrusted.limits import WAITING_EVENTS
from tests.extender.builders import make_node

PORTIONS = st.lists(st.lists(st.integers(0, 99), max_size=20), max_size=20)


def events(count: int) -> list[Event]:
    return [Deleted("Pod", f"default/p{number}") for number in range(count)]


def spend(seconds: float) -> None:
    until = thread_time() + seconds
    while thread_time() < until:
        pass


def slowly(applied: list[Event], seconds: float) -> Callable[[Sequence[Event]], None]:
    def apply(some: Sequence[Event]) -> None:
        spend(seconds)
        applied.extend(some)

    return apply


async def opened(apply: Callable[[Sequence[Event]], None], *, is_ready: bool = True) -> EventQueue:
    queue = EventQueue(lambda: is_ready)
    await queue.open(apply)
    return queue


@given(PORTIONS, st.booleans())
def test_the_order_is_kept(portions: list[list[int]], is_ready: bool) -> None:
    sent = [[Deleted("Pod", f"default/p{number}") for number in portion] for portion in portions]

    async def run() -> list[Event]:
        applied: list[Event] = []
        queue = EventQueue(lambda: is_ready)
        if not sent:
            await queue.open(applied.extend)
        for number, portion in enumerate(sent):
            if number == len(sent) // 2:
                assert not applied  # nothing could apply them
                await queue.open(slowly(applied, _SLICE))
            queue.put(portion)
        await queue.applied()
        return applied

    assert asyncio.run(run()) == [event for portion in sent for event in portion]


async def test_few_events_are_applied_at_once() -> None:
    applied: list[Event] = []
    queue = await opened(applied.extend)
    queue.put(events(2))
    await asyncio.sleep(0)
    assert applied == events(2)


async def test_others_run_between_two_slices() -> None:
    applied: list[Event] = []
    seen: list[int] = []
    queue = await opened(slowly(applied, _SLICE))
    queue.put(events(400))
    while len(applied) < 400:
        await asyncio.sleep(0)
        seen.append(len(applied))
    assert len(seen) > 10
    assert max(after - before for before, after in pairwise(seen)) < 100


async def test_events_get_half_of_the_time() -> None:
    """Else many requests at a time could hold them up for ever."""
    applied: list[Event] = []
    queue = await opened(slowly(applied, _SLICE))
    queue.put(events(4000))
    await asyncio.sleep(0)
    for _ in range(3):
        before = len(applied)
        spend(20 * _SLICE)  # as requests do
        await asyncio.sleep(0)
        assert len(applied) - before >= 40  # ten times what a slice takes at least


async def test_at_a_start_slices_are_longer() -> None:
    applied: list[Event] = []
    queue = await opened(slowly(applied, _SLICE), is_ready=False)
    queue.put(events(1000))
    await asyncio.sleep(0)
    assert len(applied) == 1000


async def test_what_threads_have_delivered_is_applied_on_demand() -> None:
    applied: list[Event] = []
    queue = await opened(slowly(applied, _SLICE))
    await asyncio.to_thread(queue.put, events(200))
    await queue.applied()
    assert applied == events(200)


async def test_those_who_wait_do_not_make_slices_longer() -> None:
    applied: list[Event] = []
    queue = await opened(slowly(applied, _SLICE))
    queue.put(events(1000))
    waits = [asyncio.create_task(queue.applied()) for _ in range(30)]
    seen = [0]
    while len(applied) < 1000:
        await asyncio.sleep(0)
        seen.append(len(applied))
    assert max(after - before for before, after in pairwise(seen)) <= 2 * _AT_ONCE * _LONGEST_SLICE / _SLICE
    assert all(await asyncio.gather(*waits))


async def test_one_long_request_does_not_make_a_long_slice() -> None:
    applied: list[Event] = []
    queue = await opened(slowly(applied, _SLICE))
    queue.put(events(1000))
    await asyncio.sleep(0)
    spend(0.1)
    await asyncio.sleep(0)
    assert len(applied) <= _AT_ONCE * (1 + _LONGEST_SLICE / _SLICE)


async def test_who_waits_does_not_wait_for_later_events_nor_longer_than_wanted() -> None:
    queue = await opened(lambda some: queue.put(events(len(some))))  # each brings another one
    queue.put(events(100))
    assert await queue.applied()
    assert not await queue.applied(0.0)


async def test_there_is_room_for_a_limited_number_of_events_of_each_kind() -> None:
    applied: list[Event] = []
    queue = EventQueue(lambda: True)
    queue.put(events(2 * WAITING_EVENTS))
    assert queue.has_room("Pod")  # the first lists, while kernels are loaded
    await queue.open(slowly(applied, _SLICE))
    queue.put(events(WAITING_EVENTS - 1))
    assert queue.has_room("Pod")
    queue.put([*events(1), Deleted("Node", "n")])
    assert not queue.has_room("Pod")
    assert queue.has_room("Node")
    while not queue.has_room("Pod"):
        await asyncio.sleep(0)
    await queue.applied()
    assert applied[-1] == Deleted("Node", "n")


async def test_the_age_is_that_of_the_first_event_of_the_oldest_object() -> None:
    now = 10.0
    queue = EventQueue(lambda: True, lambda: now)
    assert queue.age() == 0.0
    node, other = Upserted(make_node("n")), Upserted(make_node("other"))
    queue.put([node])
    now = 13.0
    queue.put([other, node])
    assert queue.age() == 3.0
    await queue.open(lambda events: None)
    assert queue.age() == 0.0


async def test_an_error_does_not_stop_the_queue() -> None:
    applied: list[Event] = []

    def apply(some: Sequence[Event]) -> None:
        applied.extend(some)
        spend(_SLICE)
        if len(applied) < 9:
            raise RuntimeError("once or twice")

    queue = await opened(apply)
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    asyncio.get_running_loop().call_soon(queue.put, events(100))
    while len(applied) < 100:
        await asyncio.sleep(0)
    assert applied == events(100)
    assert problems
