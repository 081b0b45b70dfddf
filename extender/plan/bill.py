"""The bill of a day: what the pods of the last 24 hours would have got from other scoring.

The cluster is as it was a day ago, as far as its pods are still listed. Pods arrive when they were created,
are placed by the answers of ``filter`` and ``prioritize`` under one policy, wait if they do not fit, and run
as long as they did. Pods that still run, or are pending, run until now.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from extender.cluster.factory import prior_of
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.explain.gpu_use import gpus_asked_by
from extender.k8s.node_filter import node_requirement
from extender.k8s.objects import Deleted, Event, Pod, Upserted
from extender.plan.report import Progress
from extender.plan.source import ClusterSource
from extender.trial.cluster_pods import as_new, pending_item, trial_of
from extender.untrusted.visible import many
from packing.model.request import Request
from packing.policies.registry import POLICIES
from packing.policies.upkeep import Arrivals

DAY = 86_400.0
_MOST = 3_000
"""Maximum number of arrivals: with more, the time is shorter than a day."""
_NOTICED = 60.0
"""Seconds by which a start must differ to count as earlier or later."""
COMPARED = ("least-allocated", "most-allocated", "inventory")
"""kube-scheduler's default, which the others are compared with, its other strategy, and Stowage."""


@dataclass(frozen=True, slots=True)
class BillLine:
    """A ``policy``, "" for what happened. GPU-hours that pods ``used``, and for which they were pending
    (``waited``); jobs that started ``earlier`` or ``later`` than under kube-scheduler's default."""

    policy: str
    used: float
    waited: float
    earlier: int = 0
    later: int = 0


@dataclass(frozen=True, slots=True)
class Bill:
    """``since``, ``until``: Unix seconds. ``jobs`` that arrived: pods, or gangs. ``notes``: what is not
    measured."""

    since: float
    until: float
    jobs: int
    lines: tuple[BillLine, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """A pod that arrived, or ran, in the time. ``arrived``, ``started`` and ``seconds`` are as it happened,
    infinite for pods that have not started, or not ended."""

    pod: Pod
    request: Request
    job: str
    gpus: float
    arrived: float
    started: float
    seconds: float


def in_order(arrivals: Sequence[float], ends: list[tuple[float, int]]) -> Iterator[tuple[float, int, bool]]:
    """The time, the number and whether it is an arrival, of each arrival and each end. ``ends``: a heap, to
    which the caller adds meanwhile. Ends come first."""
    for number, arrival in enumerate(arrivals):
        while ends and ends[0][0] <= arrival:
            yield *heappop(ends), False
        yield arrival, number, True
    while ends:
        yield *heappop(ends), False


def daily_bill(source: ClusterSource, now: float, progress: Progress) -> Bill:
    """The day before ``now`` (Unix seconds), under each policy."""
    state, skipped = source.state(), Counter[str]()
    runs = [run for pod in source.pods() if (run := _run_of(state, pod, now - DAY, skipped))]
    runs.sort(key=lambda run: (run.arrived, -run.pod.priority, run.pod.key))
    since = max(now - DAY, runs[-_MOST].arrived if len(runs) > _MOST else 0.0)
    arrived = [replace(run, arrived=max(run.arrived, since)) for run in runs if run.started >= since]
    before = [run for run in runs if run.started < since < run.started + run.seconds]
    began = {"": [run.started for run in arrived]}
    for number, policy in enumerate(COMPARED):
        progress("replaying the last day", number / len(COMPARED))
        began[policy] = _replayed(source, arrived, before, now, policy)
    progress("replaying the last day", 1.0)
    default = _starts(arrived, began[COMPARED[0]], now)
    lines = tuple(_line(policy, arrived, starts, default, now) for policy, starts in began.items())
    notes = tuple(f"{many(count, 'pod')} {why}" for why, count in skipped.items())
    return Bill(since, now, len(default), lines, notes)


def _run_of(state: State, pod: Pod, since: float, skipped: Counter[str]) -> _Run | None:
    """The pod, if it requested GPUs after ``since`` and its times are known."""
    request = state.request_or_none(pod)
    if not pod.spec.claims and (request is None or not request.wants_gpu):
        return None
    started = (pod.started or pod.created) if pod.node_name else math.inf
    ended = pod.finished if pod.terminated else math.inf
    why = ""
    if request is None or pod.spec.claims:
        why = "with ResourceClaims"
    elif pod.scheduling_constraints.pinned_to_node:
        why = "of DaemonSets"
    elif pod.gates:
        why = "that scheduling gates hold"
    elif not pod.created or (pod.terminated and not pod.finished):
        why = "without the times of their creation and end"
    if request is None or why:
        skipped[why] += not 0 < ended <= since
        return None
    if pod.terminated and ended <= max(since, started):
        return None
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    job, gpus = gang.key if gang else pod.key, gpus_asked_by(state, request)
    seconds = ended - started if pod.node_name else math.inf
    return _Run(pod, request, job, gpus, max(pod.created, since), started, seconds)


def _replayed(
    source: ClusterSource, arrived: Sequence[_Run], before: Sequence[_Run], now: float, policy: str
) -> list[float]:
    """When each pod that ``arrived`` starts, in Unix seconds; infinite if not until ``now``."""
    changes: list[Event] = [Deleted("Pod", run.pod.key) for run in arrived]
    changes += [
        Upserted(replace(run.pod, phase="Running", finished=0.0)) for run in before if run.pod.terminated
    ]
    trial = trial_of(state := source.state(changes), allow_downgrade=True)
    settings, permitted = source.settings, PermittedRows(state)
    prior, minimum = prior_of(settings.demand), settings.minimum_slice_milli
    state.policy = POLICIES[policy](prior=prior, minimum_milli=minimum)
    arrivals, runs = Arrivals(trial.fleet, state.policy), [*arrived, *before]
    pods = (as_new(replace(run.pod, deleting=False)) for run in runs)
    items = [pending_item(state, pod, run.request, permitted) for pod, run in zip(pods, runs, strict=True)]
    number_of, starts = {item.key: number for number, item in enumerate(items)}, [math.inf] * len(runs)
    ends = [(run.started + run.seconds, len(arrived) + number) for number, run in enumerate(before)]
    heapify(ends)
    for item in items[len(arrived) :]:
        if held := state.allocations.allocation_of(item.key):
            trial.runs(item, held)
    jobs = defaultdict[str, list[int]](list)
    for number, run in enumerate(arrived):
        jobs[run.job].append(number)
    in_turn = sorted((max(runs[number].arrived for number in pods), pods) for pods in jobs.values())
    for time, number, arrives in in_order([arrival for arrival, _ in in_turn], ends):
        if time > now:
            break
        tried = [items[pod] for pod in in_turn[number][1]] if arrives else trial.waiting
        for item in tried if arrives else ():
            arrivals.arrive(replace(item.request, node_set=node_requirement(item.pod)))
            state.apply([Upserted(item.pod)])
            # As kube-scheduler sorts its queue:
            insort(trial.waiting, item, key=lambda new: (-new.pod.priority, new.pod.created, new.key))
        if not arrives and (item := items[number]).key in trial.held:
            trial.leave(item)
        for _ in trial.starting(tried):
            pass
        for started in [waiting for waiting in trial.waiting if waiting.key in trial.held]:
            trial.waiting.remove(started)
            starts[number := number_of[started.key]] = time
            heappush(ends, (time + runs[number].seconds, number))
    return starts[: len(arrived)]


def _starts(runs: Sequence[_Run], began: Sequence[float], now: float) -> Mapping[str, float]:
    """By job when its last pod started, at most ``now``."""
    last = defaultdict[str, float](float)
    for run, start in zip(runs, began, strict=True):
        last[run.job] = max(last[run.job], min(start, now))
    return last


def _line(
    policy: str, runs: Sequence[_Run], began: Sequence[float], default: Mapping[str, float], now: float
) -> BillLine:
    used = waited = 0.0
    for run, start in zip(runs, began, strict=True):
        waited += run.gpus * (min(start, now) - run.arrived)
        used += run.gpus * (min(start + run.seconds, now) - min(start, now))
    sooner = [default[job] - start for job, start in _starts(runs, began, now).items()]
    earlier, later = (sum(sign * gain > _NOTICED for gain in sooner) for sign in (1, -1))
    return BillLine(policy, round(used / 3600, 1), round(waited / 3600, 1), earlier, later)
