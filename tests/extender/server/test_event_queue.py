"""Events are applied in their order, a slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import thread_time

from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.objects import Deleted, Event, Upserted
from extender.server.between_answers import _SLICE, EventQueue
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
