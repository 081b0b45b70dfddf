"""A service on its sockets: up at once, ready when the kernels are compiled and the state is synced, drained
when it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping

import uvicorn

from extender.server import garbage_collection as garbage
from extender.server.app import create_app, create_debug_app
from extender.server.connections import Connection
from extender.server.service import Service

KEEP_ALIVE = 120
"""Seconds. Go's client keeps idle connections for 90 s and does not repeat a POST that met a closing one."""
_GRACE = 20
"""Seconds for requests that run when the sockets close; the longest is a bind at a slow API server."""
_SWITCH = 0.0005
"""Seconds after which a thread that reads a burst of changes makes way for a request. With Python's 5 ms, a
request that needs the interpreter ten times waits for as many of them."""

_log = logging.getLogger(__name__)


class PortInUse(Exception):
    """An address that cannot be listened on; the text says which and why."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ``PortInUse``."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise PortInUse(f"cannot listen on {host} port {port}: {error.strerror}") from None


def run(service: Service, sock: socket.socket, debug_sock: socket.socket | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises as ``Service.run``."""
    for listener, what in ((sock, "kube-scheduler"), (debug_sock, "debug and metrics")):
        if listener is not None:
            host, port = listener.getsockname()[:2]
            _log.info("listening for %s on http://%s:%d", what, f"[{host}]" if ":" in host else host, port)
    servers = {sock: _Server(create_app(service, debug=debug_sock is None))}
    if debug_sock is not None:
        servers[debug_sock] = _Server(create_debug_app(service))
    sys.setswitchinterval(_SWITCH)
    with asyncio.Runner(loop_factory=servers[sock].config.get_loop_factory()) as runner:
        runner.run(_run(service, servers))


class _Server(uvicorn.Server):
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled once for all listeners, and end in exit code 0."""
        yield


async def _run(service: Service, servers: Mapping[socket.socket, _Server]) -> None:
    working = asyncio.create_task(service.run())
    tidying = asyncio.create_task(garbage.run(lambda: not service.missing()))
    serving = [asyncio.create_task(server.serve([sock])) for sock, server in servers.items()]
    asked_to_stop = asyncio.create_task(_drained(service))
    await asyncio.wait({working, asked_to_stop, *serving}, return_when=asyncio.FIRST_COMPLETED)
    for server in servers.values():
        server.should_exit = True
    await asyncio.gather(*serving)
    tidying.cancel()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


async def _drained(service: Service) -> None:
    """Returns once the sockets may close: after SIGINT or a second signal at once, after SIGTERM a while
    after ``/readyz`` has turned 503, so that callers have turned away before connections are refused."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    first = await signals.get()
    _log.info("stopping on %s", first.name)
    leaving = asyncio.create_task(service.leave())
    if first is signal.SIGTERM:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(signals.get(), service.settings.drain_seconds)
    await asyncio.wait({leaving}, timeout=_GRACE)
