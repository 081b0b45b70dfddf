"""Chooses the nodes that are reserved for large jobs, on the leader only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from extender.background import with_turns
from extender.cluster.gang_placement import waiting_members
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.evictor.book import Schedulers
from extender.evictor.decision import waiting_pods
from extender.evictor.shield import ShieldKeeper
from extender.explain.start_forecast import FUTURES, free_soon, running_on
from extender.k8s.objects import REQUIRED_KINDS, Pod
from extender.settings import Settings
from extender.untrusted.limits import GANG_READ
from packing.fleet.feasibility import fits_when_empty, gpu_sizes
from packing.plan.backfill import (
    Choice,
    Domains,
    LargeJob,
    Question,
    Reservations,
    Rules,
    candidates,
    gpus_of_rows,
    is_large,
    renewal,
    soonest,
)
from packing.plan.starts import StartQueue

INTERVAL = 5.0
"""Seconds between two rounds."""
_MOST_OF_NAMESPACE = 4
"""Large jobs of one namespace that are considered, the most urgent."""

_log = logging.getLogger(__name__)


class LargeJobReserver:
    """Renews the reservations of a state."""

    def __init__(
        self,
        state: State,
        keeper: ShieldKeeper,
        settings: Settings,
        schedulers: Schedulers,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: Unix seconds."""
        self._state, self._keeper, self._schedulers, self._clock = state, keeper, schedulers, clock
        self._rules = Rules(settings.reserve_after_seconds, settings.reserve_seconds)
        self._last = clock()

    async def run(self) -> None:
        """Rounds until cancelled. No error ends it."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.round()
            except Exception:
                _log.exception("reserving nodes for large jobs failed")

    async def round(self) -> None:
        """Renew the reservations, if this replica leads and its state is complete."""
        now, since, self._last = self._clock(), self._last, self._clock()
        if not (self._keeper.leads and self._state.synced >= REQUIRED_KINDS):
            return
        known, jobs = self._state.large_jobs, [*self._large_jobs()]
        before, free = known.table, self._state.fleet.arrays.free_parts().sum(axis=0, dtype=np.float64)
        held = [(now - since) * float(free[known.rows(old)].sum()) for old in before.current]
        known.idle += sum(held)
        counted = [old._replace(idle=old.idle + more) for old, more in zip(before.current, held, strict=True)]
        keys = {old.key for old in counted}
        started = {key for key in keys if any(pod.node_name for pod in known.members(key))}
        renewing = renewal(
            Reservations(tuple(counted), before.missed, before.rests), jobs, started, now, self._rules
        )
        try:
            question = next(renewing)
            while True:
                question = renewing.send(await self._answer(question, now))
        except StopIteration as end:
            table: Reservations = end.value
        known.update(table)
        for new in table.current:
            if new.key not in keys:
                _log.info("%s: %d nodes are reserved", new.key, len(new.nodes))

    async def _answer(self, question: Question, now: float) -> Choice | None:
        state = self._state
        queue = StartQueue(state.fleet, partial(running_on, state), FUTURES)
        soon = await free_soon(state)
        rows = [row for group in candidates(state.fleet, question, soon) for row in group]
        async for row in with_turns(rows, 4):
            queue.look(question.job.request, row)
        return soonest(state.fleet, queue, question, soon, now)

    def _large_jobs(self) -> Iterator[LargeJob]:
        """The pending large jobs that kube-scheduler could start if there were room."""
        state, permitted = self._state, PermittedRows(self._state)
        seen, by_namespace = set[str](), Counter[str]()
        waiting = waiting_pods(state, self._schedulers)
        for pod in sorted(waiting, key=lambda pod: (-pod.priority, pod.created, pod.key)):
            gang = state.gangs.gang_of(pod)
            key = gang.key if gang else pod.uid
            if key in seen or by_namespace[pod.namespace] >= _MOST_OF_NAMESPACE:
                continue
            seen.add(key)
            if job := self._large_job(key, pod, permitted):
                by_namespace[pod.namespace] += 1
                yield job

    def _large_job(self, key: str, pod: Pod, permitted: PermittedRows) -> LargeJob | None:
        """The job of a pending pod; None if it is not large, is gated or incomplete, or not understood."""
        state, members, count = self._state, [pod], 1
        if (gang := state.gangs.gang_of(pod)) and gang.to_place > 1:
            room, free, gated, count = state.gangs.still_to_start(gang, gang.to_place, state.pods.is_bound)
            members = list(free)
            if room or gated or len(free) < count:
                return None
        if pod.gates or state.gangs.never_tried(pod) or any(other.spec.claims for other in members):
            return None
        kinds = [
            kind for kind in waiting_members(members, GANG_READ, state.request_of) if kind.request.wants_gpu
        ]
        if not kinds:
            return None
        largest = max(kinds, key=lambda kind: float(gpu_sizes(state.fleet, kind.request).max()))
        count = min(count, sum(kind.count for kind in kinds))
        rows = permitted.rows_that_accept(largest.pod)
        if not is_large(state.fleet, largest.request, count, rows):
            return None
        since = max(other.created for other in members)
        job = LargeJob(key, pod.namespace, largest.request, count, pod.priority, since, rows)
        return replace(job, domains=self._domains(job)) if count > 1 else job

    def _domains(self, job: LargeJob) -> Domains | None:
        """The NVLink domains, if one of them could hold the whole gang."""
        fleet = self._state.fleet
        ids = self._state.nodes.network.ids(fleet)[0]
        hosts = job.rows & fits_when_empty(fleet, job.request) & (ids >= 0)
        copies = gpus_of_rows(fleet)[hosts] // np.maximum(gpu_sizes(fleet, job.request)[hosts], 1e-9)
        return ids if np.bincount(ids[hosts], copies).max(initial=0) >= job.count else None
