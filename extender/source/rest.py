"""Requests to the API server. Only this module imports the Kubernetes client, and only if there is a cluster,
because the import takes half a second.

The official client supplies the configuration (kubeconfig or in-cluster, TLS, tokens, exec plugins) and the
connections. Its models, watch and informer are not used: they take 0.7 GB for 10,000 pods, replay old
versions after a 410 and reconnect without a pause.
"""

from __future__ import annotations

import http.client
import io
import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from extender.k8s.objects import Pod
from extender.source.errors import NOT_LEADER, Unavailable
from extender.source.list_watch import WATCH_SECONDS, Request

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from kubernetes.client import ApiClient, Configuration

NO_ANSWER = (HTTPError, OSError)
"""Errors of a request, or of reading its answer, if the server does not answer or disconnects."""


class Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds."""

    connect: float = 5.0
    bind: float = 2.0  # kube-scheduler's timeout: the httpTimeout in scheduler-config/
    page: float = 30.0  # one read of a page of a list
    whole_page: float = 60.0  # all reads of a page
    head: float = 10.0  # the head of the answer to a watch, which an API server sends immediately
    line: float = 10.0  # the rest of an event that has begun
    # One read of a watch. Without changes there may be no bytes, not even bookmarks, until the watch ends.
    silence: float = WATCH_SECONDS + 10.0
    stop: float = 1.0
    catch_up: float = 1.0  # half of the httpTimeout in scheduler-config/
    first_list: float = 30.0  # that of a kind that may be unknown, once the others are listed


class TimedReads(io.RawIOBase):
    """Reads a socket for at most ``each`` seconds at a time, and until ``deadline`` (monotonic seconds).

    The timeout of a socket limits only each read: a server that sends byte by byte can stay within it for
    hours.
    """

    deadline = math.inf

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock, self.each = raw, sock, float(sock.gettimeout() or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        if (left := self.deadline - time.monotonic()) <= 0:
            raise TimeoutError
        self._sock.settimeout(min(self.each, left))
        return self._raw.readinto(buffer)

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self._raw.close()
        super().close()


class Answer(HTTPResponse):
    """An answer whose body is read within limits that its reader may change."""

    reads: TimedReads


class _Connection(HTTPConnection):
    def response_class(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override] # noqa: ANN401
        """The head has to be complete within the time for one read."""
        response = http.client.HTTPResponse(sock, **options)
        raw: Any = response.fp
        self._reads = TimedReads(raw.detach(), sock)
        self._reads.deadline = time.monotonic() + self._reads.each
        response.fp = io.BufferedReader(self._reads)
        return response

    def getresponse(self) -> Answer:  # type: ignore[override]
        answer = cast(Answer, super().getresponse())
        answer.reads, answer.reads.deadline = self._reads, math.inf
        return answer


class _TlsConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class RestClient:
    """Raw requests through the official client. All of them raise ``Refused`` and ``NO_ANSWER``."""

    def __init__(self, client: ApiClient, timeouts: Timeouts | None = None) -> None:
        self._client = client
        self.timeouts = timeouts or Timeouts()
        pools = {"http": _Pool, "https": _TlsPool}
        client.rest_client.pool_manager.pool_classes_by_scheme = pools

    @property
    def host(self) -> str:
        return str(self._client.configuration.host)

    def stream(self, request: Request) -> Answer:
        """The answer to a list or watch, unread."""
        read = self.timeouts.head if request.watch else self.timeouts.page
        return self._call("GET", request.path, read, query=request.query)

    def get(self, path: str, within: float, query: Mapping[str, str] | None = None) -> bytes:
        """The body of a GET. ``within``: total seconds for connecting and reading."""
        with closing(self._call("GET", path, within / 2, query=query)) as response:
            return response.read()

    def send(
        self,
        method: str,
        path: str,
        within: float,
        body: bytes | None,
        headers: Mapping[str, str],
        at_most: int,
    ) -> tuple[int, bytes]:
        """The status and the first ``at_most`` bytes of the answer, whatever the status. Raises only
        ``NO_ANSWER``."""
        headers = {"Content-Type": "application/octet-stream", **headers}
        with closing(self._open(method, path, within / 2, body=body, headers=headers)) as response:
            return response.status, response.read(at_most)

    def exchange(
        self,
        method: str,
        path: str,
        within: float,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        at_most: int | None = None,
    ) -> dict[str, Any]:
        """Send JSON and return the JSON object of the answer, which has at most ``at_most`` bytes."""
        headers = {"Content-Type": content_type}
        call = self._call(method, path, within / 2, query=query, body=body, headers=headers)
        with closing(call) as response:
            try:
                answer = json.loads(response.read(at_most))
            except (ValueError, RecursionError):
                answer = None
        if not isinstance(answer, dict):
            raise ConnectionError("the answer is not a JSON object")
        return answer

    def _call(self, method: str, path: str, read_timeout: float, **more: Any) -> Answer:  # noqa: ANN401
        """``_open``, but also raises ``Refused``."""
        response = self._open(method, path, read_timeout, **more)
        if response.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return response
        message = response.reason
        with closing(response), suppress(*NO_ANSWER, ValueError, AttributeError):
            message = json.loads(response.read(1 << 16)).get("message") or message
        raise Refused(response.status, str(message))

    def _open(
        self,
        method: str,
        path: str,
        read_timeout: float,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config import ConfigException

        try:
            call = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", **(headers or {})},
                body=body,
                auth_settings=["BearerToken"],
            )
            timeout = (min(self.timeouts.connect, read_timeout), read_timeout)
            return self._client.call_api(*call, _request_timeout=timeout).response  # type: ignore[no-any-return]
        except ApiException as error:  # the client reports a failed TLS handshake this way
            raise ConnectionError(error.reason) from error
        except ConfigException as error:  # a token could not be renewed
            raise ConnectionError(str(error)) from error


def pod_path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"


def time_to_write(
    write_deadline: Callable[[], float], until: float, error: Callable[[str], Exception]
) -> float:
    """Seconds that a write may take to end before ``until`` (monotonic seconds), and while this replica leads
    (``write_deadline``: seconds from now). Raises ``error`` with a text if no time is left.

    Call it in the thread that sends the request, because that may have started late.
    """
    if (deadline := write_deadline()) <= 0:
        raise error(NOT_LEADER)
    if (within := min(until - time.monotonic(), deadline)) <= 0:
        raise error("the API server is too slow, the request was not sent")
    return within


def client_of_kubeconfig(path: Path | str, context: str | None = None) -> ApiClient:
    """A client for this context of a kubeconfig, by default its current one; ``path`` may list several files
    like ``KUBECONFIG``. Raises ``Unavailable``."""
    from kubernetes.config import load_kube_config

    def load(configuration: Configuration) -> None:
        load_kube_config(str(path), context, configuration, persist_config=False)  # type: ignore[no-untyped-call]

    return _client(f"kubeconfig {path}", load)


def client_in_cluster() -> ApiClient:
    """A client with the pod's service account. Raises ``Unavailable``."""
    from kubernetes.config import load_incluster_config

    return _client("service account of the pod", load_incluster_config)


def _client(what: str, load: Callable[[Configuration], None]) -> ApiClient:
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.utils.keepalive import tcp_keepalive_socket_options

    configuration = Configuration()
    try:
        load(configuration)
    except Exception as error:  # the client's parser may raise anything
        raise Unavailable(f"{what}: {error}") from error
    configuration.retries = False  # the callers retry, with pauses and log lines
    # A peer that vanishes without closing the connection is noticed after 25 s (by default 165 s). Until then
    # the state of a watch looks current, but is not.
    # And the events in its buffer, by default up to 6 MiB, are older than those that Stowage knows to wait.
    configuration.socket_options = [
        *tcp_keepalive_socket_options(idle=10, interval=5, count=3),
        (socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18),
    ]
    configuration.connection_pool_maxsize = 32  # for binds in addition to the watches
    return ApiClient(configuration)
