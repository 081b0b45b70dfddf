"""Following one resource of the API server in a thread of its own: list, watch, and whatever goes wrong.

``watch`` decides what to ask and what the answers mean; here they are fetched and handed on, and time passes.
"""

from __future__ import annotations

import logging
import math
import random
import select
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum, auto
from http import HTTPStatus

from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from extender.k8s.objects import Event, Listed
from extender.source.interface import Apply, Interruption
from extender.source.list_watch import ListWatch, ProtocolError, Request, Resource

NO_ANSWER = (HTTPError, OSError)
"""What a request raises, or the reading of its answer, where the server is away or breaks off."""

_log = logging.getLogger(__name__)
_CHUNK = 1 << 18  # bytes of a watch that are read at once, at most
_ANEW = "listing anew"
_SETTLING = 0.25  # seconds in which a watch that is opened again brings what was missed, at most
_FRESH = 0.05  # seconds for which "no answer" is taken to hold
_WITHOUT = 300.0  # seconds until it is asked again for what the cluster does not have


class Refused(Exception):
    """An answer with a status that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


class _Stopped(Exception):
    """``stop`` was called."""


class Freshness(Enum):
    """How what was delivered relates to what the API server has, as far as can be told without asking it."""

    CURRENT = auto()
    """The watch is open, and has been for long enough to bring what was missed."""
    BEHIND = auto()
    """The watch is not open, and the server answers: there is something to catch up on."""
    AWAY = auto()
    """The server did not answer just now: there is nothing newer to be had."""
    UNKNOWN = auto()
    """The watch has broken, and whether the server answers is to be tried."""


class Reflector:
    """One resource. ``ask`` sends a request and returns its answer unread; it raises ``Refused`` for a status
    other than 200, and ``NO_ANSWER``. ``optional``: that there is none of it is nothing unusual, and an empty
    list."""

    def __init__(
        self, resource: Resource, ask: Callable[[Request], HTTPResponse], *, optional: bool = False
    ) -> None:
        self.kind = resource.kind
        self._what = resource.path.rpartition("/")[2]
        self._optional = optional
        self._without = False
        self.heard_at = -math.inf  # monotonic seconds
        self._ask = ask
        self._protocol = ListWatch(resource)
        self._backoff = Backoff(random.random)
        self._stopping = threading.Event()
        self._waking = threading.Event()
        # Monotonic seconds, all of them.
        self._closed_at = -math.inf
        self._settled_at: float | None = None  # when an open watch has brought what was missed
        self._tried_at = -math.inf  # the end of the last attempt
        self._failed_at = -math.inf  # the same of one that had no answer at all
        self._answered = False  # whether the attempt that runs has had an answer, or the last one had
        self._refused = False  # whether the last answer was a refusal: then somebody is there to ask again
        self._interruption: Interruption | None = None
        self._wanted = self._begun = self._listed = 0  # calls of list_anew: all, heeded, done
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
        self._interrupt()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread, at most ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(max(timeout, 0.0))

    def relist(self) -> int:
        """Begin a new list at once, out of a read, too. Returns what ``has_listed`` is asked with."""
        self._wanted += 1
        self._interrupt()
        return self._wanted

    def has_listed(self, call: int) -> bool:
        """Whether a list that began after that call of ``relist`` was delivered."""
        return self._listed >= call

    def standing(self) -> Freshness:
        """How things stand now. Any thread may ask."""
        now, settled_at = time.monotonic(), self._settled_at
        if settled_at is not None and self._hung_up():
            return Freshness.UNKNOWN
        if settled_at is not None:
            return Freshness.CURRENT if now >= settled_at else Freshness.BEHIND
        if self._answered or self._refused:
            return Freshness.BEHIND
        return Freshness.AWAY if now - self._failed_at < _FRESH else Freshness.UNKNOWN

    def interruption(self) -> Interruption | None:
        """The last one; that a watch ends in its own time and is opened again at once is none."""
        if self._settled_at is None and self._closed_at > -math.inf:
            return Interruption(self._closed_at, None)
        return self._interruption

    def _hung_up(self) -> bool:
        """Whether the server has closed the connection, which our thread may not have noticed yet."""
        stream, hung_up = self._stream, select.poll()
        try:
            if stream is not None:
                hung_up.register(stream.fileno(), select.POLLRDHUP)
        except (AttributeError, OSError, ValueError):  # it has been noticed in this moment
            return True
        return bool(hung_up.poll(0))

    def retry_now(self) -> None:
        """Try at once instead of after the pause, unless the watch is open or that was done a moment ago."""
        if self._settled_at is None and time.monotonic() - self._tried_at >= _FRESH:
            self._waking.set()

    def _interrupt(self) -> None:
        self._waking.set()
        if (stream := self._stream) is not None:
            with suppress(OSError, ValueError, RuntimeError):  # it may end by itself at this moment
                stream.shutdown()

    def _run(self, apply: Apply) -> None:
        next_try = -math.inf
        while not self._stopping.is_set():
            hurried = time.monotonic() < next_try
            trouble = self._attempt(apply)
            if not (hurried and trouble):  # what is tried in between changes neither the pauses nor the log
                pause = self._pause(trouble)
                next_try = self._tried_at + pause
                self._say(trouble, pause)
            self._waking.wait(max(next_try - time.monotonic(), 0.0))
            if not self._stopping.is_set():
                self._waking.clear()

    def _say(self, trouble: str, pause: float) -> None:
        if trouble and not self._stopping.is_set():
            level = logging.INFO if trouble == _ANEW or self._without else logging.WARNING
            _log.log(level, "%s: %s, next try in %.1f s", self._what, trouble, pause)

    def _pause(self, trouble: str) -> float:
        if self._without:
            return _WITHOUT
        now = time.monotonic()
        return self._backoff.anew(now) if trouble == _ANEW else self._backoff.pause(now, clean=not trouble)

    def _attempt(self, apply: Apply) -> str:
        """Follow until the watch ends; "" where it ended in its own time, else what was the matter."""
        self._answered = self._without = False
        trouble = self._follow(apply)
        self._tried_at = time.monotonic()
        if self._settled_at is not None:
            self._closed_at, self._settled_at = self._tried_at, None
        if not self._answered:
            self._failed_at = self._tried_at
        return trouble if self._begun == self._wanted else ""  # else it was ended from here

    def _follow(self, apply: Apply) -> str:
        try:
            while self._must_list():
                self._list(apply)
            self._listed = self._begun
            self._watch(apply)
            return "" if self._protocol.watching else _ANEW
        except Refused as refused:
            self._answered = self._refused = True
            self._without = self._is_absent(refused)
            return _ANEW if self._protocol.rejected(refused.status) else str(refused)
        except (*NO_ANSWER, ProtocolError) as error:
            self._refused = False
            return f"{type(error).__name__}: {error}"
        except _Stopped:
            return ""
        except Exception:  # events may be lost on the way to the state: they must all come again
            _log.exception("%s: unexpected", self._what)
            self._protocol.relist()
            return _ANEW

    def _must_list(self) -> bool:
        if self._begun < self._wanted:
            self._begun = self._wanted
            self._protocol.relist()
        return not self._protocol.watching

    def _is_absent(self, refused: Refused) -> bool:
        return self._optional and refused.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN)

    def _list(self, apply: Apply) -> None:
        try:
            answer = self._ask(self._protocol.next_request())
        except Refused as refused:
            if self._is_absent(refused) and self.heard_at == -math.inf:  # what was there once is kept
                self._deliver([Listed(self.kind, frozenset())], apply)
            raise
        with closing(answer) as page:
            self._answered = True
            body = page.read()
        self._backoff.answered(time.monotonic())
        self._deliver(self._protocol.page(body), apply)

    def _watch(self, apply: Apply) -> None:
        with closing(self._ask(self._protocol.next_request())) as self._stream:
            self._answered, self._refused = True, False
            self._backoff.answered(time.monotonic())
            self._deliver([], apply)
            opened_at = time.monotonic()
            if _SETTLING < opened_at - self._closed_at < math.inf:
                self._interruption = Interruption(self._closed_at, opened_at)
            self._settled_at = opened_at + min(opened_at - self._closed_at, _SETTLING)
            # From here on list_anew finds the stream; a call that came before is seen here.
            while self._begun == self._wanted and self._protocol.watching:
                if not (data := self._stream.read1(_CHUNK)):
                    break
                self._deliver(self._protocol.chunk(data), apply)

    def _deliver(self, events: list[Event], apply: Apply) -> None:
        if self._stopping.is_set():
            raise _Stopped
        self.heard_at = time.monotonic()
        if events:
            apply(events)


class Backoff:
    """How long to wait before the next try: 0.5 to 30 s, doubling, with jitter."""

    SHORTEST, LONGEST = 0.5, 30.0  # seconds
    HEALTHY = 60.0  # seconds of answers after which the past is forgotten
    BRIEF = 1.0  # a stream that ends sooner, even properly, must not be reopened in a tight loop

    def __init__(self, random: Callable[[], float]) -> None:
        """``random`` gives numbers from 0 to 1."""
        self._random = random
        self._failures = 0
        self._healthy_since: float | None = None
        self._opened: float | None = None
        self._anew = -math.inf

    def answered(self, now: float) -> None:
        """The server gave an answer (a page, or the beginning of a watch) at ``now`` (seconds, monotonic)."""
        self._opened = now
        if self._healthy_since is None:
            self._healthy_since = now

    def pause(self, now: float, *, clean: bool) -> float:
        """Seconds to wait; ``clean``: the server ended the watch in its own time."""
        opened, self._opened = self._opened, None
        if clean and opened is not None and now - opened >= self.BRIEF:
            return 0.0
        if self._healthy_since is not None and now - self._healthy_since >= self.HEALTHY:
            self._failures = 0
        self._healthy_since = None
        ceiling = min(2 * self.SHORTEST * 2.0**self._failures, self.LONGEST)
        self._failures = min(self._failures + 1, 10)
        return ceiling * (1 + self._random()) / 2

    def anew(self, now: float) -> float:
        """Seconds to wait before a new list: none, unless the last new list was within the minute."""
        last, self._anew = self._anew, now
        return 0.0 if now - last >= self.HEALTHY else self.pause(now, clean=False)
