"""The least that an extender with a shortlist costs: a bare ASGI application that decides nothing.

``filter`` answers with the first names of the request, as many as Stowage's shortlist has; ``prioritize``
gives all of them the same score. It runs on the same server as Stowage, so what it loses against a bare
kube-scheduler is the protocol, and what Stowage loses against it are Stowage's decisions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.echo import serve
from bench.service import Running, free_port, running_process, until_ok
from extender.settings import Settings

_NAMES = b'"NodeNames":['
_SHORTLIST: int = Settings.model_fields["shortlist"].default


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI's callables
    """Answer ``/scheduler/filter`` and ``/scheduler/prioritize``."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    reply = answer(scope["path"].rpartition("/")[2], body)
    length = str(len(reply)).encode()
    headers = [(b"content-length", length), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply})


def answer(verb: str, body: bytes) -> bytes:
    """The reply to a verb; an empty object for any other. The names are quoted, as they stand in the body:
    kube-scheduler sends them last."""
    end = body.rfind(b"]")
    start = body.rfind(_NAMES) + len(_NAMES)
    names = body[start:end].split(b",", _SHORTLIST)[:_SHORTLIST]
    if verb == "filter":
        keys = b',"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
        return b'{"Nodes":null,"NodeNames":[' + b",".join(names) + b"]" + keys
    if verb == "prioritize":
        return b"[" + b",".join(b'{"Host":' + name + b',"Score":5}' for name in names) + b"]"
    return b"{}"


@contextmanager
def running_echo_extender() -> Iterator[Running]:
    """The extender as a process of its own."""
    port = free_port()
    with running_process([sys.executable, "-m", "bench.echo_extender", str(port)], {}) as process:
        until_ok(process, f"http://127.0.0.1:{port}/")
        yield Running(port, process.pid, 0.0)


if __name__ == "__main__":
    serve(echo, int(sys.argv[1]))
