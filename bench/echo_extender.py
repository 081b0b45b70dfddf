"""The minimum cost of an extender with a shortlist: a bare ASGI application that decides nothing.

``filter`` answers with the first names of the request, as many as in Stowage's shortlist; ``prioritize``
gives all of them the same score. It runs on the same server as Stowage, so its loss compared with a bare
kube-scheduler is the cost of the protocol, and Stowage's further loss is the cost of its decisions.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.echo import serve
from bench.service import Running, free_port, running_process, until_ok
from extender.settings import Settings

_NAMES = b'"NodeNames":['
SHORTLIST: int = Settings.model_fields["shortlist"].default


def echo(shortlist: int) -> Callable[..., Awaitable[None]]:
    """The application that answers ``/scheduler/filter`` and ``/scheduler/prioritize``."""

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI's
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        reply = answer(scope["path"].rpartition("/")[2], body, shortlist)
        length = str(len(reply)).encode()
        headers = [(b"content-length", length), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    return application


def answer(verb: str, body: bytes, shortlist: int = SHORTLIST) -> bytes:
    """The reply to a verb; an empty object for any other. The names are copied with their quotes from the end
    of the body, where kube-scheduler writes them."""
    end = body.rfind(b"]")
    start = body.rfind(_NAMES) + len(_NAMES)
    names = body[start:end].split(b",", shortlist)[:shortlist]
    if verb == "filter":
        keys = b',"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
        return b'{"Nodes":null,"NodeNames":[' + b",".join(names) + b"]" + keys
    if verb == "prioritize":
        return b"[" + b",".join(b'{"Host":' + name + b',"Score":5}' for name in names) + b"]"
    return b"{}"


@contextmanager
def running_echo_extender(shortlist: int = SHORTLIST) -> Iterator[Running]:
    """The extender as a separate process."""
    port = free_port()
    command = [sys.executable, "-m", "bench.echo_extender", str(port), str(shortlist)]
    with running_process(command, {}) as process:
        until_ok(process, f"http://127.0.0.1:{port}/")
        yield Running(port, process.pid, 0.0)


if __name__ == "__main__":
    serve(echo(int(sys.argv[2])), int(sys.argv[1]))
