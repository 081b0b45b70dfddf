"""Nodes that are reserved for the large jobs that have waited longest, and the pods that may use them until
then.

Small pods take every GPU that becomes free, so a job that needs many at once waits until they happen to be
free together. Reserved nodes accept only pods that will have ended before the job is to start ("EASY"
backfilling: Lifka, "The ANL/IBM SP scheduling system", 1995). Running pods are never touched.

Anyone who may create pods can declare large jobs. So the nodes of all reservations, the time of each, and how
often an owner gets one are bounded, whatever the jobs do.

Times are in seconds of any clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Doubles, Flags
from packing.fleet.feasibility import fits_when_empty, gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request

if TYPE_CHECKING:  # the verbs read reservations, and make none
    from packing.plan.starts import StartQueue

_T = TypeVar("_T")
Domains: TypeAlias = npt.NDArray[np.int32]
"""(N,) Equal numbers denote the same domain, -1 denotes none."""
MOST_JOBS = 4
"""Jobs with a reservation at the same time."""
SHARE = 0.5
"""Of the GPUs that a job could use, reserved for all jobs together; one job may always have a reservation."""
MOST_MISSED = 2
"""Reservations that a job may miss; after that it gets none."""
_MARGIN = 2.0
"""A reservation ends after this multiple of the time that the forecast gave it."""
_PART = 0.5
"""The job starts by the reservation's time with this probability, if the forecast is right."""
_STAYS = 0.5
"""Other nodes are chosen if the job can start there in less than this fraction of the time."""
AT_ONCE = 4.0
"""The multiple of the time with which a node counts whose room one pod frees: a job of one pod may get it
anyway, while other nodes are filled again as they drain."""
_MOST_ROWS = 256
"""Rows that are looked at for one job."""


@dataclass(frozen=True, slots=True)
class LargeJob:
    """A pending job: ``count`` pods that start together on ``rows`` (N,), where their rules permit them, in
    one of ``domains`` (N,) unless that is None. ``since``: when it began to wait. ``urgent``: first of its
    priority, without waiting."""

    key: str
    owner: str
    request: Request
    count: int
    priority: int
    since: float
    rows: Flags
    domains: Domains | None = None
    urgent: bool = False


class Reservation(NamedTuple):
    """``nodes`` that are reserved for a job from ``since`` to ``until``, at the latest. It is to start ``at``
    this time by the forecast, made when the nodes were ``chosen``. ``gpus``: those of the job; ``idle``:
    GPU-seconds for which GPUs of the nodes have been free."""

    key: str
    owner: str
    priority: int
    nodes: tuple[str, ...]
    gpus: float
    since: float
    at: float
    until: float
    chosen: float
    idle: float = 0.0

    def admits(self, priority: int, ends: float) -> bool:
        """Whether another pod may use the nodes that ``ends`` at this time at the latest."""
        return priority > self.priority or ends <= self.at


@dataclass(frozen=True, slots=True)
class Reservations:
    """``missed``: by pending job, the number of its reservations that ended before it started. ``rests``: by
    owner, the time until which it gets none: after one without a start for as long as it lasted, else for as
    long as the job's GPUs were idle, so that nobody keeps GPUs idle with jobs that start and end at once."""

    current: tuple[Reservation, ...] = ()
    missed: Mapping[str, int] = field(default_factory=dict)
    rests: Mapping[str, float] = field(default_factory=dict)


class Rules(NamedTuple):
    """Seconds: ``after`` a job has waited so long it may get a reservation, which is no longer than
    ``longest``; its nodes are chosen anew after ``chosen_for``."""

    after: float
    longest: float
    chosen_for: float = 60.0


class Choice(NamedTuple):
    """Nodes for a job, the time by which it can start there, and the GPUs that it takes of those that it
    could use."""

    nodes: tuple[str, ...]
    at: float
    gpus: float
    usable: float


class Question(NamedTuple):
    """Where can this job start soonest? Not on nodes that are ``taken``, and rather on those ``kept``."""

    job: LargeJob
    taken: Collection[str]
    kept: Collection[str]


Renewal: TypeAlias = Generator[Question, Choice | None, _T]
"""Questions, each to be answered with ``soonest``, and the result."""


def is_large(fleet: Fleet, request: Request, count: int, rows: Flags) -> bool:
    """Whether the job is a gang, or takes several GPUs and at least half of each node that it could use."""
    if count > 1:
        return True
    sizes, hosts = gpu_sizes(fleet, request), rows & fits_when_empty(fleet, request)
    large: Flags = (sizes > 1) & (2 * sizes >= gpus_of_rows(fleet))
    return bool(hosts.any() and large[hosts].all())


def gpus_of_rows(fleet: Fleet) -> Doubles:
    """(N,) GPUs of each node."""
    gpus: Doubles = (fleet.arrays.compute_capacity > 0).sum(axis=0, dtype=np.float64)
    return gpus


def soonest(fleet: Fleet, queue: StartQueue, question: Question, soon: Doubles, now: float) -> Choice | None:
    """The nodes on which the job can start soonest; others must be much sooner than those that it has. None
    if it cannot start on empty nodes, or no time is known. ``soon`` (N,): GPUs that are free soon, to look at
    few rows."""
    job, stays = question.job, {fleet.rows[node] for node in question.kept if node in fleet.rows}
    usable = float(gpus_of_rows(fleet)[job.rows & fits_when_empty(fleet, job.request)].sum())

    def order(row: int) -> tuple[float, int]:
        start = queue.start_on(job.request, row)
        at_once = job.count == 1 and len(start.needs) == 1
        return _part(start.times) * (_STAYS if row in stays else AT_ONCE if at_once else 1.0), row

    best: tuple[float, float, list[int]] = math.inf, math.inf, []
    for rows in candidates(fleet, question, soon):
        nearest, last = [order(row) for row in rows], 0.0
        heapify(nearest)
        chosen, times = list[int](), np.zeros(1)
        while nearest and len(chosen) < job.count and nearest[0][0] < best[0]:
            last, row = heappop(nearest)
            start = queue.start_on(job.request, row)
            chosen.append(row)
            times = np.maximum(times, start.times)
            if job.count > 1:
                queue.take(f"{job.key}/{len(chosen)}", job.request, start, np.full(start.times.shape, np.inf))
                heappush(nearest, order(row))
        if job.count > 1:  # the last of many nodes is later than each of them is on its own
            last = _part(times) * (_STAYS if stays.issuperset(chosen) else 1.0)
        if len(chosen) == job.count and last < best[0]:
            best = last, now + _part(times), chosen
    _, at, found = best
    names = sorted({spec.name for row in found if (spec := fleet.specs[row])})
    gpus = float(gpu_sizes(fleet, job.request)[found].sum())
    return Choice(tuple(names), at, gpus, usable) if math.isfinite(at) else None


def candidates(fleet: Fleet, question: Question, soon: Doubles) -> list[list[int]]:
    """The rows to look at, by domain: those with the most GPUs ``soon`` (N,) that the job could use."""
    job = question.job
    hosts = job.rows & fits_when_empty(fleet, job.request)
    hosts[[fleet.rows[node] for node in question.taken if node in fleet.rows]] = False
    domains = np.zeros(hosts.size, np.int32) if job.domains is None else job.domains
    known = np.unique(domains[hosts & (domains >= 0)])
    groups = [np.flatnonzero(hosts & (domains == domain)) for domain in known]
    nearest = [rows[np.argsort(-soon[rows], kind="stable")][:_MOST_ROWS].tolist() for rows in groups]
    nearest.sort(key=lambda rows: -float(soon[rows[: job.count]].sum()))
    before = accumulate((len(rows) for rows in nearest), initial=0)
    return [rows for rows, looked_at in zip(nearest, before, strict=False) if looked_at < _MOST_ROWS]


def _part(times: Doubles) -> float:
    return float(np.sort(times)[math.ceil(_PART * (times.size - 1))])


def renewal(
    before: Reservations, jobs: Sequence[LargeJob], started: Collection[str], now: float, rules: Rules
) -> Renewal[Reservations]:
    """The reservations from now on. ``jobs``: the pending ones, ``started``: keys of those that were."""
    pending = {job.key for job in jobs}
    missed = {key: count for key, count in before.missed.items() if key in pending}
    rests = {**before.rests}
    kept = {old.key: old for old in before.current if old.key in pending and now < old.until}
    for old in before.current:
        if old.key not in kept:
            lasted = now - old.since
            rest = min(old.idle / max(old.gpus, 1.0), lasted) if old.key in started else lasted
            rests[old.owner] = max(rests.get(old.owner, now), now + rest)
            missed |= {old.key: missed.get(old.key, 0) + 1} if old.key in pending else {}
    rests = {owner: until for owner, until in rests.items() if until > now}
    current = list[Reservation]()
    for job in sorted(jobs, key=lambda job: (-job.priority, not job.urgent, job.since, job.key)):
        may_begin = (job.urgent or now - job.since >= rules.after) and missed.get(job.key, 0) < MOST_MISSED
        if len(current) < MOST_JOBS and (job.key in kept or (may_begin and job.owner not in rests)):
            current += yield from _reserved(job, kept.get(job.key), current, now, rules)
    return Reservations(tuple(current), missed, rests)


def _reserved(
    job: LargeJob, old: Reservation | None, current: Sequence[Reservation], now: float, rules: Rules
) -> Renewal[list[Reservation]]:
    """The job's reservation beside the ``current`` ones, if it gets one: none if it would end before the job
    is to start. While it keeps its nodes, its time is not put off before it has come."""
    others = {node for other in current for node in other.nodes}
    if old and now < old.chosen + rules.chosen_for and others.isdisjoint(old.nodes):
        return [old]
    choice = yield Question(job, others, old.nodes if old else ())
    if choice is None:
        return []
    if current and choice.gpus + sum(other.gpus for other in current) > SHARE * choice.usable:
        return []
    new = job.key, job.owner, job.priority, choice.nodes, choice.gpus
    if old is None:
        if choice.at > now + rules.longest:
            return []
        most = math.inf if job.urgent else _MARGIN * (choice.at - now) + rules.after
        until = now + min(most, rules.longest)
        return [Reservation(*new, now, choice.at, until, now)]
    at = min(old.at, choice.at) if old.nodes == choice.nodes and now < old.at else choice.at
    return [Reservation(*new, old.since, min(at, old.until), old.until, now, old.idle)]


def renewed(questions: Renewal[_T], answer: Callable[[Question], Choice | None]) -> _T:
    """The result of a renewal, with all its questions answered."""
    try:
        question = next(questions)
        while True:
            question = questions.send(answer(question))
    except StopIteration as end:
        result: _T = end.value
        return result
