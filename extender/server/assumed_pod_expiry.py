"""Keeps the books free of holds that nothing explains: what outlives its time is held against the API.

The watch ends almost every tentative hold within milliseconds. One stays where a binding was never answered
and did not happen, or where the pod came and went while the watch was broken.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from extender.source.interface import Source, Unreachable

if TYPE_CHECKING:  # it loads compiled code, and the service imports this before it may
    from extender.cluster.state import State

_EVERY = 5.0  # seconds


async def keep(state: State, source: Source) -> None:
    """Check now and then, until cancelled."""
    while True:
        await asyncio.sleep(_EVERY)
        await check(state, source, time.monotonic())


async def check(state: State, source: Source, now: float) -> None:
    """Ask the API server for every pod whose tentative hold has outlived its time at ``now``."""
    for one in state.assumed_pods.overdue(now):
        try:
            truth = await source.look_up(one.pod)
        except Unreachable:
            return  # what is true stays unknown, and the hold stays
        state.reconcile(one.pod, truth, now)
