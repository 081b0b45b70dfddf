"""When pending pods will start: a forecast for each of the most urgent, remade while they are pending.

Running pods end as earlier pods of their kind did (``cluster/end_costs.py``). Pending pods get room in
kube-scheduler's order, a gang as a whole. Future pods are unknown. The error of that, and every other error,
is learned: the first forecast of each pod is compared with its actual start (``Stretch``).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from extender.background import with_turns
from extender.cluster.census import pods_waiting_for_devices
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError
from extender.explain.answers import StartForecast
from extender.k8s.objects import Pod
from extender.trial.running_pods import FUTURES, free_soon, part_that_ends_before, running_on
from extender.untrusted.limits import KEY, shorten
from packing.model.lifetimes import PARTS, RESULTS
from packing.model.request import Request
from packing.plan.starts import Start, StartQueue, Stretch

INTERVAL = 15.0
"""Seconds between two forecasts for all pending pods."""
_REST = 20.0
"""Minimum ratio of the pause after a forecast to the duration of the forecast."""
MOST_PODS, MOST_ROWS = 64, 256
"""Pending pods that are forecast, and nodes that are looked at for each."""
MOST_JUDGED = 4096
"""Pods whose first forecast is remembered until they start."""
_OVERTAKEN = 35.0
"""Seconds by which the pods that come are ahead of those that wait: in their first 15 s kube-scheduler tries
them five times, at once and again after 1, 2, 4 and 8 s, and the others every 10 s
(``podInitialBackoffSeconds`` and ``podMaxBackoffSeconds``)."""
_BEFORE = 15
"""Maximum number of pending pods before the one of ``forecast_new``."""
_NAMED = 3
"""Maximum number of pods named that must end first."""


@dataclass(slots=True)
class _Judged:
    """The first forecast of a pending pod: ``by`` are Unix seconds; ``open`` are the parts not decided
    yet."""

    queue: str
    by: dict[float, float]
    open: set[float]


class StartForecasts:
    """Of one state. ``results`` counts by queue, part and "held" or "missed" what came of the first
    forecasts."""

    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self._state, self._clock = state, clock
        self._forecasts: dict[str, StartForecast] = {}  # by UID
        self.version = 0
        """Counts forecasts for all that wait."""
        self._judged: dict[str, _Judged] = {}
        self._stretch = Stretch()
        self.results = Counter(dict.fromkeys(product([""], PARTS, RESULTS), 0))

    async def run(self, is_ready: Callable[[], bool]) -> None:
        """Forecast repeatedly until canceled."""
        while True:
            began = time.monotonic()
            if is_ready():
                await self.refresh()
            await asyncio.sleep(max(INTERVAL, _REST * (time.monotonic() - began)))

    def of(self, pod: Pod) -> StartForecast | None:
        """The last forecast, None for a pod that has none."""
        return self._forecasts.get(pod.uid)

    async def refresh(self) -> None:
        """Forecast for pods for which kube-scheduler found no room. Other tasks run in between."""
        self._judge_late()
        self.version += 1
        pending = pods_waiting_for_devices(self._state)
        waiting = [pod for pod in pending if pod.unscheduled and not pod.gates][:MOST_PODS]
        if not waiting:
            self._forecasts = {}
            return
        self._state.end_costs.ends.count_running(self._clock())
        self._forecasts = await _Forecaster(self._state, self._clock(), self._stretch).forecasts(waiting)
        for pod in waiting:
            made = self._forecasts.get(pod.uid)
            times = zip(PARTS, (made.half, made.most), strict=True) if made else ()
            by = {part: at for part, at in times if at is not None}
            if by and pod.uid not in self._judged and len(self._judged) < MOST_JUDGED:
                queue = self._state.rights.queues.name_of(pod)
                self._judged[pod.uid] = _Judged(queue, by, {*by})

    def bound(self, pod: Pod) -> None:
        """Compare the forecast of a pod with its start: it has just been bound. It may have ended before the
        next forecast."""
        if judged := self._judged.pop(pod.uid, None):
            self._decide(judged, judged.open)

    def _judge_late(self) -> None:
        now = self._clock()
        for uid, judged in list(self._judged.items()):
            self._decide(judged, {part for part in judged.open if now > judged.by[part]})
            if self._state.pods.by_uid(uid) is None:
                del self._judged[uid]

    def _decide(self, judged: _Judged, parts: set[float]) -> None:
        for part in parts:
            in_time = self._clock() <= judged.by[part]
            self.results[judged.queue, part, "held" if in_time else "missed"] += 1
            self._stretch.learn(part, judged.by[part], in_time=in_time)
        judged.open = judged.open - parts


async def forecast_new(state: State, pod: Pod, now: float) -> StartForecast | None:
    """The forecast for a pod that does not exist, after the most urgent pending pods, by limits of running
    pods. None for a pod of a gang, and without such limits."""
    pod, _ = state.admission.as_created(pod)
    running = map(state.pods.get, state.end_costs.ends.running)
    if state.gangs.gang_of(pod) or not any(
        other and state.end_costs.declared_end(other)[1] for other in running
    ):
        return None
    pending = (other for other in pods_waiting_for_devices(state) if other.unscheduled and not other.gates)
    before = [other for other in pending if other.priority >= pod.priority and other.key != pod.key]
    made = await _Forecaster(state, now, Stretch()).forecasts([*before[:_BEFORE], pod])
    forecast = made.get(pod.uid)
    return forecast if forecast and forecast.half is not None else None


def forecasts_at(state: State, now: float) -> StartForecasts:
    """Of the pending pods at the time of a file, which becomes that of the state."""
    state.end_costs.clock = lambda: now
    forecasts = StartForecasts(state, state.end_costs.clock)
    asyncio.run(forecasts.refresh())
    return forecasts


def forecast_at(state: State, pod: Pod, now: float) -> StartForecast | None:
    """``forecast_new`` at the time of a file, which becomes that of the state. If the pod would have started
    since then, the times count from today."""
    state.end_costs.clock = lambda: now
    made = asyncio.run(forecast_new(state, pod, now))
    if made is None or made.half is None or made.half > time.time():
        return made
    late = time.time() - now
    return replace(made, half=made.half + late, most=made.most and made.most + late)


class _Forecaster:
    """The forecasts of one moment."""

    def __init__(self, state: State, now: float, stretch: Stretch) -> None:
        self._state, self._now, self._stretch = state, now, stretch
        self._queue = StartQueue(state.fleet, partial(running_on, state), FUTURES)
        self._permitted = PermittedRows(state)

    async def forecasts(self, waiting: Sequence[Pod]) -> dict[str, StartForecast]:
        """By UID, of these pods in this order, after those for which nodes are reserved, where something can
        be said."""
        self._soon = await free_soon(self._state)
        starts: dict[str, Start] = {}
        gangs, alike = defaultdict[Hashable, list[str]](list), defaultdict[Hashable, list[str]](list)
        reserved_for = self._state.large_jobs.reserved_for
        for pod in sorted(waiting, key=lambda pod: reserved_for(pod) is None):
            with suppress(RequestError):
                request = self._state.request_of(pod)
                if pod.spec.claims:
                    continue  # only an evaluation says whether it fits
                starts[pod.uid] = await self._start(pod, request)
                if gang := self._state.gangs.gang_of(pod):
                    gangs[gang.key].append(pod.uid)
                elif not reserved_for(pod):  # else nobody overtakes it
                    alike[_kind_of(pod, request)].append(pod.uid)
        for uids in gangs.values():
            times = np.max([starts[uid].times for uid in uids], axis=0)
            starts.update((uid, starts[uid]._replace(times=times)) for uid in uids)
        arrivals = self._arrivals(alike, starts)
        for kind, uids in alike.items():
            if len(uids) > 1:
                starts |= _in_any_order({uid: starts[uid] for uid in uids}, arrivals[kind])
        return {uid: self._forecast(start) for uid, start in starts.items()}

    def _arrivals(
        self, alike: Mapping[Hashable, Sequence[str]], starts: Mapping[str, Start]
    ) -> dict[Hashable, float]:
        """Expected arrivals per second of each kind: the rate over a window as long as the longest predicted
        wait. Pods of one second are one batch, and count as one."""
        now, pods, lasts = self._now, self._state.pods, dict[Hashable, float]()
        for kind, uids in alike.items():
            last = float(np.median(np.max([starts[uid].times for uid in uids], axis=0)))
            lasts[kind] = last if math.isfinite(last) else 0.0
        since = now - max(lasts.values(), default=0.0)
        running = self._state.end_costs.ends.running.items()
        recent = [pods.get(key) for key, run in running if run.started > since]
        recent += [pods.by_uid(uid) for uids in alike.values() for uid in uids]
        seconds = defaultdict[Hashable, set[int]](set)
        for pod in filter(None, recent):
            request = self._state.request_or_none(pod)
            kind = _kind_of(pod, request)
            if request and pod.created > now - lasts.get(kind, 0.0):
                seconds[kind].add(int(pod.created))
        return {kind: len(seconds[kind]) / last if last else 0.0 for kind, last in lasts.items()}

    async def _start(self, pod: Pod, request: Request) -> Start:
        jobs, allowed = self._state.large_jobs, self._permitted.rows_that_accept(pod)
        if reservation := jobs.reserved_for(pod):
            allowed = allowed & jobs.rows(reservation)
        rows = self._queue.candidates(request, allowed, self._soon, MOST_ROWS)
        async for row in with_turns(rows, 4):
            self._queue.look(request, row)
        start = self._queue.start(request, rows)
        outlives = part_that_ends_before(pod.uid)
        self._queue.take(pod.key, request, start, self._state.end_costs.remaining(pod, outlives))
        return start

    def _forecast(self, start: Start) -> StartForecast:
        spec = self._state.fleet.specs[start.row] if start.row >= 0 else None
        times = self._stretch.times(start, self._now)
        half, most = (self._now + after if math.isfinite(after) else None for after in times)
        named = start.needs[:_NAMED]
        pods = filter(None, map(self._state.pods.get, named))
        fields = dict.fromkeys(self._state.end_costs.declared_end(pod)[1] for pod in pods)
        node, needs = shorten(spec.name, KEY) if spec else "", tuple(shorten(key, KEY) for key in named)
        return StartForecast(half, most, node, needs, len(start.needs), tuple(filter(None, fields)))


def _kind_of(pod: Pod, request: Request | None) -> Hashable:
    """Of pods that get the same room."""
    return pod.priority, request, pod.spec.node_selector, pod.scheduling_constraints


def _in_any_order(starts: Mapping[str, Start], arrivals: float) -> dict[str, Start]:
    """Pods of the same priority that ask for the same start in any order, and those that come meanwhile, so
    many per second, may start before them: after each attempt kube-scheduler queues a pod by the time of that
    attempt (``AddUnschedulableIfNotPresent`` in pkg/scheduler/backend/queue/scheduling_queue.go of v1.37.2).
    Of those that wait when there is room for the next, each is as likely to get it."""
    known = np.sort([start.times for start in starts.values()], axis=0)
    count, futures = known.shape
    later = known[-1] * (1 + np.arange(1, 3 * count + 1)[:, None] / count)
    times = np.concatenate([known, later])
    come = arrivals * (np.where(np.isfinite(times), times, 0.0) + _OVERTAKEN)
    left = np.cumprod(1 - 1 / np.maximum(count - np.arange(len(times))[:, None] + come, 1), axis=0)
    found = {}
    for uid, start in starts.items():
        place = (left > part_that_ends_before(uid)).sum(axis=0).clip(max=len(times) - 1)
        found[uid] = Start(times[place, np.arange(futures)], start.row, ())
    return found
