"""A live cluster as a ``Source``: one reflector for each watched kind, and binds through ``pods/binding``."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from extender.background import Background
from extender.k8s.objects import REQUIRED_KINDS, Event, Kind, Pod
from extender.source.access_reviews import KubeAccessReviews
from extender.source.evictor_api import KubeEvictorApi
from extender.source.freshness import Freshness
from extender.source.interface import Applied, Apply, Interruption, Lease, Unavailable, WatchEnd, next_turn
from extender.source.lease import KubeLease
from extender.source.list_watch import ProtocolError
from extender.source.pods_api import PodsApi
from extender.source.reflector import Reflector
from extender.source.rest import (
    NO_ANSWER,
    Refused,
    RestClient,
    Timeouts,
    client_in_cluster,
    client_of_kubeconfig,
)
from extender.source.shard import Shard
from extender.source.watched_kinds import WATCHED_KINDS, WatchedKind, mig_layouts

_log = logging.getLogger(__name__)
_NOTHING_NEWER = (Freshness.CURRENT, Freshness.UNREACHABLE)  # a set would call the hash of an enum in Python
_LIMITS = 0.5  # seconds between checks of the time limits of reads
_POLL = 0.005  # seconds between checks of the reflectors
_NOT_WAITING = 5.0  # seconds without waiting for a server that neither answered nor refused connections


class KubeSource:
    """The cluster of an API server. Each reflector and each bind runs in a thread of its own."""

    def __init__(self, rest: RestClient, name: str) -> None:
        self.rest, self._name = rest, name
        self._pods = PodsApi(rest)
        reflectors = {kind: self._reflector(watched) for kind, watched in WATCHED_KINDS.items()}
        # Requests wait for these to catch up, and for no others.
        self._required = [reflectors[kind] for kind in WATCHED_KINDS if kind in REQUIRED_KINDS]
        self._pod_reflector = reflectors["Pod"]
        self._all = list(reflectors.values())
        self._not_waiting_until = 0.0  # monotonic seconds
        self._shard: Shard | None = None
        self._applied: Applied = next_turn
        self._stopping = threading.Event()

    def start(self, apply: Apply, applied: Applied = next_turn, background: Background | None = None) -> None:
        """Start to list and watch. Failures are retried without end, see ``staleness``."""
        self._applied, background = applied, background or Background()
        if (shard := self._shard) is not None:
            background.thread("shard", partial(self._run_shard, shard, apply, background))
            apply = shard.filtered(apply)
        for reflector in self._all:
            if shard is None or reflector is not self._pod_reflector:
                reflector.start(apply, background)
        background.thread("time limits", self._end_late_reads)

    def _reflector(self, watched: WatchedKind) -> Reflector:
        return Reflector(watched, self.rest.stream, self.rest.timeouts)

    def _end_late_reads(self) -> None:
        while not self._stopping.wait(_LIMITS):
            for reflector in self._all:
                reflector.end_late_read()
            self.rest.end_late_heads()

    def select_nodes(self, selector: str, schedulers: Collection[str]) -> None:
        """See ``Source.select_nodes``."""
        watched = replace(WATCHED_KINDS["Node"], selector={"labelSelector": selector})
        nodes = self._reflector(watched)
        for reflectors in (self._all, self._required):
            reflectors[:] = [nodes if one.kind == "Node" else one for one in reflectors]
        self._shard = Shard(schedulers, self._pods.pods_on)

    def joining(self) -> frozenset[str]:
        """See ``Source.joining``."""
        return self._shard.joining() if self._shard else frozenset()

    def _run_shard(self, shard: Shard, apply: Apply, background: Background) -> None:
        shard.nodes_listed.wait()  # before that nobody knows which pods are the shard's
        if self._stopping.is_set():
            return
        self._pod_reflector.start(shard.filtered(apply), background)
        shard.run(apply)

    def list_once(self) -> Iterator[Sequence[Event]]:
        """See ``Source.list_once``."""
        with ThreadPoolExecutor(len(self._all)) as pool:
            lists = [(one, pool.submit(one.list_once)) for one in self._all]
        for reflector, listed in lists:
            try:
                events = listed.result()
                yield self._shard.select(events) if self._shard else events
            except (*NO_ANSWER, Refused, ProtocolError) as error:
                if reflector in self._required:
                    problem = str(error).rsplit(": ", 1)[-1].rstrip(")'")
                    raise Unavailable(f"{self.describe()}: {reflector.resource}: {problem}") from None
                _log.warning("%s are not known: %s", reflector.resource, error)

    def follow_mig_layouts(self, namespace: str, name: str) -> None:
        """See ``Source.follow_mig_layouts``. Logs warnings if it has no right to read it."""
        self._all.append(self._reflector(mig_layouts(namespace, name)))

    def stop(self) -> None:
        """End the watches."""
        self._stopping.set()
        if self._shard is not None:
            self._shard.stop()
        for reflector in self._all:
            reflector.stop()
        deadline = time.monotonic() + self.rest.timeouts.stop
        for reflector in self._all:
            reflector.join(deadline - time.monotonic())

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Create the pod's Binding. Raises ``BindError``."""
        until = time.monotonic() + self.rest.timeouts.bind
        await asyncio.to_thread(self._pods.bind, pod, node, annotations or {}, until)

    async def look_up(self, pod: Pod) -> Pod | None:
        """See ``Source.look_up``."""
        return await asyncio.to_thread(self._pods.look_up, pod)

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """See ``Source.pods_on``."""
        return await asyncio.to_thread(self._pods.pods_on, node)

    async def caught_up(self) -> bool:
        """See ``Source.caught_up``."""
        if all(reflector.connection.freshness() in _NOTHING_NEWER for reflector in self._required):
            return True
        started = time.monotonic()
        while not (freshness := _freshness(self._required)).issubset(_NOTHING_NEWER):
            now = time.monotonic()
            unresponsive = now < self._not_waiting_until and Freshness.BEHIND not in freshness
            if unresponsive or now - started >= self.rest.timeouts.catch_up:
                if not unresponsive:
                    self._not_waiting_until = now + _NOT_WAITING
                return Freshness.BEHIND not in freshness
            for reflector in self._required:
                reflector.retry_now()
            await asyncio.sleep(_POLL)
        await self._applied()
        return True

    def interruption(self) -> Interruption | None:
        """See ``Source.interruption``."""
        return self._pod_reflector.connection.interruption()

    async def relist(self) -> None:
        """See ``Source.relist``. Retries without end."""
        call = self._pod_reflector.relist()
        while not self._pod_reflector.has_listed(call):
            await asyncio.sleep(_POLL)
        await self._applied()

    def lease(self, namespace: str, name: str, seconds: int) -> Lease:
        """See ``Source.lease``."""
        return KubeLease(self.rest, namespace, name, seconds / 3)

    def limit_writes(self, write_deadline: Callable[[], float]) -> None:
        """See ``Source.limit_writes``."""
        self._pods.write_deadline = write_deadline

    def evictor_api(self) -> KubeEvictorApi:
        """See ``Source.evictor_api``."""
        return KubeEvictorApi(self.rest)

    def access_reviews(self) -> KubeAccessReviews:
        """See ``Source.access_reviews``."""
        return KubeAccessReviews(self.rest)

    def staleness(self) -> Mapping[Kind, float]:
        """Seconds since the last bytes of each kind; up to ``WATCH_SECONDS`` if nothing changes."""
        now = time.monotonic()
        return {reflector.kind: now - reflector.connection.received_at for reflector in self._required}

    def watch_problems(self) -> Mapping[str, str]:
        """See ``Source.watch_problems``."""
        return {one.full_resource: one.problem for one in self._all if one.problem}

    def closed_watches(self) -> Mapping[Kind, float]:
        """See ``Source.closed_watches``."""
        now = time.monotonic()
        return {reflector.kind: reflector.connection.closed_for(now) for reflector in self._required}

    def watch_ends(self) -> Mapping[Kind, Mapping[WatchEnd, int]]:
        """See ``Source.watch_ends``."""
        return {reflector.kind: dict(reflector.ended) for reflector in self._required}

    def server_version(self) -> str:
        """``major.minor`` of the API server, "" if it does not say."""
        try:
            version = json.loads(self.rest.get("/version"))
            minor = "".join(c for c in version["minor"] if c.isdigit())  # EKS and GKE write "36+"
            return f"{version['major']}.{minor}"
        except (*NO_ANSWER, Refused, ValueError, KeyError, TypeError) as error:
            _log.warning("the version of the API server is unknown: %s", error)
            return ""

    def describe(self) -> str:
        """Where the configuration comes from, and the address."""
        return f"{self._name} at {self.rest.host}"


def _freshness(reflectors: Iterable[Reflector]) -> set[Freshness]:
    return {reflector.connection.freshness() for reflector in reflectors}


def from_kubeconfig(path: Path | str, timeouts: Timeouts | None = None) -> KubeSource:
    """The cluster of a kubeconfig's current context. Raises ``Unavailable``."""
    return KubeSource(RestClient(client_of_kubeconfig(path), timeouts), f"kubeconfig {path}")


def in_cluster() -> KubeSource:
    """The cluster in which this process runs as a pod. Raises ``Unavailable``."""
    return KubeSource(RestClient(client_in_cluster()), "the cluster")
