"""Checks assumed pods that are overdue with the API server.

The watch confirms almost every assumed pod within milliseconds. A pod stays assumed if its binding was never
answered and did not happen, or if the watch had shown its end before Stowage learnt of its binding.
"""

from __future__ import annotations

import asyncio
import time

from extender.cluster.state import State
from extender.source.errors import Unreachable
from extender.source.interface import Source

_INTERVAL = 5.0  # seconds


async def expire_forever(state: State, source: Source) -> None:
    """Call ``expire_assumed`` every 5 s, until cancelled. Ends other reservations whose time is over, too."""
    while True:
        await asyncio.sleep(_INTERVAL)
        state.reservations.expire()
        await expire_assumed(state, source, time.monotonic())


async def expire_assumed(state: State, source: Source, now: float) -> None:
    """Look up every pod whose assumption is overdue at ``now`` (monotonic seconds), and reconcile it."""
    for assumed in state.assumed_pods.overdue(now):
        try:
            current = await source.look_up(assumed.pod)
        except Unreachable:
            return  # the next round tries again; the pods stay assumed
        state.reconcile(assumed.pod, current, max(now, time.monotonic()))
