"""Following one resource of the API server in a thread of its own: list, watch, and whatever goes wrong.

``watch`` decides what to ask and what the answers mean; here they are fetched and handed on, and time passes.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from extender.objects import Event
from extender.source import Apply
from extender.watch import Backoff, ListWatch, ProtocolError, Request, Resource

NO_ANSWER = (HTTPError, OSError)
"""What a request raises, or the reading of its answer, where the server is away or breaks off."""

_log = logging.getLogger(__name__)
_CHUNK = 1 << 18  # bytes of a watch that are read at once, at most


class Refused(Exception):
    """An answer with a status that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


class _Stopped(Exception):
    """``stop`` was called."""


class Follower:
    """One resource. ``ask`` sends a request and returns its answer unread; it raises ``Refused`` for a status
    other than 200, and ``NO_ANSWER``."""

    def __init__(self, resource: Resource, ask: Callable[[Request], HTTPResponse]) -> None:
        self.kind = resource.kind
        self.heard_at = -math.inf  # monotonic seconds
        self._ask = ask
        self._protocol = ListWatch(resource)
        self._backoff = Backoff(random.random)
        self._stopping = threading.Event()
        self._stream: HTTPResponse | None = None
        self._thread: threading.Thread | None = None

    def start(self, apply: Apply) -> None:
        """Begin; events come from the thread."""
        name = f"follow-{self.kind}"
        self._thread = threading.Thread(target=self._run, args=(apply,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make the thread end, out of a read, too. Does not wait for it."""
        self._stopping.set()
        if (stream := self._stream) is not None:
            with suppress(OSError, ValueError, RuntimeError):  # it may end by itself at this moment
                stream.shutdown()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread, at most ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(max(timeout, 0.0))

    def _run(self, apply: Apply) -> None:
        while not self._stopping.is_set():
            trouble = self._attempt(apply)
            pause = self._backoff.pause(time.monotonic(), clean=not trouble)
            if trouble and not self._stopping.is_set():
                _log.warning("%ss: %s; next try in %.1f s", self.kind, trouble, pause)
            self._stopping.wait(pause)

    def _attempt(self, apply: Apply) -> str:
        """Follow until the watch ends; "" where it ended in its own time, else what was the matter."""
        try:
            while not self._protocol.watching:
                self._list(apply)
            self._watch(apply)
            return "" if self._protocol.watching else "listing anew"
        except Refused as refused:
            self._protocol.rejected(refused.status)
            return str(refused)
        except (*NO_ANSWER, ProtocolError) as error:
            return f"{type(error).__name__}: {error}"
        except _Stopped:
            return ""
        except Exception:  # events may be lost on the way to the state: they must all come again
            _log.exception("%ss: unexpected", self.kind)
            self._protocol.relist()
            return "listing anew"

    def _list(self, apply: Apply) -> None:
        with closing(self._ask(self._protocol.next_request())) as page:
            body = page.read()
        self._backoff.answered(time.monotonic())
        self._deliver(self._protocol.page(body), apply)

    def _watch(self, apply: Apply) -> None:
        with closing(self._ask(self._protocol.next_request())) as self._stream:
            self._backoff.answered(time.monotonic())
            self._deliver([], apply)
            while self._protocol.watching and (data := self._stream.read1(_CHUNK)):
                self._deliver(self._protocol.chunk(data), apply)

    def _deliver(self, events: list[Event], apply: Apply) -> None:
        if self._stopping.is_set():
            raise _Stopped
        self.heard_at = time.monotonic()
        if events:
            apply(events)
