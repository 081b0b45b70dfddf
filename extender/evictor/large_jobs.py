"""Chooses the nodes that are reserved for large jobs, and for members that running gangs have lost, on the
leader only. With the evictor on, pods that it may evict for such a member count as gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from extender.k8s.objects import REQUIRED_KINDS, Pod
from extender.settings import Settings
from extender.trial.running_pods import FUTURES, free_soon, running_on
from extender.untrusted.limits import GANG_READ
from packing.fleet.arrays import Flags
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
from packing.plan.starts import Running, StartQueue

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
        """Rounds until cancelled. The service repeats it after an error."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.round()

    async def round(self) -> None:
        """Renew the reservations, if this replica leads and its state is complete."""
        now, since, self._last = self._clock(), self._last, self._clock()
        if not (self._keeper.leads and self._state.synced >= REQUIRED_KINDS):
            return
        known, jobs = self._state.large_jobs, [*self._large_jobs()]
        pending = {job.key for job in jobs}
        before, free = known.table, self._state.fleet.arrays.free_parts().sum(axis=0, dtype=np.float64)
        held = [(now - since) * float(free[known.rows(old)].sum()) for old in before.current]
        known.idle += sum(held)
        counted = [old._replace(idle=old.idle + more) for old, more in zip(before.current, held, strict=True)]
        keys = {old.key for old in counted}
        started = {key for key in keys - pending if any(pod.node_name for pod in known.members(key))}
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
        queue = StartQueue(state.fleet, partial(self._running_on, question.job), FUTURES)
        soon = await free_soon(state)
        rows = [row for group in candidates(state.fleet, question, soon) for row in group]
        async for row in with_turns(rows, 4):
            queue.look(question.job.request, row)
        return soonest(state.fleet, queue, question, soon, now)

    def _running_on(self, job: LargeJob, row: int) -> list[Running]:
        """The pods on a row, with their ends."""
        state, running = self._state, running_on(self._state, row)
        first = next(filter(state.gangs.is_replacement, state.large_jobs.members(job.key)), None)
        if first is None or not state.large_jobs.evicts_equals:
            return running
        pods = [state.pods[pod.key] for pod in running]
        leave = state.rules_for(first, self._clock(), to_equals=True).may_ever_leave(pods)
        found = zip(running, leave, strict=True)
        return [pod._replace(ends=np.zeros(FUTURES)) if gone else pod for pod, gone in found]

    def _large_jobs(self) -> Iterator[LargeJob]:
        """The pending large jobs that kube-scheduler could start if there were room."""
        state, completes = self._state, self._state.gangs.is_replacement
        waiting = waiting_pods(state, self._schedulers)
        if state.large_jobs.mode == "off":
            waiting = list(filter(completes, waiting))
        if not waiting:
            return
        seen, by_namespace, permitted = set[str](), Counter[str](), PermittedRows(state)
        for pod in sorted(waiting, key=lambda pod: (-pod.priority, not completes(pod), pod.created, pod.key)):
            gang = state.gangs.gang_of(pod)
            key = gang.key if gang else pod.uid
            if key in seen or by_namespace[pod.namespace] >= _MOST_OF_NAMESPACE:
                continue
            seen.add(key)
            if job := self._large_job(key, pod, permitted):
                by_namespace[pod.namespace] += 1
                yield job

    def _large_job(self, key: str, pod: Pod, permitted: PermittedRows) -> LargeJob | None:
        """The job of a pending pod; None if it is not large, is gated or incomplete, or not understood. The
        members that a running gang has lost are a job, of any size, that has waited longest."""
        state, completes = self._state, self._state.gangs.is_replacement(pod)
        members, count = self._lacking(pod) if completes else self._starting(pod)
        if pod.gates or state.gangs.never_tried(pod) or any(other.spec.claims for other in members):
            return None
        kinds = [
            kind for kind in waiting_members(members, GANG_READ, state.request_of) if kind.request.wants_gpu
        ]
        if not kinds or count < 1:
            return None
        largest = max(kinds, key=lambda kind: float(gpu_sizes(state.fleet, kind.request).max()))
        count = min(count, sum(kind.count for kind in kinds))
        rows, required = permitted.rows_that_accept(largest.pod), state.gangs.domains_of(largest.pod)
        if required:
            rows = rows & state.gang_domains.rows_left(required, state.gang_domains.taken(largest.pod)[0])
        if not (completes or is_large(state.fleet, largest.request, count, rows)):
            return None
        since = max(other.created for other in members)
        job = LargeJob(key, pod.namespace, largest.request, count, pod.priority, since, rows)
        if completes:
            return replace(job, rows=self._near(key, job), urgent=True)
        if required and not required[0].size:
            return replace(job, domains=state.gang_domains.level(required[0].key)[0])
        return replace(job, domains=self._domains(job)) if count > 1 else job

    def _starting(self, pod: Pod) -> tuple[Sequence[Pod], int]:
        """The pod, or the members of its gang that start together, and their number; none if it is
        incomplete."""
        state, gang = self._state, self._state.gangs.gang_of(pod)
        if gang is None or gang.to_place < 2:
            return (pod,), 1
        room, free, gated, count = state.gangs.still_to_start(gang, gang.to_place, state.pods.is_bound)
        return ((), 0) if room or gated or len(free) < count else (free, count)

    def _lacking(self, pod: Pod) -> tuple[Sequence[Pod], int]:
        """The replacements in the gang that have no place, and how many of them must run; at most as many
        as do, so that nobody reserves more than he uses."""
        gangs, reservations = self._state.gangs, self._state.reservations
        if (gang := gangs.gang_of(pod)) is None:
            return (), 0

        def has_place(uid: str) -> bool:
            return self._state.pods.is_bound(uid) or bool(reservations.node_of(uid))

        _, free, _, count = gangs.still_to_start(gang, gang.to_run, has_place)
        members = tuple(filter(gangs.is_replacement, free))
        return members, min(count, len(members), gangs.running(gang.key))

    def _near(self, key: str, job: LargeJob) -> Flags:
        """(N,) the rows of the job; only those of one NVLink domain if all running members of its gang are in
        it, and one of its nodes could hold a member."""
        fleet = self._state.fleet
        ids = self._state.nodes.network.ids(fleet)[0]
        bound = {fleet.rows.get(pod.node_name, -1) for pod in self._state.gangs.members(key) if pod.node_name}
        domains = {int(ids[row]) if row >= 0 else -1 for row in bound}
        inside = job.rows & (ids == min(domains)) & fits_when_empty(fleet, job.request)
        return inside if len(domains) == 1 and min(domains) >= 0 and inside.any() else job.rows

    def _domains(self, job: LargeJob) -> Domains | None:
        """The NVLink domains, if one of them could hold the whole gang."""
        fleet = self._state.fleet
        ids = self._state.nodes.network.ids(fleet)[0]
        hosts = job.rows & fits_when_empty(fleet, job.request) & (ids >= 0)
        copies = gpus_of_rows(fleet)[hosts] // np.maximum(gpu_sizes(fleet, job.request)[hosts], 1e-9)
        return ids if np.bincount(ids[hosts], copies).max(initial=0) >= job.count else None
