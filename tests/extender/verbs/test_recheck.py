"""A refusal waits for a change that would turn it, and all refusals together wait within a budget."""

from __future__ import annotations

import asyncio

from extender.verbs.recheck import RefusalRecheck

SOON = 0.001  # seconds


class Node:
    """Refuses until it has room."""

    room = False
    asked = 0

    def fits(self) -> bool:
        self.asked += 1
        return self.room


def refused(fits: bool) -> bool:
    return not fits


def make_room(node: Node, recheck: RefusalRecheck) -> None:
    node.room = True
    recheck.state_changed()


async def asked(node: Node, times: int) -> None:
    while node.asked < times:
        await asyncio.sleep(0)


async def test_a_change_turns_a_refusal() -> None:
    node, recheck = Node(), RefusalRecheck(longest=60)
    waiting = asyncio.create_task(recheck.evaluate(node.fits, refused))
    await asked(node, 1)
    recheck.state_changed()  # of something else
    await asked(node, 2)
    make_room(node, recheck)
    assert await waiting
    assert node.asked == 3
    assert recheck.outcomes == {"accepted": 1}


async def test_what_fits_does_not_wait() -> None:
    node, recheck = Node(), RefusalRecheck(longest=60)
    node.room = True
    assert await recheck.evaluate(node.fits, refused)
    assert node.asked == 1
    assert recheck.outcomes == {}


async def test_a_refusal_stands_without_a_change() -> None:
    node, recheck = Node(), RefusalRecheck(longest=SOON)
    assert not await recheck.evaluate(node.fits, refused)
    assert node.asked == 1
    assert recheck.outcomes == {"no_news": 1}


async def test_a_change_that_does_not_help_is_told_from_none() -> None:
    node, recheck = Node(), RefusalRecheck(longest=0.05)
    asyncio.get_running_loop().call_soon(recheck.state_changed)
    assert not await recheck.evaluate(node.fits, refused)
    assert recheck.outcomes == {"refused_again": 1}


async def test_an_earlier_change_does_not_count() -> None:
    node, recheck = Node(), RefusalRecheck(longest=SOON)
    recheck.state_changed()
    assert not await recheck.evaluate(node.fits, refused)
    assert node.asked == 1


async def test_refusals_that_wait_in_vain_spend_a_budget() -> None:
    node, recheck = Node(), RefusalRecheck(longest=SOON)
    for _ in range(20):
        await recheck.evaluate(node.fits, refused)
    asyncio.get_running_loop().call_soon(make_room, node, recheck)
    assert not await recheck.evaluate(node.fits, refused)
    assert recheck.outcomes["not_rechecked"] > 0
    assert recheck.outcomes.total() == 21


async def test_nothing_waits_where_the_state_does_not_change() -> None:
    node, recheck = Node(), RefusalRecheck(longest=0)
    asyncio.get_running_loop().call_soon(make_room, node, recheck)
    assert not await recheck.evaluate(node.fits, refused)
