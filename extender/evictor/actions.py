"""Carries out or recommends what is planned: nominates, dry-runs all evictions, evicts, and writes Events.

The order makes a crash harmless. After the nomination alone, no work is lost. After an eviction, the
nomination is in the cluster, and terminating pods count as room that becomes free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor.book import Book, Hold
from extender.evictor.decision import announced_at, grace_of, longest_grace, why_evicted
from extender.evictor.metrics import EvictorMetrics
from extender.inventory.devices import LAYOUT_LABEL
from extender.inventory.node_state import MIG_CHANGE, MigChange
from extender.k8s.objects import Node, Pod
from extender.settings import Settings
from extender.source.errors import NOT_LEADER, WriteError, WriteUnanswered
from extender.source.evictor_api import EvictorApi, ObjectEvent
from extender.untrusted.token_bucket import TokenBucket
from extender.untrusted.visible import many
from extender.verbs.eviction.plan import EvictionPlan

_LEAVES = ("evicted", "gone")
_NOT_REFUSED = (0, HTTPStatus.NOT_FOUND, HTTPStatus.BAD_GATEWAY)
"""Statuses of evictions that were not sent, came too late or were not answered."""
_BURST = 0.25
"""The fraction of a minute's evictions that may be made at once."""
_SHOWN, _POLL = 2.0, 0.02
"""Maximum seconds to wait until the watch shows evicted pods as terminating, and between two looks."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Leaving:
    """The outcome of a plan. ``pods``: the victims that terminate now, for any reason; fewer than all of them
    if it ``failed``. ``evictions``: number of evictions that were made, or may have been (no answer)."""

    pods: list[Pod]
    evictions: int = 0
    failed: bool = True


class Leadership(Protocol):
    """Whether this replica may write."""

    @property
    def is_leader(self) -> bool:
        """Whether it leads now."""

    def hold_during_write(self) -> AbstractContextManager[None]:
        """Context of a write: the Lease is not released before the block ends."""


class Actions:
    """The writes, which only the leader makes. Failed writes are logged and counted here.

    All plans of the evictor share the ``book``, the ``bucket`` that limits the rate of evictions, and the
    clocks: ``clock`` returns monotonic seconds, ``wall`` Unix seconds.
    """

    def __init__(
        self,
        state: State,
        api: EvictorApi,
        leadership: Leadership,
        settings: Settings,
        metrics: EvictorMetrics,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.state, self.settings, self.metrics, self.clock, self.wall = state, settings, metrics, clock, wall
        self._api, self._leadership, self.book = api, leadership, Book()
        per_minute = settings.evictions_per_minute
        self.bucket = TokenBucket(per_minute / 60, max(1.0, per_minute * _BURST))
        self.unanswered = False
        """Whether the last write got no answer from the API server."""

    @contextmanager
    def guarded(self, about: Pod | str) -> Iterator[None]:
        """Log and count an error about one pod, job or node: the round continues with the others. The pod
        loses its room, and is retried later."""
        try:
            yield
        except Exception:
            self.metrics.errors.inc()
            name = about if isinstance(about, str) else about.key
            _log.exception("%s: no room could be made", name)
            if isinstance(about, Pod):
                self.book.delay(about.uid, self.clock())
                self.book.holds.pop(about.uid, None)
                self.state.reservations.release(about.uid, Reserved.EVICTOR)

    async def waits_for_scale_up(self, pod: Pod) -> bool:
        """Whether an autoscaler has announced a node for the pod and may still provide it. Also True if that
        cannot be read: then nothing is evicted."""
        if not (seconds := self.settings.scale_up_wait_seconds):
            return False
        try:
            announced = announced_at(await self._api.events_about(pod))
        except WriteError as error:
            _log.warning("%s: its Events cannot be read: %s (status %d)", pod.key, error, error.status)
            self.book.delay(pod.uid, self.clock())
            return True
        left = (announced or 0.0) + seconds - self.wall()
        if announced is None or left <= 0:
            return False
        self.book.delay(pod.uid, self.clock(), left)
        return True

    async def make_room(
        self, plan: EvictionPlan, nodes: Sequence[tuple[Pod, str]], is_needed: Callable[[], bool]
    ) -> Leaving:
        """Nominate each of these pods to its node, evict all victims of the plan if it still ``is_needed``
        then, and hold the room. If nothing is evicted, the nominations are withdrawn."""
        nominated, leaving = list[tuple[Pod, str]](), Leaving([])
        for pod, node in nodes:
            if not await self.nominate(pod, node):
                self.book.stale[pod.uid] = node  # it may have succeeded
                break
            nominated.append((pod, node))
        else:
            leaving = await self._evict(next((pod for pod, _ in nodes), None), plan, is_needed)
        if leaving.failed and not leaving.evictions:
            for pod, node in nominated:
                self.book.holds.pop(pod.uid, None)
                await self.withdraw(pod, node)
            return Leaving([])
        # If it is partial, the nominations are kept: terminating pods are room that becomes free, which the
        # next plan counts.
        going = leaving.pods if leaving.failed else (*plan.victims, *plan.other_nodes)
        ends = self.clock() + longest_grace(self.state, plan.victims) + self.settings.nomination_seconds
        for pod, node in nodes:
            uids = frozenset(victim.uid for victim in going if victim.node_name == node)
            self.book.holds[pod.uid] = Hold(node, uids, ends, ours=True, partial=leaving.failed)
        # The next plan must count their room, and not choose them again.
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN):
                while not all(is_leaving(self.state, pod) for pod in leaving.pods):
                    await asyncio.sleep(_POLL)
        return leaving

    async def nominate(self, pod: Pod, node: str, result: str = "made") -> bool:
        """Nominate the pod, and reserve its room; whether that succeeded. ``result``: for the metric."""
        error = await self._write(lambda: self._api.nominate(pod, node), f"{pod.key}: nomination to {node}")
        self.metrics.nominations.labels("failed" if error else result).inc()
        if error is None:
            self.state.reservations.reserve(pod.uid, Reserved.EVICTOR, node)
        return error is None

    async def hold_free_room(self, pod: Pod, node: str) -> bool:
        """Nominate the pod to a node where it fits now, and reserve the room; whether that succeeded."""
        held = await self.nominate(pod, node, "replacement")
        if held:
            ends = self.clock() + self.settings.nomination_seconds
            self.book.holds[pod.uid] = Hold(node, frozenset(), ends, ours=True, was_free=True)
        return held

    async def withdraw(self, pod: Pod, node: str) -> None:
        """Clear the nomination if it still names the node, and release the room."""
        self.state.reservations.release(pod.uid, Reserved.EVICTOR)
        what = f"{pod.key}: withdrawal of the nomination to {node}"
        error = await self._write(lambda: self._api.clear_nomination(pod, node), what)
        self.metrics.nominations.labels("failed" if error else "cleared").inc()

    async def _evict(self, pod: Pod | None, plan: EvictionPlan, is_needed: Callable[[], bool]) -> Leaving:
        """Evict all victims of the plan for the pod that is nominated there (None: no pod is pending)."""
        victims, done = plan.to_evict, Leaving([])
        for victim in victims:
            result = await self._try(victim, dry_run=True)
            if result not in _LEAVES:
                return done
            if result == "gone":
                done.pods.append(victim)  # the watch may show it later
        if victims and not is_needed():
            return Leaving([])
        for victim in [candidate for candidate in victims if candidate not in done.pods]:
            if is_leaving(self.state, victim):
                done.pods.append(victim)
                continue
            result = await self._try(victim, dry_run=False)
            done.evictions += result in ("evicted", "unanswered")
            self.bucket.take(result in ("evicted", "unanswered"), self.clock())
            if result not in _LEAVES:
                break
            done.pods.append(victim)
            if result == "evicted":
                await self._tell_victim(pod, plan, victim)
        done.failed = len(done.pods) < len(victims)
        if done.evictions and pod:
            text = f"Evicting {many(done.evictions, 'pod')} to make room ({plan.cost_text})"
            await self._write_event(ObjectEvent(pod, "Preempting", "Preempting", text))
        return done

    async def recommend(self, pod: Pod | None, what: object, reason: str, note: str, details: str) -> bool:
        """Recommend how to make room for the pod (None: headroom), unless the last recommendation with this
        ``reason`` was the same; returns whether it was not."""
        key = reason, pod.uid if pod else ""
        if self.book.said.get(key) == what:
            return False
        self.book.said[key] = what
        await self.say(pod, reason, "Recommending", note, details)
        return True

    async def say(self, pod: Pod | None, reason: str, action: str, note: str, details: str) -> None:
        """Write an Event of the pod, and log the details, which may name other pods and nodes."""
        _log.info("%s: %s", pod.key if pod else "no pending pod", details)
        if pod:
            await self._write_event(ObjectEvent(pod, reason, action, note))

    async def write_layout(self, node: Node, change: MigChange | None, label: str = "") -> bool:
        """Write the state of the change of the node's MIG layout (None removes it), and the label that the
        MIG manager follows ("": unchanged); whether that succeeded."""
        labels = {LAYOUT_LABEL: label} if label else {}
        text = change.text() if change else None
        error = await self._write(
            lambda: self._api.annotate_node(node, MIG_CHANGE, text, labels), f"node {node.name}: MIG layout"
        )
        return error is None

    async def say_layout(self, node: Node, result: str, text: str, pod: Pod | None = None) -> None:
        """Write an Event about the MIG layout of the node, and of the pod for which it changes."""
        reason = "MigLayout" + "".join(map(str.capitalize, result.split("_")))
        for about in (node, pod) if pod else (node,):
            await self._write_event(ObjectEvent(about, reason, "ChangingMigLayout", text))

    async def _try(self, victim: Pod, *, dry_run: bool) -> str:
        """Evict a pod, or only dry-run the eviction. Returns one of ``RESULTS``."""
        grace = grace_of(self.state, victim)
        error = await self._write(
            lambda: self._api.evict(victim, grace, dry_run=dry_run),
            f"{victim.key}: {'dry run of an eviction' if dry_run else 'eviction'}",
            expected=(HTTPStatus.NOT_FOUND,),
        )
        result = _result(error)
        if error is not None and error.status not in _NOT_REFUSED:
            self.state.disruptions.note_refused(victim, self.wall())
        if result != "evicted" or not dry_run:
            self.metrics.evictions.labels(result).inc()
        return result

    async def _tell_victim(self, pod: Pod | None, plan: EvictionPlan, victim: Pod) -> None:
        why, whom = why_evicted(self.state, plan, victim, pod or victim), pod.key if pod else "headroom"
        text = "evicted %s from %s for %s: %s (%s)"
        _log.info(text, victim.key, victim.node_name, whom, why, plan.cost_text)
        # As in kube-scheduler's Event, the text has the preemptor's UID.
        word, action = ("Moved", "Moving") if victim.uid in plan.moves_to else ("Preempted", "Preempting")
        whom = f"{'for' if plan.moves_to else 'by'} pod {pod.uid}" if pod else "to create headroom"
        text = f"{word} {whom} on node {victim.node_name}: {why}"
        await self._write_event(ObjectEvent(victim, word, action, text, pod))

    async def _write_event(self, event: ObjectEvent) -> None:
        await self._write(lambda: self._api.write_event(event), f"{event.about.name}: Event")

    async def _write(
        self, call: Callable[[], Awaitable[None]], what: str, expected: Sequence[int] = ()
    ) -> WriteError | None:
        """Make a write; returns its error. ``expected`` statuses are not logged."""
        if not self._leadership.is_leader:
            return WriteError(NOT_LEADER)
        with self._leadership.hold_during_write():
            try:
                self.unanswered = False
                await call()
            except WriteError as error:
                self.unanswered = isinstance(error, WriteUnanswered)
                if error.status not in expected:
                    _log.warning("%s failed: %s (status %d)", what, error, error.status)
                return error
        return None


def is_leaving(state: State, pod: Pod) -> bool:
    """Whether the state shows that the pod terminates or has ended."""
    known = state.pods.by_uid(pod.uid)
    return known is None or known.deleting


def _result(error: WriteError | None) -> str:
    if error is None:
        return "evicted"
    if isinstance(error, WriteUnanswered):
        return "unanswered"
    results: dict[int, str] = {HTTPStatus.NOT_FOUND: "gone", HTTPStatus.TOO_MANY_REQUESTS: "budget"}
    return results.get(error.status, "refused")
