"""The evictor's loop: each round makes room for the most urgent pending pods, on the leader only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor.actions import Actions, Leadership
from extender.evictor.book import Book, Recommendation
from extender.evictor.consolidation import Consolidation
from extender.evictor.decision import (
    Skipped,
    adopt,
    candidates,
    next_step_of_hold,
    waiting_pods,
)
from extender.evictor.layout_changes import LayoutChanges
from extender.evictor.metrics import EvictorMetrics
from extender.evictor.planner import Asked, Planner, to_check
from extender.k8s.objects import REQUIRED_KINDS, Pod
from extender.settings import Settings
from extender.source.evictor_api import EvictorApi
from extender.source.interface import Source
from extender.untrusted.visible import many
from extender.verbs.eviction.plan import EvictionPlan, named

INTERVAL = 1.0
"""Seconds between two rounds."""
_PLANS = 10
"""Maximum pods planned for per round. A plan takes milliseconds, during which requests wait."""
_AGAIN = 1.0
"""Seconds until a new plan after one that was only partly carried out."""
_URGENT = 10.0
"""Seconds until the next search for a member that a running gang lacks: all its other GPUs are idle."""

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
        moves = Consolidation(self.actions, self._planner)
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
            for uid in self._state.reservations.by_reason(Reserved.EVICTOR):
                self._state.reservations.release(uid, Reserved.EVICTOR)
            for plan in self.plans:
                plan.forget()
            self.actions.book = Book()
            return
        if not (self._state.synced >= REQUIRED_KINDS and await self._source.caught_up()):
            return
        began, skipped, self.actions.unanswered = self._clock(), Skipped(), False
        waiting = waiting_pods(self._state, self._asked.schedulers)
        self._book.see({pod.uid for pod in waiting}, began)
        seconds = self._settings.nomination_seconds
        for pod in [candidate for candidate in waiting if self._book.may_try(candidate.uid, began)]:
            with self.actions.guarded(pod):
                adopt(self._state, self._book, pod, began, seconds, self._wall())
        await self._keep_holds()
        replaces, completes = self._state.disruptions.replaces_interrupted, self._state.gangs.is_replacement
        urgent = {pod.uid for pod in waiting if completes(pod)}
        replacing = urgent | {pod.uid for pod in waiting if replaces(pod, self._wall())}
        if self._settings.evictor == "on":
            await self._hold_free_room(replacing, waiting)
        await self._make_room(candidates(self._book, waiting, began, skipped, replacing, urgent), skipped)
        for plan in self.plans:
            with self.actions.guarded(type(plan).__name__):
                await plan.round(waiting)
        self.actions.metrics.round_ended(self._clock() - began, skipped)

    async def _keep_holds(self) -> None:
        book, seconds = self._book, self._settings.nomination_seconds
        for uid, hold in list(book.holds.items()):
            pod = self._state.pods.by_uid(uid)
            with self.actions.guarded(pod or "a deleted pod"):
                step = next_step_of_hold(self._state, book, uid, self._clock(), seconds, self._wall())
                if step == "nominate" and pod and not await self.actions.nominate(pod, hold.node, "renewed"):
                    book.delay(uid, self._clock())
                if step not in ("drop", "clear"):
                    continue
                del book.holds[uid]
                if pod is None or pod.node_name:
                    continue
                if pod.nominated_node == hold.node:
                    book.stale[uid] = hold.node
                    book.delay(uid, self._clock())
                if step == "clear":
                    _log.warning("%s was not bound to %s in time, its room is released", pod.key, hold.node)
                    await self.actions.withdraw(pod, hold.node)
                else:
                    self._state.reservations.release(uid, Reserved.EVICTOR)

    async def _hold_free_room(self, replacing: Collection[str], waiting: Sequence[Pod]) -> None:
        """Nominate pending pods that replace interrupted pods to nodes where they fit now."""
        for pod in to_check(self._state, self._book, replacing, waiting):
            with self.actions.guarded(pod):
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
            with self.actions.guarded(pod):
                reason = await self._make_room_for(pod)
            if reason:
                skipped[reason] += 1
            if reason == "rate" or self.actions.unanswered:
                return  # less urgent pods must not use up the budget that it waits for
            await asyncio.sleep(0)

    async def _make_room_for(self, pod: Pod) -> str:
        """Evict for the pod, or return why not. The state stays the same from plan to nomination."""
        plan, reason = await self._planner.plan(pod, self._book.recommended.values())
        completes = self._state.gangs.is_replacement(pod)
        if plan is None:
            self._book.recommended.pop(pod.uid, None)
            self._book.delay(pod.uid, self._clock(), _URGENT if completes else None)
            return reason
        if not await self._planner.gang_fits(pod, plan):
            self._book.delay(pod.uid, self._clock())
            return "gang"
        if not self.actions.bucket.allows(len(plan.to_evict), self._clock()):
            return "rate"
        if not completes and await self.actions.waits_for_scale_up(pod):
            return "scale_up"
        # The cluster may have changed in the meantime.
        if (plan := self._planner.confirmed(pod, plan, self._book.recommended.values())) is None:
            return "no_plan"
        if self._settings.evictor == "recommend":
            return await self._recommend(pod, plan)
        leaving = await self.actions.make_room(
            plan, [(pod, plan.node)], lambda: self._planner.needs_room(pod)
        )
        self._book.delay(pod.uid, self._clock(), _AGAIN if leaving.evictions or not leaving.failed else None)
        return "refused" if leaving.failed else "" if plan.to_evict else "room_is_coming"

    async def _recommend(self, pod: Pod, plan: EvictionPlan) -> str:
        """Recommend the evictions, without those that are recommended for other pods already."""
        recommended = self._book.recommended
        others = (earlier.victims for uid, earlier in recommended.items() if uid != pod.uid)
        new = frozenset(victim.uid for victim in plan.to_evict).difference(*others)
        recommended[pod.uid] = Recommendation(pod.uid, plan.node, new)
        if new:
            victims = named(victim for victim in plan.to_evict if victim.uid in new)
            details = f"it would fit on {plan.node} without {victims} ({plan.cost_text})"
            note = f"Evicting {many(len(new), 'pod')} would make room ({plan.cost_text})"
            what = recommended[pod.uid]
            is_new = await self.actions.recommend(pod, what, "EvictionRecommended", note, details)
            self.actions.metrics.recommendations.inc(is_new)
        self._book.delay(pod.uid, self._clock())
        return "" if new else "room_is_coming"
