"""Keeping the policy's tables and prices current, away from requests.

What arrives teaches the policy its demand mix (``State``); from time to time a plan is worked out in a thread
and adopted whole, between two requests. Prices follow the fleet, which moves with every placement, slowly.
"""

from __future__ import annotations

import asyncio
import math

import numpy as np

from extender.cluster.state import State

INTERVAL = 0.1
"""Seconds between two looks."""
LEARNT = 500
"""New pods after which the tables are worked out anew; before, whenever as many are new as are known."""
MOVED = 0.08
"""Changes of nodes, for each GPU of the fleet, after which the prices are renewed. Later, and prices of a
small fleet point at room that has gone (of the inference mix on 300 GPUs 69.8 % packed instead of 80.4 %)."""
LONGEST = 30.0
"""Seconds after which fewer will do."""


class PolicyRefresher:
    """Looks after the policy of one state, which must not raise (``guarded_policy.py``). Everything but the
    plan itself runs on the event loop."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._learnt = self._moved = 0
        self._planned = False
        self._at = -math.inf

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Plan if enough was learnt, price anew if enough has moved, or if it is long since either.

        The first plan needs a GPU and nothing learnt: there may be a prior.
        """
        state, now = self._state, asyncio.get_running_loop().time()
        learnt, moved = state.learnt - self._learnt, state.fleet.changes - self._moved
        long_since, gpus = now - self._at >= LONGEST, np.count_nonzero(state.fleet.arrays.compute_capacity)
        enough = min(LEARNT, max(self._learnt, 1))
        if learnt >= enough or (learnt and long_since) or (gpus and not self._planned):
            await self._plan()
        elif moved > MOVED * gpus or (moved and long_since):
            state.policy.refresh(state.fleet)
        else:
            return
        self._at, self._moved = now, state.fleet.changes

    async def _plan(self) -> None:
        state = self._state
        self._learnt, self._planned = state.learnt, True
        tables = await asyncio.to_thread(state.policy.plan(state.fleet))
        state.policy.adopt(state.fleet, tables)
