"""Updates of the policy's tables and prices, outside of requests.

A plan is computed in a thread; everything else runs on the event loop between requests.
"""

from __future__ import annotations

import asyncio
import math

from extender.cluster.state import State
from packing.policies.interface import Due, update_now
from packing.policies.upkeep import Upkeep

INTERVAL = 0.1
"""Seconds between checks."""
OVERDUE = 30.0
"""Seconds since the last plan or update after which any new pod or change triggers another."""


def plan_now(state: State) -> None:
    """Plan new tables and adopt them, for commands that may block."""
    choose_node_sets_now(state)
    update_now(state.policy, state.fleet)
    state.revision += 1


def choose_node_sets_now(state: State) -> None:
    """Distinguish the sets of nodes that the pods of the cluster require."""
    with state.failures.caught("node_sets"):
        choose = state.nodes.sets.choose(state.nodes, state.learner.monitor.demand.counts())
        state.nodes.sets.adopt(choose(), state.nodes.values())


class PolicyRefresher:
    """Plans and refreshes the policy of one state. The policy must not raise (``GuardedPolicy``)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._upkeep = Upkeep()
        self._refreshed_at = -math.inf

    async def run(self) -> None:
        while True:
            await self.refresh_if_due()
            with self._state.failures.caught("end_costs"):
                self._state.end_costs.update()
            await asyncio.sleep(INTERVAL)

    async def refresh_if_due(self) -> None:
        """Update the policy if ``Upkeep`` considers it due."""
        state, now = self._state, asyncio.get_running_loop().time()
        learned, overdue = state.learner.learned, now - self._refreshed_at >= OVERDUE
        if (due := self._upkeep.due(state.fleet, learned, overdue=overdue)) is None:
            return
        if due is Due.TABLES:
            state.learner.monitor.planned()
            with state.failures.caught("node_sets"):
                choose = state.nodes.sets.choose(state.nodes, state.learner.monitor.demand.counts())
                state.nodes.sets.adopt(await asyncio.to_thread(choose), state.nodes.values())
        solve = state.policy.update(state.fleet, due)
        state.revision += 1
        if solve is not None:
            adopt = await asyncio.to_thread(solve)
            adopt()
            state.revision += 1
        self._refreshed_at = now
