"""Runs the service on its sockets, and drains it on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import uvicorn

from extender.background import Run
from extender.server.connections import Connection
from extender.server.front import Front
from extender.server.garbage_collection import collect_forever
from extender.server.service import Service
from extender.server.tls import ListenContext, Tls
from extender.untrusted.limits import HEADER_SECONDS

KEEP_ALIVE = 120
"""Seconds. Go's client keeps idle connections for 90 s, and does not retry a POST on a closing connection."""
_GRACE = 20
"""Seconds for running requests after the sockets close; the longest is a bind at a slow API server."""
_SWITCH_INTERVAL = 0.0005
"""Seconds after which a reflector's thread must release the interpreter. With Python's 5 ms, a request that
needs the interpreter ten times would wait 50 ms during a burst of watch events."""

_log = logging.getLogger(__name__)


class PortInUse(Exception):
    """Cannot listen on the address; the text says on which and why."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 chooses a free port. Raises ``PortInUse``."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise PortInUse(f"cannot listen on {host} port {port}: {error.strerror}") from None


def run(
    service: Service,
    sock: socket.socket,
    debug_sock: socket.socket | None = None,
    tls: Tls | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises like ``Service.run``."""
    for listener, purpose in ((sock, "kube-scheduler"), (debug_sock, "debug and metrics")):
        if listener is not None:
            host, port = listener.getsockname()[:2]
            scheme, host = "https" if tls else "http", f"[{host}]" if ":" in host else host
            _log.info("listening for %s on %s://%s:%d", purpose, scheme, host, port)
    if service.settings.bind and not (tls and tls.files.client_ca) and not _is_loopback(sock):
        _log.warning("whoever reaches the port for kube-scheduler can have pods bound: use --client-ca")
    clients = tls.client_names if tls else frozenset()
    fronts = [Front(service, debug=debug_sock is None, clients=clients)]
    servers = {sock: _Server(fronts[0], tls.verbs if tls else None)}
    if debug_sock is not None:
        fronts.append(Front(service, verbs=False))
        servers[debug_sock] = _Server(fronts[1], tls.debug if tls else None)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=servers[sock].config.get_loop_factory()) as runner:
        runner.run(_run(service, servers, fronts, tls))


def _is_loopback(sock: socket.socket) -> bool:
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


class _Server(uvicorn.Server):
    def __init__(self, app: Callable[..., Awaitable[None]], tls: ListenContext | None = None) -> None:
        self._tls = tls
        config = uvicorn.Config(
            app,
            access_log=False,
            http=Connection,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            timeout_keep_alive=KEEP_ALIVE,
            ws="none",
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's, which has no time limits for TLS."""
        await self.lifespan.startup()
        loop, limit = asyncio.get_running_loop(), HEADER_SECONDS if self._tls else None

        def connect() -> Connection:
            return Connection(self.config, self.server_state, self.lifespan.state)

        self.servers = [
            await loop.create_server(
                connect,
                sock=sock,
                ssl=self._tls,
                ssl_handshake_timeout=limit,
                ssl_shutdown_timeout=limit,
                backlog=self.config.backlog,
            )
            for sock in sockets or ()
        ]
        self.started = True

    def close_connections(self) -> None:
        """Close idle connections now, and others after their answer."""
        for connection in list(self.server_state.connections):
            connection.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """``_wait_for_shutdown`` handles signals for all listeners."""
        yield


async def _run(
    service: Service, servers: Mapping[socket.socket, _Server], fronts: Iterable[Front], tls: Tls | None
) -> None:
    working = asyncio.create_task(service.run())
    background = asyncio.create_task(service.background.keep_all(_tasks(service, servers, fronts, tls)))
    serving = [asyncio.create_task(server.serve([sock])) for sock, server in servers.items()]
    shutdown = asyncio.create_task(_wait_for_shutdown(service))
    await asyncio.wait({working, shutdown, *serving}, return_when=asyncio.FIRST_COMPLETED)
    for server in servers.values():
        server.should_exit = True
    await asyncio.gather(*serving)
    for task in (working, background):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    if shutdown.done():
        shutdown.result()


def _tasks(
    service: Service, servers: Mapping[socket.socket, _Server], fronts: Iterable[Front], tls: Tls | None
) -> Iterator[tuple[str, Run]]:
    yield "collection of garbage", lambda: collect_forever(lambda: not service.missing())
    for front in fronts:
        yield "making of the other routes", front.make_when_ready
    if tls is not None:
        verbs = next(iter(servers.values()))
        yield "reload of the certificate", lambda: tls.watch(verbs.close_connections)


async def _wait_for_shutdown(service: Service) -> None:
    """Return when the sockets may close: at once after SIGINT or a second signal, and ``drain_seconds`` after
    SIGTERM, so that callers see ``/readyz`` turn 503 before connections are refused."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    first = await signals.get()
    _log.info("stopping after %s", first.name)
    leaving = asyncio.create_task(service.leave())
    if first is signal.SIGTERM:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(signals.get(), service.settings.drain_seconds)
    await asyncio.wait({leaving}, timeout=_GRACE)
