"""One running Stowage: what it waits for, and what it says when something goes wrong. Bytes in, bytes out.

kube-scheduler counts only status 200 as an answer and throws the body of any other away, so the form of a
refusal follows from what it does next:

==========  =================  =========================================================================
verb        a refusal is       what kube-scheduler does with it
==========  =================  =========================================================================
filter      200 and ``Error``  fails the attempt, shows the text in the pod's event, tries again later
bind        200 and ``Error``  fails the binding, shows the text in the pod's event, tries again later
prioritize  400 to 503         goes on without our scores, without a word: alert on the metric
preempt     400 to 503         fails the preemption; an empty reply (no preemption) would hide the fault
==========  =================  =========================================================================

A body beyond the limit is 413 for all. No refusal and no log line quotes the pod. No HTTP here, and nothing
that loads compiled code: a process must be able to say that it is not ready yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from extender.k8s.objects import Event
from extender.protocol.messages import VERBS, BadMessage, Verb, bind_error, filter_error
from extender.server.assumed_pod_expiry import keep
from extender.server.leader_elector import Elector
from extender.server.metrics import Gauges, Metrics
from extender.settings import Settings
from extender.source.interface import Source

if TYPE_CHECKING:
    from extender.server.engine import Engine

_VERSION_EVERY = 600  # seconds: the control plane may be upgraded under us
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back: JSON, or a line of text for a refusal that the protocol has no place for."""

    body: bytes
    status: int = 200

    @property
    def content_type(self) -> str:
        """The media type of the body."""
        return "application/json" if self.status == 200 else "text/plain; charset=utf-8"


class Service:
    """Settings, the source of state, metrics, readiness, and the engine as soon as there is one.

    Raises ``Unavailable`` where the source has no Lease for the setting ``leader_election``.
    """

    def __init__(
        self, settings: Settings, source: Source, version: str, prepare: Callable[[], None] = lambda: None
    ) -> None:
        """``prepare`` is called in a thread before any kernel is loaded."""
        self.settings = settings
        self._prepare = prepare
        self.source = source
        self.version = version
        self.engine: Engine | None = None
        self.draining = False
        self._elector = _elector(settings, source)
        if settings.mig_manager is not None:
            namespace, _, name = settings.mig_manager.partition("/")
            source.follow_mig_layouts(namespace, name)
        self.metrics = Metrics(version, self._gauges, VERBS)

    async def run(self) -> None:
        """Start, then keep the policy's tables and the API server's version current, until cancelled.

        Raises ``SourceError`` or ``SettingsError`` where the source or the policy cannot be used.
        """
        try:
            engine = await self.start()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(engine.refresher.run())
                tasks.create_task(self._follow_version(engine))
                tasks.create_task(keep(engine.state, self.source))
                if self._elector is not None:
                    tasks.create_task(self._elector.run(lambda: not self.missing()))
        finally:
            self.source.stop()

    async def _follow_version(self, engine: Engine) -> None:
        while True:
            engine.set_server_version(await asyncio.to_thread(self.source.server_version))
            await asyncio.sleep(_VERSION_EVERY)

    async def start(self) -> Engine:
        """Begin to follow the source, and compile the kernels meanwhile. Raises as ``run``."""
        loop = asyncio.get_running_loop()
        early: deque[Sequence[Event]] = deque()

        def take(events: Sequence[Event]) -> None:
            if self.engine is None:
                early.append(events)
            else:
                self.engine.apply(events)

        def apply(events: Sequence[Event]) -> None:
            loop.call_soon_threadsafe(take, events)

        await asyncio.to_thread(self.source.start, apply)
        engine = await asyncio.to_thread(self._load)
        while early:
            engine.apply(early.popleft())
            await asyncio.sleep(0)  # there may be much of it, and probes want an answer
        self.engine = engine
        return engine

    async def leave(self) -> None:
        """Be ready no more, and make way for another replica. Requests are still answered."""
        self.draining = True
        if self._elector is not None:
            await self._elector.resign()

    def waiting_for(self) -> str:
        """Why ``/readyz`` is not 200; "" when it is."""
        return "draining" if self.draining else self.missing() or self._not_leader()

    def missing(self) -> str:
        """What is not known yet, so that nothing can be answered; "" when all is."""
        return self.engine.missing() if self.engine else "kernels are being compiled"

    async def answer(self, verb: Verb, body: bytes) -> Reply:
        """Answer one request, whatever happens."""
        started = perf_counter()
        reply, result = await self._answer(verb, body)
        self.metrics.answered(verb, result, perf_counter() - started)
        return reply

    def refuse(self, verb: Verb, result: str, text: str, status: int) -> Reply:
        """Refuse a request that was not even read."""
        self.metrics.answered(verb, result)
        return _refusal(verb, text, status)

    async def _answer(self, verb: Verb, body: bytes) -> tuple[Reply, str]:
        # Any replica knows what fits; only one may hand it out.
        missing = self.missing() or (self._not_leader() if verb == "bind" else "")
        if missing or self.engine is None:
            return _refusal(verb, f"Stowage is not ready: {missing}", 503), "not_ready"
        try:
            with self._elector.acting() if self._elector and verb == "bind" else nullcontext():
                answer, result = await self.engine.verbs[verb](body)
            return Reply(answer), result
        except BadMessage as error:
            return _refusal(verb, f"no {verb} request: {error}", 400), "bad_message"
        except Exception as error:  # the edge: one bad request must not end the service
            _log.exception("%s failed", verb)
            text = f"{type(error).__name__} inside Stowage, see its log"
            return _refusal(verb, text, 500), "internal_error"

    def _load(self) -> Engine:
        self._prepare()
        from extender.server.engine import Engine

        return Engine(self.source, self.settings, self.metrics)

    def _not_leader(self) -> str:
        return self._elector.waiting_for() if self._elector else ""

    def _gauges(self) -> Gauges:
        gauges = self.engine.gauges() if self.engine else Gauges()
        return replace(gauges, is_leader=self._elector.is_leader) if self._elector else gauges


def _elector(settings: Settings, source: Source) -> Elector | None:
    if settings.leader_election is None:
        return None
    namespace, name = settings.leader_election.split("/")
    seconds = settings.lease_seconds
    return Elector(source, source.lease(namespace, name, seconds), seconds)


def _refusal(verb: Verb, text: str, status: int) -> Reply:
    if status != 413 and verb == "filter":
        return Reply(filter_error(text))
    if status != 413 and verb == "bind":
        return Reply(bind_error(text))
    return Reply(text.encode(), status)
