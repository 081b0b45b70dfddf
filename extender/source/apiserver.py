"""A live cluster as a ``Source``: one reflector for each watched kind, and binds through ``pods/binding``."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

from extender.background import Background
from extender.k8s.manifest import Unreadable
from extender.k8s.objects import REQUIRED_KINDS, Event, Kind, Pod, Unlisted, Upserted
from extender.source.errors import BindConflict, BindError, PodNotFound, Unavailable, Unreachable
from extender.source.interface import NO_BACKLOG, Apply, Backlog, Interruption, Source, WatchStatus
from extender.source.list_watch import ListWatch, ProtocolError
from extender.source.reflector import Freshness, Reflector
from extender.source.rest import (
    NO_ANSWER,
    Refused,
    RestClient,
    Timeouts,
    client_in_cluster,
    client_of_kubeconfig,
    pod_path,
    time_to_write,
)
from extender.source.shard import Shard
from extender.source.watched_kinds import (
    ALWAYS_AWAITED,
    KINDS_IN_FILES,
    OF_UNMADE_PODS,
    WATCHED_KINDS,
    WatchedKind,
    mig_layouts,
)

_log = logging.getLogger(__name__)
_NOTHING_NEWER = (Freshness.CURRENT, Freshness.UNREACHABLE)  # not a set: it would call the enum's Python hash
_CHECKS = 0.5  # seconds between checks for kinds whose first list does not arrive
_POLL = 0.005  # seconds between checks of the reflectors
_NOT_WAITING = 5.0  # seconds without waiting for a server that neither answered nor refused connections


class KubeSource(Source):
    """The cluster of an API server. Each reflector and each bind runs in its own thread."""

    has_other_readers = True

    def __init__(self, rest: RestClient, name: str) -> None:
        self.rest, self._name = rest, name
        self._write_deadline: Callable[[], float] = lambda: math.inf
        self._reflectors = {kind: self._reflector(watched) for kind, watched in WATCHED_KINDS.items()}
        self._not_waiting_until = 0.0  # monotonic seconds
        self._shard: Shard | None = None
        self._backlog = NO_BACKLOG
        self._stopping = threading.Event()
        self._may_lack_pods = False

    def _reflector(self, watched: WatchedKind) -> Reflector:
        return Reflector(watched, self.rest.stream, self.rest.timeouts)

    def start(
        self, apply: Apply, backlog: Backlog = NO_BACKLOG, background: Background | None = None
    ) -> None:
        """Start to list and watch. Failures are retried forever, see ``watches``."""
        self._backlog, background = backlog, background or Background()
        shard, start_now = self._shard, dict(self._reflectors)
        if shard is not None:
            del start_now["Pod"]
            background.thread("shard", partial(self._run_shard, shard, apply, background))
            apply = shard.filtered(apply)
        for reflector in start_now.values():
            reflector.start(apply, background, self._backlog)
        background.thread("first lists", partial(self._give_up_first_lists, apply))

    def _give_up_first_lists(self, apply: Apply) -> None:
        """Report kinds whose first list does not arrive; log those that are absent, in one line."""
        listed_at, told, logged = math.inf, list[Unlisted](), list[str]()
        while not self._stopping.wait(_CHECKS):
            absent = [reflector.resource for reflector in self._reflectors.values() if reflector.is_absent]
            if absent != logged and all(reflector.is_known for reflector in self._reflectors.values()):
                _log.info("not served, or not to be listed by Stowage: %s", ", ".join(absent) or "no kind")
                logged = absent
            if all(self._reflectors[kind].is_known for kind in ALWAYS_AWAITED):
                listed_at = min(listed_at, time.monotonic())  # never while the API server is down
            if time.monotonic() - listed_at >= self.rest.timeouts.first_list:
                unlisted = [r.unlisted() for r in self._reflectors.values() if not r.is_known]
                if unlisted != told:
                    apply(told := unlisted)

    def select_nodes(self, selector: str, schedulers: Collection[str]) -> None:
        nodes = replace(WATCHED_KINDS["Node"], selector={"labelSelector": selector})
        self._reflectors["Node"] = self._reflector(nodes)
        self._shard = Shard(schedulers, self._pods_on)

    def joining(self) -> frozenset[str]:
        return self._shard.joining() if self._shard else frozenset()

    def _run_shard(self, shard: Shard, apply: Apply, background: Background) -> None:
        shard.nodes_listed.wait()  # until then the pods of the shard are unknown
        if self._stopping.is_set():
            return
        self._reflectors["Pod"].start(shard.filtered(apply), background, self._backlog)
        shard.run(apply)

    def list_once(self) -> Iterator[Sequence[Event]]:
        with ThreadPoolExecutor(len(self._reflectors)) as pool:
            lists = [(r, pool.submit(r.list_once)) for r in self._reflectors.values()]
        for reflector, listed in lists:
            try:
                events = listed.result()
                yield self._shard.select(events) if self._shard else events
            except (*NO_ANSWER, Refused, ProtocolError) as error:
                may_lack = self._may_lack_pods and reflector.kind == "Pod" and isinstance(error, Refused)
                if reflector.kind in ALWAYS_AWAITED and not may_lack:
                    problem = str(error).rsplit(": ", 1)[-1].rstrip(")'")
                    raise Unavailable(f"{self.describe()}: {reflector.resource}: {problem}") from None
                _log.warning("%s are not known: %s", reflector.resource, error)
                yield [reflector.unlisted(str(error))]

    def follow_mig_layouts(self, namespace: str, name: str) -> None:
        self._reflectors["ConfigMap"] = self._reflector(mig_layouts(namespace, name))

    def read_for_audit(self) -> None:
        self._may_lack_pods = True
        for kind in OF_UNMADE_PODS:
            self._reflectors[kind] = self._reflector(KINDS_IN_FILES[kind])

    def stop(self) -> None:
        self._stopping.set()
        if self._shard is not None:
            self._shard.stop()
        for reflector in self._reflectors.values():
            reflector.stop()
        deadline = time.monotonic() + self.rest.timeouts.stop
        for reflector in self._reflectors.values():
            reflector.join(deadline - time.monotonic())

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        until = time.monotonic() + self.rest.timeouts.bind
        await asyncio.to_thread(self._bind, pod, node, annotations or {}, until)

    async def look_up(self, pod: Pod) -> Pod | None:
        return await asyncio.to_thread(self._look_up, pod)

    async def pods_on(self, node: str) -> Sequence[Pod]:
        return await asyncio.to_thread(self._pods_on, node)

    def _bind(self, pod: Pod, node: str, annotations: Mapping[str, str], until: float) -> None:
        metadata = {"name": pod.name, "namespace": pod.namespace, "annotations": dict(annotations)}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | ({"uid": pod.uid} if pod.uid else {}),  # precondition: exactly this pod
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        within = time_to_write(self._write_deadline, until, BindError)
        try:
            self.rest.exchange("POST", f"{pod_path(pod)}/binding", within, body)
        except Refused as refused:
            raise _bind_error(refused.status)(refused.message) from None
        except NO_ANSWER as error:
            raise Unreachable(f"the API server did not answer: {error}") from error

    def _look_up(self, pod: Pod) -> Pod | None:
        try:
            found = self.rest.get(pod_path(pod), self.rest.timeouts.page)
            truth, _ = WATCHED_KINDS["Pod"].read(found)
            assert isinstance(truth, Pod)
            return truth
        except Refused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise Unreachable(f"the pod cannot be read: {refused.message}") from None
        except (*NO_ANSWER, Unreadable) as error:
            raise Unreachable(f"the API server did not answer: {error}") from error

    def _pods_on(self, node: str) -> list[Pod]:
        pods = WATCHED_KINDS["Pod"]
        query = {"fieldSelector": f"spec.nodeName={node}"}
        try:
            events = ListWatch(pods).page(self.rest.get(pods.path, self.rest.timeouts.bind, query))
        except (*NO_ANSWER, Refused, ProtocolError) as error:
            raise Unreachable(f"the pods of the node cannot be read: {error}") from error
        return [event.obj for event in events if isinstance(event, Upserted) and isinstance(event.obj, Pod)]

    async def caught_up(self, recent: float = 0.0) -> bool:
        required = [self._reflectors[kind] for kind in REQUIRED_KINDS]
        if all(reflector.freshness() in _NOTHING_NEWER for reflector in required):
            return self._backlog.age() <= recent or await self._backlog.applied(self.rest.timeouts.catch_up)
        started = time.monotonic()
        while not (freshness := {r.freshness() for r in required}).issubset(_NOTHING_NEWER):
            now = time.monotonic()
            unresponsive = now < self._not_waiting_until and Freshness.BEHIND not in freshness
            if unresponsive or now - started >= self.rest.timeouts.catch_up:
                if not unresponsive:
                    self._not_waiting_until = now + _NOT_WAITING
                return Freshness.BEHIND not in freshness
            for reflector in required:
                reflector.retry_now()
            await asyncio.sleep(_POLL)
        return await self._backlog.applied(self.rest.timeouts.catch_up)

    def interruption(self) -> Interruption | None:
        return self._reflectors["Pod"].interruption()

    async def relist(self) -> None:
        """Retries forever."""
        pods = self._reflectors["Pod"]
        call = pods.relist()
        while not pods.has_listed(call):
            await asyncio.sleep(_POLL)
        await self._backlog.applied()

    def api_client(self, needed_by: str) -> RestClient:
        return self.rest

    def limit_binds(self, write_deadline: Callable[[], float]) -> None:
        self._write_deadline = write_deadline

    def watches(self) -> Mapping[Kind, WatchStatus]:
        return {kind: reflector.status() for kind, reflector in self._reflectors.items()}

    def server_version(self) -> str:
        """``major.minor`` of the API server, "" if unknown."""
        try:
            version = self.rest.exchange("GET", "/version", self.rest.timeouts.page)
            minor = "".join(c for c in version["minor"] if c.isdigit())  # EKS and GKE write "36+"
            return f"{version['major']}.{minor}"
        except (*NO_ANSWER, Refused, KeyError, TypeError) as error:
            _log.warning("the version of the API server is unknown: %s", error)
            return ""

    def describe(self) -> str:
        """The origin of the configuration, and the API server's address."""
        return f"{self._name} at {self.rest.host}"


def _bind_error(status: int) -> type[BindError]:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # the write may have succeeded
        return Unreachable
    if status == HTTPStatus.CONFLICT:
        return BindConflict
    return PodNotFound if status == HTTPStatus.NOT_FOUND else BindError


def from_kubeconfig(
    path: Path | str, timeouts: Timeouts | None = None, context: str | None = None
) -> KubeSource:
    """The cluster of a kubeconfig's ``context``, None for its current one. Raises ``Unavailable``."""
    name = f"kubeconfig {path}" + (f", context {context}" if context else "")
    return KubeSource(RestClient(client_of_kubeconfig(path, context), timeouts), name)


def in_cluster() -> KubeSource:
    """The cluster in which this process runs as a pod. Raises ``Unavailable``."""
    return KubeSource(RestClient(client_in_cluster()), "the cluster")
