"""One running Stowage: its readiness, and the reply to each request, from bytes to bytes.

kube-scheduler accepts only status 200 and drops the body of other replies, so the form of a refusal depends
on what kube-scheduler does next:

==========  =================  =========================================================================
verb        a refusal is       what kube-scheduler does with it
==========  =================  =========================================================================
filter      200 and ``Error``  fails the attempt, shows the text in the pod's event, retries later
bind        200 and ``Error``  fails the binding, shows the text in the pod's event, retries later
prioritize  400 to 503         continues silently without our scores: alert on the metric
preempt     400 to 503         fails the preemption; an empty reply (no preemption) would hide the error
volcano/*   400 to 503         depends on its configuration (``extender.ignorable``): docs/volcano.md
==========  =================  =========================================================================

A body beyond the limit is 413 for all verbs. No refusal and no log line quotes the pod. Importing this module
loads no kernels, so that a process can answer that it is not ready yet.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from extender.background import Background, Run
from extender.explain.answers import Replica
from extender.protocol.messages import TEXT, VERBS, BadMessage, Reply, Verb, bind_error, filter_error
from extender.protocol.volcano import VOLCANO_VERBS, VolcanoVerb
from extender.server.between_answers import EventQueue
from extender.server.debug_auth import auth_of
from extender.server.gauges import counter, gauge
from extender.server.leader_elector import LeaderElector, elector_of
from extender.server.metrics import Metrics
from extender.settings import Settings, SettingsError
from extender.source.errors import LeaseError
from extender.source.evictor_api import EvictorApi
from extender.source.interface import Source
from extender.untrusted.visible import visible

if TYPE_CHECKING:  # it loads kernels
    from extender.server.engine import Engine
    from extender.server.tracing import Tracing

_POLL = 0.02  # seconds
_VERSION_INTERVAL = 600  # seconds; the control plane may be upgraded while we run
_log = logging.getLogger(__name__)
_NO_LEASE = nullcontext()  # made once, not for each request
PROBES = ("/healthz", "/livez", "/readyz")
"""Paths that kubelet asks."""


class Service:
    """Settings, source and metrics, and the engine once the kernels are loaded."""

    def __init__(
        self,
        settings: Settings,
        source: Source,
        version: str,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """``prepare`` is called in a thread before kernels are loaded.

        Raises ``Unavailable`` if the settings need a Lease, the evictor, token reviews or a node selector,
        and the source does not support it. Raises ``SettingsError`` if the token file has no token, or the
        setting ``tracing`` lacks its extra.
        """
        self.settings, self.source, self.version = settings, source, version
        self._prepare = prepare
        self.engine: Engine | None = None
        self.background = Background()
        self.started = datetime.now(UTC)
        self.draining = False
        self._elector = elector_of(settings.leader_election, settings, source)
        self._evictor_elector: LeaderElector | None = None
        if settings.evictor != "off" or settings.shield_configmap or settings.kueue_priority_boost:
            own = elector_of(settings.evictor_lease, settings, source, limits_binds=False)
            self._evictor_elector = own or self._elector
        if self._evictor_elector is not None:
            self._evictor_api = EvictorApi(
                source.api_client("evictor, shield_configmap, kueue_priority_boost"),
                self._evictor_elector.write_deadline,
            )
        self.debug_auth = auth_of(settings, source)
        self.tracing = _tracing(version) if settings.tracing else None
        if settings.node_selector is not None:
            source.select_nodes(settings.node_selector, settings.shard_schedulers)
        if settings.mig_manager is not None:
            namespace, _, name = settings.mig_manager.partition("/")
            source.follow_mig_layouts(namespace, name)
        self.metrics = Metrics(self._collect, self.verbs)

    @property
    def verbs(self) -> tuple[Verb | VolcanoVerb, ...]:
        return (*VERBS, *(VOLCANO_VERBS if self.settings.volcano else ()))

    async def run(self) -> None:
        """Start, then run the background tasks until cancelled.

        Raises ``SourceError`` if the source cannot be used, and ``SettingsError`` if the policy cannot.
        """
        try:
            engine = await self.start()
            await self.background.keep_all(self._tasks(engine))
        finally:
            self.source.stop()

    def _tasks(self, engine: Engine) -> Iterator[tuple[str, Run]]:
        yield from engine.tasks()
        yield "version of the API server", lambda: self._update_version(engine)
        for name, elector in self._electors():
            yield name, partial(elector.run, self.until_ready)
        if self._evictor_elector is not None:
            yield from self._evictor_tasks(engine, self._evictor_elector)

    def _electors(self) -> Iterator[tuple[str, LeaderElector]]:
        """The electors of the service and of the evictor, each with the name of its task."""
        if self._elector is not None:
            yield "election", self._elector
        if self._evictor_elector not in (None, self._elector):
            yield "election of the evictor", self._evictor_elector

    def _evictor_tasks(self, engine: Engine, elector: LeaderElector) -> Iterator[tuple[str, Run]]:
        # Here, because they load kernels.
        from extender.evictor.kueue_boosts import KueueBooster
        from extender.evictor.large_jobs import LargeJobReserver
        from extender.evictor.loop import Evictor
        from extender.evictor.metrics import EvictorMetrics
        from extender.evictor.shield import ShieldKeeper

        settings, api = self.settings, self._evictor_api
        if settings.evictor != "off":
            metrics, asked = EvictorMetrics(self.metrics.registry), engine.asked()
            yield "evictor", Evictor(engine.state, self.source, api, elector, settings, asked, metrics).run
        if settings.kueue_priority_boost:
            yield "boosts", KueueBooster(engine.state, api, elector, self.metrics.registry).run
        if settings.shield_configmap is not None:
            namespace, _, name = settings.shield_configmap.partition("/")
            state, reserves = engine.state, settings.reserve != "off" or settings.evictor == "on"
            parts = (state.disruptions, state.large_jobs) if reserves else (state.disruptions,)
            keeper = ShieldKeeper(parts, api, elector, namespace, name, follows=reserves)
            yield "shield", keeper.run
            if reserves:
                asked = engine.asked()
                reserver = LargeJobReserver(state, keeper, settings, asked.schedulers)
                yield "reservations", reserver.run

    async def _update_version(self, engine: Engine) -> None:
        while True:
            if version := await asyncio.to_thread(self.source.server_version):  # else keep the last one
                engine.set_server_version(version)
            await asyncio.sleep(_VERSION_INTERVAL)

    async def start(self) -> Engine:
        """Start the source, and load the kernels at the same time. Raises like ``run``."""
        self._events = events = EventQueue(lambda: not self.missing())
        await asyncio.to_thread(self.source.start, events.put, events, self.background)

        def load() -> Engine:
            self._prepare()
            from extender.server.engine import Engine

            return Engine(self.source, self.settings, self.metrics)

        engine = await asyncio.to_thread(load)
        engine.inspector.replica, engine.tracing = self.replica, self.tracing
        await events.open(engine.apply)
        self.engine = engine
        return engine

    async def leave(self) -> None:
        """Stop being ready, and release the Lease. Requests are still answered."""
        self.draining = True
        for _, elector in self._electors():
            await elector.resign()

    def waiting_for(self) -> str:
        """Why ``/readyz`` is not 200; "" if it is."""
        return "draining" if self.draining else self.missing() or self._not_leader()

    def checks(self) -> dict[str, str]:
        """The checks of ``/readyz``, named as in kube-scheduler, and why each fails; "" if it passes."""
        elected = {} if self._elector is None else {"leaderElection": self._not_leader()}
        return {"shutdown": "draining" if self.draining else "", "informer-sync": self.missing(), **elected}

    async def until_ready(self) -> None:
        """Return when the verbs can be answered."""
        while self.missing():
            await asyncio.sleep(_POLL)

    def missing(self) -> str:
        """Why no verb can be answered yet; "" if all can."""
        return self.engine.missing() if self.engine else "kernels are being compiled"

    def lease_failure(self) -> LeaseError | None:
        """Why the last use of the Lease failed; None if it succeeded, or without a Lease."""
        return self._elector.failure if self._elector else None

    def replica(self) -> Replica:
        """The name of this replica, and the leader."""
        name = socket.gethostname()
        if self._elector is None:
            return Replica(name) if self.source.has_other_readers else Replica(name, True, name)
        leads = self._elector.is_leader
        return Replica(name, leads, name if leads else self._elector.leader)

    async def answer(self, verb: Verb | VolcanoVerb, body: bytes) -> Reply:
        """Answer a request. Never raises."""
        started = perf_counter()
        reply, result = await self._answer(verb, body)
        if self.tracing:
            self.tracing.note(result=result)
        counted = partial(self.metrics.answered, verb, result, perf_counter() - started)
        if self.engine is not None:
            self.engine.after.add(counted)
        else:
            counted()
        return reply

    def refuse(self, verb: Verb | VolcanoVerb, result: str, text: str, status: int) -> Reply:
        """Refuse a request whose body was not read."""
        self.metrics.answered(verb, result)
        return _refusal(verb, text, status)

    async def _answer(self, verb: Verb | VolcanoVerb, body: bytes) -> tuple[Reply, str]:
        # Every replica knows what fits; only the leader may bind.
        missing = self.missing()
        if verb == "bind":
            missing = missing or self._not_leader()
        if missing or self.engine is None:
            return _refusal(verb, f"Stowage is not ready: {missing}", 503), "not_ready"
        try:
            with self._elector.hold_during_write() if self._elector and verb == "bind" else _NO_LEASE:
                answer, result = await self.engine.verbs[verb](body)
            return Reply(answer), result
        except BadMessage as error:
            return _refusal(verb, f"not a valid {verb} request: {error}", 400), "bad_message"
        except Exception as error:  # one bad request must not end the service
            _log.exception("%s failed", verb)
            text = f"internal error ({type(error).__name__}), see the log of Stowage"
            return _refusal(verb, text, 500), "internal_error"

    async def render_metrics(self) -> bytes:
        """All metrics in the text format. Other requests are answered in between."""
        if self.engine is not None:
            self.engine.finish_answers()
            await self.engine.gauges.update()
        return await self.metrics.render_in_parts()

    def _not_leader(self) -> str:
        return self._elector.waiting_for() if self._elector else ""

    def _collect(self) -> Iterator[Metric]:
        runs = {(self.version, platform.python_version()): 1}
        yield gauge("build_info", "Always 1; the labels are the versions.", runs, "version", "python")
        if self._elector is not None:
            text = "1 for the replica that is the leader and may bind."
            yield gauge("leader", text, self._elector.is_leader)
        text = "Errors in background tasks and threads, which were restarted."
        yield counter("background_failures", text, self.background.failures.total())
        if self.engine is not None:
            text = "Time since the oldest event that is not applied arrived, 0 for none."
            yield gauge("event_age_seconds", text, self._events.age())
            yield from self.engine.gauges.collect()


def _tracing(version: str) -> Tracing:
    try:
        from extender.server.tracing import Tracing
    except ImportError as error:
        raise SettingsError(f"tracing: {error}; pip install 'kube-stowage[tracing]'") from None
    return Tracing(version)


def _refusal(verb: Verb | VolcanoVerb, text: str, status: int) -> Reply:
    error = {"filter": filter_error, "bind": bind_error}.get(str(verb))
    return Reply(error(text)) if error and status != 413 else Reply(visible(text).encode(), status, TEXT)
