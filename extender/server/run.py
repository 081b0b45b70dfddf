"""Runs the service on its sockets, and drains it on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from functools import partial

import uvloop

from extender.background import Run
from extender.server.app import create_app
from extender.server.between_answers import collect_forever
from extender.server.port import Port
from extender.server.service import Service
from extender.server.tls import Tls

_GRACE = 20
"""Seconds for running requests after the sockets close; the longest is a bind to a slow API server."""
_SWITCH_INTERVAL = 0.0005
"""Seconds after which a reflector's thread must release the interpreter. With Python's 5 ms, a request that
needs the interpreter ten times would wait 50 ms during a burst of watch events."""

_log = logging.getLogger(__name__)


class PortInUse(Exception):
    """Cannot listen on the address; the text names it and the reason."""


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
    is_loopback = ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback
    if service.settings.bind and not (tls and tls.files.client_ca) and not is_loopback:
        _log.warning("anyone who can reach the port for kube-scheduler can bind pods: use --client-ca")
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(service, sock, debug_sock, tls))


async def _run(
    service: Service, sock: socket.socket, debug_sock: socket.socket | None, tls: Tls | None
) -> None:
    clients = tls.client_names if tls else frozenset()
    app = create_app(service, debug=debug_sock is None, clients=clients)
    ports = [Port(app, sock, tls.verbs if tls else None, _GRACE)]
    if debug_sock is not None:
        ports.append(Port(create_app(service, verbs=False), debug_sock, tls.debug if tls else None, _GRACE))
    working = asyncio.create_task(service.run())
    tasks: list[tuple[str, Run]] = [("collection of garbage", partial(collect_forever, service.until_ready))]
    if tls is not None:
        tasks.append(("reload of the certificate", partial(tls.watch, ports[0].close_connections)))
    background = asyncio.create_task(service.background.keep_all(tasks))
    serving = [asyncio.create_task(port.serve()) for port in ports]
    shutdown = asyncio.create_task(_wait_for_shutdown(service))
    await asyncio.wait({working, shutdown, *serving}, return_when=asyncio.FIRST_COMPLETED)
    for port in ports:
        port.should_exit = True
    await asyncio.gather(*serving)
    for task in (working, background):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    if shutdown.done():
        shutdown.result()


async def _wait_for_shutdown(service: Service) -> None:
    """Return when the sockets may close: immediately after SIGINT or a second signal, ``drain_seconds`` after
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
