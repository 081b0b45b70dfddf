"""A refusal waits for a change that would turn it, and all refusals together wait within a budget."""

from __future__ import annotations

import asyncio

from extender.verbs.recheck import RefusalRecheck


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


async def test_nothing_waits_where_the_state_does_not_change() -> None:
    node, recheck = Node(), RefusalRecheck(longest=0)
    asyncio.get_running_loop().call_soon(make_room, node, recheck)
    assert not await recheck.evaluate(node.fits, refused)
