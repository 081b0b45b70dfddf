"""The evictor's loop: each round makes room for the most urgent pending pods, on the leader only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor.actions import Actions, Leadership, Leaving, is_leaving
from extender.evictor.book import Book, Hold, Recommendation
from extender.evictor.consolidation import Consolidation
from extender.evictor.decision import (
    Skipped,
    adopt,
    announced_at,
    candidates,
    longest_grace,
    next_step_of_hold,
    waiting_pods,
)
from extender.evictor.layout_changes import LayoutChanges
from extender.evictor.metrics import EvictorMetrics
from extender.evictor.planner import Asked, Planner, gang_fits, replacements, to_check
from extender.k8s.objects import REQUIRED_KINDS, Pod
from extender.settings import Settings
from extender.source.errors import WriteError
from extender.source.evictor_api import EvictorApi
from extender.source.interface import Source
from extender.verbs.eviction.plan import EvictionPlan

INTERVAL = 1.0
"""Seconds between two rounds."""
_PLANS = 10
"""Maximum pods planned for per round. A plan takes milliseconds, during which requests wait."""
_SHOWN = 2.0
"""Maximum seconds to wait until the watch shows evicted pods as terminating."""
_POLL = 0.02  # seconds
_AGAIN = 1.0
"""Seconds until a new plan after one that was only partly carried out."""

_log = logging.getLogger(__name__)


class Evictor:
    """Makes room for pending pods, or recommends how in the mode ``recommend``."""

    def __init__(
        self,
        state: State,
        source: Source,
        api: EvictorApi,
        leadership: Leadership,
        settings: Settings,
        asked: Asked,
        metrics: EvictorMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns monotonic seconds, ``wall`` Unix seconds."""
        self._state, self._source, self._api, self._leadership = state, source, api, leadership
        self._settings, self._asked, self._clock, self._wall = settings, asked, clock, wall
        self.actions = Actions(state, api, leadership, settings, metrics, clock, wall)
        self._planner = Planner(state, asked, wall)
        moves = Consolidation(self.actions, self._planner, self._waits_for_scale_up)
        self.plans = (moves, LayoutChanges(self.actions, self._planner, moves))

    @property
    def _book(self) -> Book:
        return self.actions.book

    async def run(self) -> None:
        """Rounds until cancelled. No error ends it."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.round()
            except Exception:
                self.actions.metrics.errors.inc()
                _log.exception("a round of the evictor failed")

    async def round(self) -> None:
        """Run a round. Does nothing unless this replica leads and its state is up to date."""
        if not self._leadership.is_leader:
            self._forget_everything()
            return
        if not (self._state.synced >= REQUIRED_KINDS and await self._source.caught_up()):
            return
        began, skipped, self.actions.unanswered = self._clock(), Skipped(), False
        waiting = waiting_pods(self._state, self._asked.schedulers)
        self._book.see({pod.uid for pod in waiting}, began)
        for pod in [candidate for candidate in waiting if self._book.may_try(candidate.uid, began)]:
            with self._guarded(pod):
                adopt(
                    self._state,
                    self._book,
                    pod,
                    began,
                    self._settings.nomination_seconds,
                    self._wall(),
                )
        await self._keep_holds()
        replacing = replacements(self._state, waiting, self._wall())
        if self._settings.evictor == "on":
            await self._hold_free_room(replacing, waiting)
        await self._make_room(candidates(self._book, waiting, began, skipped, replacing), skipped)
        for plan in self.plans:
            with self.actions.guarded(type(plan).__name__):
                await plan.round(waiting)
        self.actions.metrics.round_ended(self._clock() - began, skipped)

    def _forget_everything(self) -> None:
        for uid in self._state.reservations.by_reason(Reserved.EVICTOR):
            self._state.reservations.release(uid, Reserved.EVICTOR)
        for plan in self.plans:
            plan.forget()
        self.actions.book = Book()

    def _guarded(self, pod: Pod | None) -> AbstractContextManager[None]:
        """``Actions.guarded``; the pod also loses its room, and is retried later."""
        if pod is None:
            return self.actions.guarded("a deleted pod")
        return self.actions.guarded(pod.key, lambda: self._give_up(pod))

    def _give_up(self, pod: Pod) -> None:
        self._book.delay(pod.uid, self._clock())
        self._book.holds.pop(pod.uid, None)
        self._state.reservations.release(pod.uid, Reserved.EVICTOR)

    async def _keep_holds(self) -> None:
        for uid in list(self._book.holds):
            pod = self._state.pods.by_uid(uid)
            with self._guarded(pod):
                await self._keep_hold(uid, pod)

    async def _keep_hold(self, uid: str, pod: Pod | None) -> None:
        hold, seconds = self._book.holds[uid], self._settings.nomination_seconds
        step = next_step_of_hold(self._state, self._book, uid, self._clock(), seconds, self._wall())
        if step is None:
            return
        if step == "nominate" and pod is not None:
            if not await self.actions.nominate(pod, hold.node, "renewed"):
                self._book.delay(uid, self._clock())
            return
        del self._book.holds[uid]
        if pod is None or pod.node_name:
            return
        if pod.nominated_node == hold.node:
            self._book.stale[uid] = hold.node
            self._book.delay(uid, self._clock())
        if step == "clear":
            _log.warning("%s was not bound to %s in time, its room is released", pod.key, hold.node)
            await self.actions.withdraw(pod, hold.node)
        else:
            self._state.reservations.release(pod.uid, Reserved.EVICTOR)

    async def _hold_free_room(self, replacing: Collection[str], waiting: Sequence[Pod]) -> None:
        """Nominate pending pods that replace interrupted pods to nodes where they fit now."""
        for pod in to_check(self._state, self._book, replacing, waiting):
            with self._guarded(pod):
                if not (node := self._planner.free_node(pod, waiting)):
                    continue
                self._book.count_attempt(pod.uid, last=await self.actions.hold_free_room(pod, node))
            if self.actions.unanswered or not self._leadership.is_leader:
                return

    async def _make_room(self, pods: Sequence[Pod], skipped: Skipped) -> None:
        for number, pod in enumerate(pods):
            if not self._leadership.is_leader:
                return
            if not self.actions.bucket.allows(1, self._clock()):
                skipped["rate"] += len(pods) - number
                return
            if number >= _PLANS:
                return
            reason = ""
            with self._guarded(pod):
                reason = await self._make_room_for(pod)
            if reason:
                skipped[reason] += 1
            if reason == "rate" or self.actions.unanswered:
                return  # less urgent pods must not use up the budget that it waits for
            await asyncio.sleep(0)

    async def _make_room_for(self, pod: Pod) -> str:
        """Evict for the pod, or return why not. The state stays the same from plan to nomination."""
        plan, reason = await self._planner.plan(pod, self._book.recommended.values())
        if plan is None:
            self._book.recommended.pop(pod.uid, None)
            self._book.delay(pod.uid, self._clock())
            return reason
        if not await gang_fits(self._state, pod, plan, self._planner.place):
            self._book.delay(pod.uid, self._clock())
            return "gang"
        if not self.actions.bucket.allows(len(plan.to_evict), self._clock()):
            return "rate"
        if self._settings.scale_up_wait_seconds and await self._waits_for_scale_up(pod):
            return "scale_up"
        # The cluster may have changed in the meantime.
        if (plan := self._planner.confirmed(pod, plan, self._book.recommended.values())) is None:
            return "no_plan"
        victims = plan.to_evict
        if self._settings.evictor == "recommend":
            return await self._recommend(pod, plan, victims)
        return await self._act(pod, plan, victims)

    async def _waits_for_scale_up(self, pod: Pod) -> bool:
        """Whether an autoscaler has announced a node for the pod and may still provide it. Also True if that
        cannot be read: then nothing is evicted."""
        try:
            announced = announced_at(await self._api.events_about(pod))
        except WriteError as error:
            _log.warning("%s: its Events cannot be read: %s (status %d)", pod.key, error, error.status)
            self._book.delay(pod.uid, self._clock())
            return True
        left = (announced or 0.0) + self._settings.scale_up_wait_seconds - self._wall()
        if announced is None or left <= 0:
            return False
        self._book.delay(pod.uid, self._clock(), left)
        return True

    async def _recommend(self, pod: Pod, plan: EvictionPlan, victims: Sequence[Pod]) -> str:
        uids = frozenset(victim.uid for victim in victims)
        others = (earlier.victims for uid, earlier in self._book.recommended.items() if uid != pod.uid)
        new = uids.difference(*others)
        recommendation = Recommendation(pod.uid, plan.node, new)
        if new and self._book.recommended.get(pod.uid) != recommendation:
            await self.actions.recommend(pod, plan, [victim for victim in victims if victim.uid in new])
        self._book.recommended[pod.uid] = recommendation
        self._book.delay(pod.uid, self._clock())
        return "" if new else "room_is_coming"

    async def _act(self, pod: Pod, plan: EvictionPlan, victims: Sequence[Pod]) -> str:
        if not await self.actions.nominate(pod, plan.node):
            self._book.stale[pod.uid] = plan.node  # it may have succeeded
            self._book.delay(pod.uid, self._clock())
            return "refused"
        leaving = Leaving([], 0)
        if victims:
            leaving = await self.actions.evict(pod, plan, lambda: self._planner.needs_room(pod))
        now = self._clock()
        # If it is partial, the nomination is kept: terminating pods are room that becomes free, which the
        # next plan counts.
        partial = len(leaving.pods) < len(victims)
        if partial and not leaving.evictions:
            self._book.holds.pop(pod.uid, None)
            self._book.delay(pod.uid, now)
            await self.actions.withdraw(pod, plan.node)
            return "refused"
        ends = now + longest_grace(self._state, plan.victims) + self._settings.nomination_seconds
        uids = frozenset(pod.uid for pod in (leaving.pods if partial else plan.victims))
        self._book.holds[pod.uid] = Hold(plan.node, uids, ends, ours=True, partial=partial)
        self._book.delay(pod.uid, now, _AGAIN)
        await self._until_shown(leaving.pods)
        return "refused" if partial else "" if victims else "room_is_coming"

    async def _until_shown(self, evicted: Sequence[Pod]) -> None:
        """Wait until the state shows evicted pods as terminating: the next plan must count their room and not
        choose them again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN):
                while not all(is_leaving(self._state, pod) for pod in evicted):
                    await asyncio.sleep(_POLL)
