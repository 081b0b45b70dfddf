"""The Kubernetes API: the only file that talks to it, and the only one that imports its client.

The official client gives the configuration (kubeconfig or in cluster, TLS, tokens, exec plugins) and the
connections. Its models, watch and informer are left alone: they cost 0.7 GB for 10,000 pods, replay stale
versions after a 410 and reconnect without a pause.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from pydantic import ValidationError
from urllib3 import HTTPResponse

from extender.k8s.objects import Kind, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.source.interface import (
    Apply,
    BindConflict,
    BindError,
    Interruption,
    Lease,
    PodNotFound,
    Unavailable,
    Unreachable,
)
from extender.source.lease import KubeLease
from extender.source.list_watch import (
    CARDS,
    DEVICES,
    NODES,
    PODS,
    WATCH_SECONDS,
    ListWatch,
    ProtocolError,
    Request,
    mig_layouts,
)
from extender.source.reflector import NO_ANSWER, Freshness, Reflector, Refused

_log = logging.getLogger(__name__)
_NOTHING_NEWER = {Freshness.CURRENT, Freshness.AWAY}
_POLL = 0.005  # seconds between looks at how far the followers are
_HOPELESS = 5.0  # seconds for which nobody waits again for a server that does not even refuse connections


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait for each."""

    connect: float = 5.0
    bind: float = 2.0  # as long as kube-scheduler waits: the httpTimeout of scheduler-config/
    page: float = 30.0
    # Of a watch, which may be silent to its end: where nothing changes there are no bookmarks either.
    silence: float = WATCH_SECONDS + 10.0
    stop: float = 1.0
    catch_up: float = 1.0  # half of the httpTimeout that scheduler-config/ gives kube-scheduler


class _Api:
    """Raw requests through the official client. They raise ``Refused`` and ``NO_ANSWER``."""

    def __init__(self, client: ApiClient, timeouts: Timeouts) -> None:
        self._client = client
        self.timeouts = timeouts

    @property
    def host(self) -> str:
        return str(self._client.configuration.host)

    def follow(self, request: Request) -> HTTPResponse:
        read = self.timeouts.silence if request.watch else self.timeouts.page
        return self._call("GET", request.path, read, query=request.query)

    def get(self, path: str, within: float | None = None, query: Mapping[str, str] | None = None) -> bytes:
        read = within / 2 if within else self.timeouts.page
        with closing(self._call("GET", path, read, query=query)) as response:
            return response.read()

    def post(self, path: str, body: object, within: float) -> None:
        with closing(self._call("POST", path, within / 2, body=body)) as response:
            response.read()  # to the end, or the connection is lost for the next one

    def exchange(self, method: str, path: str, within: float, body: object = None) -> object:
        with closing(self._call(method, path, within / 2, body=body)) as response:
            return json.loads(response.read())

    def _call(
        self,
        method: str,
        path: str,
        read_timeout: float,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> HTTPResponse:
        timeout = (min(self.timeouts.connect, read_timeout), read_timeout)
        try:
            call = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            response: HTTPResponse = self._client.call_api(*call, _request_timeout=timeout).response
        except ApiException as error:  # so the client reports a failed TLS handshake
            raise ConnectionError(error.reason) from error
        except ConfigException as error:  # a token could not be renewed
            raise ConnectionError(str(error)) from error
        if response.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return response
        with closing(response):
            raise Refused(response.status, _message(response))


class KubeSource:
    """The live cluster: followed in one thread for each resource, bound to through ``pods/binding``."""

    def __init__(self, client: ApiClient, name: str, timeouts: Timeouts | None = None) -> None:
        self._api = _Api(client, timeouts or Timeouts())
        self._name = name
        self._followers = [Reflector(resource, self._api.follow) for resource in (NODES, PODS)]
        # Nothing waits for these: what a cluster without them says stays true.
        besides = (*DEVICES, CARDS)
        self._optional_watches = [
            Reflector(resource, self._api.follow, optional=True) for resource in besides
        ]
        self._hopeless_until = 0.0  # monotonic seconds
        self._allowed_for: Callable[[], float] = lambda: math.inf

    def start(self, apply: Apply) -> None:
        """Begin to list and watch. Failures are retried for ever; ``staleness`` tells."""
        for follower in (*self._followers, *self._optional_watches):
            follower.start(apply)

    def follow_mig_layouts(self, namespace: str, name: str) -> None:
        """See ``Source.follow_mig_layouts``. It is asked for, so without the right there are warnings."""
        self._optional_watches.append(Reflector(mig_layouts(namespace, name), self._api.follow))

    def stop(self) -> None:
        """End the watches."""
        followers = (*self._followers, *self._optional_watches)
        for follower in followers:
            follower.stop()
        deadline = time.monotonic() + self._api.timeouts.stop
        for follower in followers:
            follower.join(deadline - time.monotonic())

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Create the pod's Binding in a thread of its own. Raises ``BindError``."""
        until = time.monotonic() + self._api.timeouts.bind
        await asyncio.to_thread(self._bind, pod, node, annotations or {}, until)

    async def look_up(self, pod: Pod) -> Pod | None:
        """See ``Source.look_up``: a read of the latest version, in a thread of its own."""
        return await asyncio.to_thread(self._look_up, pod)

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """See ``Source.pods_on``: a list of the latest version, in a thread of its own."""
        return await asyncio.to_thread(self._pods_on, node)

    async def caught_up(self) -> bool:
        """See ``Source.caught_up``."""
        if self._standings() <= _NOTHING_NEWER:
            return True
        started = time.monotonic()
        while not (standings := self._standings()) <= _NOTHING_NEWER:
            now = time.monotonic()
            hopeless = now < self._hopeless_until and Freshness.BEHIND not in standings
            if hopeless or now - started >= self._api.timeouts.catch_up:
                if not hopeless:
                    self._hopeless_until = now + _HOPELESS
                return Freshness.BEHIND not in standings
            for follower in self._followers:
                follower.retry_now()
            await asyncio.sleep(_POLL)
        await asyncio.sleep(0)  # what was delivered meanwhile stands before us in the event loop's queue
        return True

    def interruption(self) -> Interruption | None:
        """See ``Source.interruption``."""
        return next(follower.interruption() for follower in self._followers if follower.kind == "Pod")

    async def relist(self) -> None:
        """See ``Source.relist``. It is tried for as long as it takes."""
        calls = [(one, one.relist()) for one in self._followers if one.kind == "Pod"]
        while not all(follower.has_listed(call) for follower, call in calls):
            await asyncio.sleep(_POLL)
        await asyncio.sleep(0)  # as in caught_up

    def lease(self, namespace: str, name: str, seconds: int) -> Lease:
        """See ``Source.lease``."""
        return KubeLease(self._api.exchange, namespace, name, seconds / 3)

    def write_only_while(self, allowed_for: Callable[[], float]) -> None:
        """See ``Source.write_only_while``."""
        self._allowed_for = allowed_for

    def _standings(self) -> set[Freshness]:
        return {follower.standing() for follower in self._followers}

    def staleness(self) -> Mapping[Kind, float]:
        """Seconds since the last byte about each kind; up to ``WATCH_SECONDS`` where nothing changes."""
        now = time.monotonic()
        return {follower.kind: now - follower.heard_at for follower in self._followers}

    def server_version(self) -> str:
        """``major.minor`` of the API server, "" where it does not say."""
        try:
            version = json.loads(self._api.get("/version"))
            minor = "".join(c for c in version["minor"] if c.isdigit())  # EKS and GKE write "36+"
            return f"{version['major']}.{minor}"
        except (*NO_ANSWER, Refused, ValueError, KeyError, TypeError) as error:
            _log.warning("Version of the API server unknown: %s", error)
            return ""

    def describe(self) -> str:
        """Where the configuration came from, and the address."""
        return f"{self._name} at {self._api.host}"

    def _bind(self, pod: Pod, node: str, annotations: Mapping[str, str], until: float) -> None:
        metadata = {"name": pod.name, "namespace": pod.namespace, "annotations": dict(annotations)}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | ({"uid": pod.uid} if pod.uid else {}),  # a precondition: this very pod
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        # Asked here, for a thread may have been long in coming.
        if (allowed_for := self._allowed_for()) <= 0:
            raise BindError("this replica of Stowage leads no more")
        if (within := min(until - time.monotonic(), allowed_for)) <= 0:
            raise BindError("the API server is too slow, the binding was not sent")
        try:
            self._api.post(f"{_path(pod)}/binding", body, within)
        except Refused as refused:
            raise _BIND_ERRORS.get(refused.status, _other(refused.status))(refused.message) from None
        except NO_ANSWER as error:
            raise Unreachable(f"the API server did not answer: {error}") from error

    def _look_up(self, pod: Pod) -> Pod | None:
        try:
            return PodManifest.model_validate_json(self._api.get(_path(pod))).record()
        except Refused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise Unreachable(f"the pod cannot be read: {refused.message}") from None
        except (*NO_ANSWER, ValidationError) as error:
            raise Unreachable(f"the API server did not answer: {error}") from error

    def _pods_on(self, node: str) -> list[Pod]:
        of_node = {"fieldSelector": f"spec.nodeName={node}"}
        try:
            events = ListWatch(PODS).page(self._api.get(PODS.path, self._api.timeouts.bind, of_node))
        except (*NO_ANSWER, Refused, ProtocolError) as error:
            raise Unreachable(f"the pods of the node cannot be read: {error}") from error
        return [event.obj for event in events if isinstance(event, Upserted) and isinstance(event.obj, Pod)]


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"


_BIND_ERRORS: dict[int, type[BindError]] = {
    HTTPStatus.CONFLICT: BindConflict,
    HTTPStatus.NOT_FOUND: PodNotFound,
}


def _other(status: int) -> type[BindError]:
    # A server error may have come after the write, or instead of it.
    return Unreachable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else BindError


def from_kubeconfig(path: Path, timeouts: Timeouts | None = None) -> KubeSource:
    """The cluster of a kubeconfig's current context. Raises ``Unavailable``."""
    configuration = Configuration()
    try:
        load_kube_config(str(path), client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever the client's parser stumbles on
        raise Unavailable(f"kubeconfig {path}: {error}") from error
    return KubeSource(_client(configuration), f"kubeconfig {path}", timeouts)


def in_cluster() -> KubeSource | None:
    """The cluster that this process runs in as a pod, None where it does not. Raises ``Unavailable``."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    configuration = Configuration()
    try:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise Unavailable(f"service account of the pod: {error}") from error
    return KubeSource(_client(configuration), "the cluster", timeouts=None)


def _client(configuration: Configuration) -> ApiClient:
    configuration.retries = False  # the loops here retry, with pauses and with a word about it
    configuration.keep_alive = True  # TCP notices a peer that is gone long before a watch falls silent
    configuration.connection_pool_maxsize = 32  # binds run beside the watches
    return ApiClient(configuration)


def _message(response: HTTPResponse) -> str:
    with suppress(*NO_ANSWER, ValueError, AttributeError):
        return str(json.loads(response.read(1 << 16)).get("message") or response.reason)
    return str(response.reason)
