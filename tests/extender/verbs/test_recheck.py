"""A refusal that news would turn is not given, and refusals do not cost more time than they may."""

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


def make_room(node: Node, patience: RefusalRecheck) -> None:
    node.room = True
    patience.news()


async def asked(node: Node, times: int) -> None:
    while node.asked < times:
        await asyncio.sleep(0)


async def test_news_turns_a_refusal() -> None:
    node, patience = Node(), RefusalRecheck(longest=60)
    waiting = asyncio.create_task(patience.evaluate(node.fits, refused))
    await asked(node, 1)
    patience.news()  # of something else
    await asked(node, 2)
    make_room(node, patience)
    assert await waiting
    assert node.asked == 3


async def test_what_fits_does_not_wait() -> None:
    node = Node()
    node.room = True
    assert await RefusalRecheck(longest=60).evaluate(node.fits, refused)
    assert node.asked == 1


async def test_without_news_a_refusal_stands() -> None:
    node = Node()
    assert not await RefusalRecheck(longest=SOON).evaluate(node.fits, refused)
    assert node.asked == 1


async def test_old_news_is_none() -> None:
    node, patience = Node(), RefusalRecheck(longest=SOON)
    patience.news()
    assert not await patience.evaluate(node.fits, refused)
    assert node.asked == 1


async def test_refusals_that_wait_in_vain_spend_a_budget() -> None:
    node, patience = Node(), RefusalRecheck(longest=SOON)
    for _ in range(20):
        await patience.evaluate(node.fits, refused)
    asyncio.get_running_loop().call_soon(make_room, node, patience)
    assert not await patience.evaluate(node.fits, refused)


async def test_where_no_news_can_come_nothing_waits() -> None:
    node, patience = Node(), RefusalRecheck(longest=0)
    asyncio.get_running_loop().call_soon(make_room, node, patience)
    assert not await patience.evaluate(node.fits, refused)
