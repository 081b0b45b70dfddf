"""Reads the values of the gauges from the state."""

from __future__ import annotations

import asyncio
import time

from extender.cluster.census import Census, CensusTaker
from extender.cluster.state import State
from extender.k8s.objects import REQUIRED_KINDS
from extender.server.gauges import Demand, Gauges
from extender.source.interface import Source
from extender.source.watched_kinds import WATCHED_KINDS
from extender.verbs.recheck import RefusalRecheck

_REQUIRED = {kind: watched.resource for kind, watched in WATCHED_KINDS.items() if kind in REQUIRED_KINDS}
_BATCH = 100
"""Pods that are counted before other tasks run: less than a millisecond."""


class GaugeReader:
    """Of one state and its source. ``update`` before ``read``: it does what would delay other requests."""

    def __init__(self, state: State, source: Source, recheck: RefusalRecheck, census: CensusTaker) -> None:
        self._state, self._source, self._recheck, self._census = state, source, recheck, census
        self._found: Census | None = None

    async def update(self) -> None:
        """Bring up to date what is computed node by node or pod by pod. Other tasks run in between."""
        self._found = await self._census.take()
        for _ in self._state.pods.usage.reread(self._state.pods, _BATCH):
            await asyncio.sleep(0)

    def read(self) -> Gauges:
        state = self._state
        watches = {one.resource: one for kind, one in self._source.watches().items() if kind in _REQUIRED}
        return Gauges(
            nodes=len(state.nodes),
            pods=len(state.pods),
            problems=len(state.problems),
            overcommitted=len(state.overcommitted),
            contradictions=state.allocations.contradictions,
            policy_failures=dict(state.failures.counts),
            rechecks=dict(self._recheck.outcomes),
            assumed_pods=len(state.assumed_pods),
            assumed_seconds=state.assumed_pods.oldest(time.monotonic()),
            synced={name: kind in state.synced for kind, name in _REQUIRED.items()},
            age_seconds={name: one.silent for name, one in watches.items()},
            closed_seconds={name: one.closed for name, one in watches.items()},
            watch_ends={
                (name, how): count for name, one in watches.items() for how, count in one.ends.items()
            },
            census=self._found,
            disrupted_pods=state.disruptions.pods,
            gpu_seconds_lost=state.disruptions.gpu_seconds,
            gpus_by_queue=state.pods.usage.gpus_by_queue(),
            now=time.time(),
            demand=self._demand(),
        )

    def _demand(self) -> Demand:
        monitor = self._state.learner.monitor
        moved = {"plan": monitor.moved_since_plan}
        if (since_settings := monitor.moved_since_settings) is not None:
            moved["settings"] = since_settings
        beside = monitor.beside()
        return Demand(
            self._state.learner.learnt, monitor.by_size(), moved, beside.cpu_milli, beside.memory_mib
        )
