"""Moves running pods to other nodes to make room for a large job that fits nowhere, or to create headroom.

The order is: reserve room for each pod that moves, nominate the pending pods, evict, and wait for the
replacements. A crash loses the reservations and the clocks: the next leader finds the nominations, and
restarts the clock of the job's wait.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from extender.cluster.allocations import Placement
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.reservations import MovedRoom
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.evictor.actions import Actions
from extender.evictor.book import KeyedBackoff, LossBudget, SmallWaits, WaitClock
from extender.evictor.decision import longest_grace
from extender.evictor.planner import Planner
from extender.k8s.objects import Pod
from extender.queues.disruptions import job_of
from extender.settings import Mode
from extender.trial.room_by_moves import (
    Move,
    RoomByMoves,
    asked_together,
    holders,
    mode_for,
    moves_off,
    room_by_moves,
    room_in_advance,
    rule_of,
    starting_together,
    window_note,
    would_make_room,
)
from extender.verbs.eviction.plan import EvictionPlan
from packing.model.request import Request
from packing.plan.move_rule import free_pieces

_LOOK = 5.0
"""Seconds between two checks of the free capacity for pending jobs."""
_LASTS = 60.0
"""Seconds for which a window must still be open: evictions take a moment."""
_NO_OTHER_WAY = ("no_plan", "budget")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """Pending pods that start together: one, or the missing members of a gang. The first represents all.
    ``gpus``: their total, and ``request``: the largest of their requests."""

    key: str
    pods: tuple[Pod, ...]
    gpus: int
    request: Request


_NO_JOB = Job("", (), 0, Request())
"""Placeholder for headroom: no job is pending."""


def waiting_jobs(state: State, waiting: Iterable[Pod]) -> list[Job]:
    """The jobs of these pods, the most urgent first."""
    jobs: dict[str, Job | None] = {}
    for pod in sorted(waiting, key=lambda pod: (-pod.priority, pod.created, pod.key)):
        gang = state.gangs.gang_of(pod)
        if (key := gang.key if gang else pod.uid) not in jobs:
            pods = starting_together(state, pod)
            requests = sorted(asked_together(state, pods), key=lambda request: -request.gpus)
            gpus = sum(request.gpus for request in requests)
            jobs[key] = Job(key, tuple(pods), gpus, requests[0]) if requests else None
    return [job for job in jobs.values() if job]


@dataclass(slots=True)
class _Moved:
    """A pod that was evicted to move. ``others``: UIDs of its controller's pods at that time. ``ends``: when
    the reservation of its room expires."""

    move: Move
    others: frozenset[str]
    ends: float


class Consolidation:
    """The evictor's plan that moves pods."""

    def __init__(self, actions: Actions, planner: Planner) -> None:
        self._actions, self._planner, self._state = actions, planner, actions.state
        self._settings, self._clock, self._wall = actions.settings, actions.clock, actions.wall
        self._rule = rule_of(self._settings)
        self.forget()

    def forget(self) -> None:
        """This replica does not lead."""
        self._state.reservations.release_all_moved()
        self._waited = WaitClock()
        self._small, self._small_jobs = SmallWaits(self._rule), dict[str, tuple[Job, float]]()  # since when
        self._budget = LossBudget(self._rule, self._state.disruptions.moves)
        self._moved: dict[str, _Moved] = {}
        self._backoff = KeyedBackoff(20.0, 300.0)
        self._known: list[tuple[Job, float]] = []
        self._large_waits = False
        self._number = 0  # of the next candidate for headroom
        self._looked = -_LOOK

    async def round(self, waiting: Sequence[Pod]) -> None:
        """Follow up on earlier moves, and make room for one more job."""
        await self._follow()
        for job, waited in self._jobs(waiting):
            with self._actions.guarded(job.key):
                if await self._make_room(job, waited):
                    return
        if not (self._large_waits or self._moved):
            await self._make_room_in_advance()

    async def _make_room(self, job: Job, waited: float) -> bool:
        """Move pods for this job, or recommend it; returns whether the round ends with it."""
        may_lose = self._rule.may_lose(job.gpus, waited)
        holds = (self._actions.book.holds.get(pod.uid) for pod in job.pods)
        if not may_lose or self._is_delayed(job) or any(hold and not hold.partial for hold in holds):
            return False
        starts_by = self._state.large_jobs.starts_by(job.key)
        if self._wall() < starts_by <= self._wall() + self._settings.nomination_seconds:
            return False  # on reserved nodes, before the pods that would move are sure to run elsewhere
        room = await self._room(job, may_lose)
        version = self._state.room_version
        if room and await self._actions.waits_for_scale_up(job.pods[0]):
            return False
        if room and self._state.room_version != version:
            room = await self._room(job, may_lose)
        if room is None or all(map(self._planner.waits, job.pods)):
            await self._propose(job, room, mode_for(self._state, job.pods[0], self._settings))
        return room is not None

    async def empty(self, node: str) -> None:
        """Move the pods with GPUs off a node whose MIG layout changes, unless they are moving already."""
        under_way = any(pod.uid in self._moved for pod in holders(self._state, node))
        emptied = replace(_NO_JOB, key=node)  # the delays of others do not count
        if not (under_way or self._is_delayed(emptied)):
            room = moves_off(self._state, node, self._wall(), self._rule)
            await self._propose(emptied, room if room and room.moves else None, "on")

    async def _make_room_in_advance(self) -> None:
        """Create headroom. No large job is pending."""
        mode = self._settings.consolidation_background
        if mode == "off" or self._small.lately(self._clock()) or self._is_delayed(_NO_JOB):
            return
        room, more = room_in_advance(self._state, self._wall(), self._rule, self._number)
        self._number += 1
        if room or not more:
            self._number = 0
            await self._propose(_NO_JOB, room, "recommend" if self._settings.evictor == "recommend" else mode)

    async def _propose(self, job: Job, room: RoomByMoves | None, mode: Mode) -> None:
        """Carry out or recommend these moves, unless there are none or they would lose too much."""
        later = window_note(self._settings, self._wall(), _LASTS) if mode == "on" else ""
        if not (room and self._affordable(room)):
            self._delay(job)
        elif mode == "recommend" or later:
            moves = later, {(move.pod.uid, move.target) for move in room.moves}
            pod, note = next(iter(job.pods), None), would_make_room(room, named=False) + later
            details = would_make_room(room) + later
            said = await self._actions.recommend(pod, moves, "MoveRecommended", note, details)
            self._actions.metrics.moves.labels("recommended").inc(said)
            for move in room.moves if later and said else ():
                note = f"It may be moved to another node, to make room{later}"
                await self._actions.say(move.pod, "MoveAnnounced", "Moving", note, note)
            self._delay(job)
        else:
            await self._move(job, room)

    def _jobs(self, waiting: Sequence[Pod]) -> Iterator[tuple[Job, float]]:
        """The jobs that pods may move for, and for how long each has waited while enough GPUs were free."""
        now = self._clock()
        if now - self._looked >= _LOOK:
            self._looked, permitted = now, None
            guarded = self._rule.small_wait < math.inf
            everybody = guarded or self._settings.consolidation_background != "off"
            mode_of = partial(mode_for, self._state, settings=self._settings)
            asked = [pod for pod in waiting if not pod.gates and (everybody or mode_of(pod) != "off")]
            jobs = waiting_jobs(self._state, asked)
            self._large_waits = any(job.gpus >= self._rule.gpus for job in jobs)
            if guarded:
                self._see_small([job for job in jobs if job.gpus < self._rule.gpus], now)
            self._known = []
            for job in jobs:
                if job.gpus < self._rule.gpus or mode_of(job.pods[0]) == "off":
                    continue
                permitted = permitted or PermittedRows(self._state)
                rows = permitted.rows_that_accept(job.pods[0])
                free = int(free_pieces(self._state.fleet, job.request)[rows].sum())
                self._known.append((job, self._waited.look(job.key, now, enough=free >= job.gpus)))
            keys = {_NO_JOB.key, *(job.key for job, _ in self._known)}
            self._waited.keep(keys)
            self._backoff.keep(keys | self._state.nodes.keys())
        if self._small.lately(now):
            return iter(())
        return iter([known for known in self._known if all(map(self._planner.waits, known[0].pods))])

    def _see_small(self, jobs: Sequence[Job], now: float) -> None:
        """Record the small jobs that started since the last check, and how long they had waited."""
        waiting = {job.key: job for job in jobs}
        for key in self._small_jobs.keys() - waiting.keys():
            job, since = self._small_jobs.pop(key)
            if self._state.pods.is_bound(job.pods[0].uid):
                self._small.started(job.gpus, now - since, now)
        for key, job in waiting.items():
            self._small_jobs.setdefault(key, (job, now))

    def _is_delayed(self, job: Job) -> bool:
        return not self._backoff.may_try(job.key, self._clock())

    def _delay(self, job: Job) -> None:
        self._backoff.delay(job.key, self._clock())

    async def _room(self, job: Job, may_lose: float) -> RoomByMoves | None:
        """The moves, if they lose no more than ``may_lose``, and nothing cheaper makes room: pods that
        terminate anyway, or evictions by priority."""
        pods = [pod for uid in job.pods if (pod := self._state.pods.by_uid(uid.uid))]
        if len(pods) == 1 and (await self._planner.plan(pods[0]))[1] not in _NO_OTHER_WAY:
            return None
        nodes, now = self._planner.nodes_of, self._wall()
        room = room_by_moves(self._state, pods, nodes, now, most=self._rule.moves, rule=self._rule)
        return room if room and room.lost <= may_lose and self._affordable(room) else None

    def _affordable(self, room: RoomByMoves) -> bool:
        gpus = float((self._state.fleet.arrays.compute_capacity > 0).sum())
        affordable = room.lost <= self._budget.left(gpus, self._wall())
        return affordable and self._actions.bucket.allows(len(room.moves), self._clock())

    async def _move(self, job: Job, room: RoomByMoves) -> None:
        plan, seconds = eviction_plan(room), self._settings.nomination_seconds
        ends = self._clock() + longest_grace(self._state, plan.to_evict) + seconds
        for move in room.moves:
            owner = job_of(move.pod)
            others = frozenset(other.uid for other in self._state.pods.values() if job_of(other) == owner)
            self._moved[move.pod.uid] = _Moved(move, others, ends)
            place = Placement(move.target, request_of(move.pod), priority=move.pod.priority)
            self._state.reservations.reserve_moved(move.pod.uid, MovedRoom(owner, place))
        nodes = room.nodes if job.pods else ()
        leaving = await self._actions.make_room(plan, nodes, lambda: all(map(self._planner.waits, job.pods)))
        evicted = {pod.uid for pod in leaving.pods}
        for uid in plan.moves_to.keys() - evicted:
            self._end(uid)
        if not evicted:
            self._delay(job)
            return
        lost = room.lost * len(evicted) / len(room.moves)
        self._budget.spend(lost, self._wall())
        self._actions.metrics.moves.labels("moved").inc(len(evicted))
        self._actions.metrics.moves_lost.inc(lost)

    def _end(self, uid: str) -> None:
        self._moved.pop(uid, None)
        self._state.reservations.release_moved(uid)

    async def _follow(self) -> None:
        """End the moves whose replacements are bound, and those that have taken too long."""
        for uid, moved in list(self._moved.items()):
            pod = self._state.pods.by_uid(uid)
            if pod is None:  # from now on, the limit for nominations applies
                moved.ends = min(moved.ends, self._clock() + self._settings.nomination_seconds)
            job = job_of(moved.move.pod)
            new = [candidate for candidate in self._state.pods.values() if candidate.uid not in moved.others]
            replacements = [replacement for replacement in new if job_of(replacement) == job]
            if placed := [pod for pod in replacements if self._state.pods.is_bound(pod.uid)]:
                self._actions.metrics.moves.labels("placed").inc()
                for other in self._moved.values():
                    if job_of(other.move.pod) == job:  # each new pod replaces only one
                        other.others |= {placed[0].uid}
                self._end(uid)
            elif self._clock() >= moved.ends:
                _log.warning("%s was moved, but its replacement was not placed", moved.move.pod.key)
                self._actions.metrics.moves.labels("not_placed").inc()
                if replacements:
                    note = "Room was reserved, but the pod was not placed in time: the room is released"
                    details = f"{note} (node {moved.move.target})"
                    await self._actions.say(replacements[0], "MoveFailed", "Moving", note, details)
                self._end(uid)


def eviction_plan(room: RoomByMoves) -> EvictionPlan:
    """All moves as the evictions of one plan, for the first pending pod."""
    moves_to = {move.pod.uid: move.target for move in room.moves}
    homes = {move.pod.node_name for move in room.moves}
    node = next(node for _, node in room.nodes if node in homes)
    here = tuple(move.pod for move in room.moves if move.pod.node_name == node)
    there = tuple(move.pod for move in room.moves if move.pod.node_name != node)
    return EvictionPlan(node, here, (room.lost,), other_nodes=there, moves_to=moves_to)
