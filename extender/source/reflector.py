"""Lists and watches one kind of the API server in a thread of its own, and retries after every failure.

``list_watch`` decides which request comes next and what an answer means; this module sends the requests.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus

from urllib3 import HTTPResponse

from extender.background import Background
from extender.k8s.objects import Event, Listed
from extender.source.interface import Apply, WatchEnd, WatchStatus
from extender.source.list_watch import ListWatch, ProtocolError, Request
from extender.source.rest import NO_ANSWER, Refused, Timeouts
from extender.source.watch_connection import WatchConnection
from extender.source.watched_kinds import WatchedKind

_log = logging.getLogger(__name__)
_CHUNK = 1 << 18  # bytes of a watch that one read returns at most
_RELIST = "listing again"
_ABSENT_PAUSE = 300.0  # seconds at most before the next request for a kind that the cluster does not serve
_SPOKEN_OF = 2.0  # seconds without a watch after which that is a problem
_REFUSALS = 3  # in a row before a kind counts as absent: a server that has just started has read no roles yet


class _Stopped(Exception):
    """``stop`` was called."""


class Backoff:
    """Pauses before the next request: 0.5 to 30 s, doubling with every failure, with jitter. All times are
    seconds of a monotonic clock."""

    SHORTEST, LONGEST = 0.5, 30.0  # seconds
    HEALTHY = 60.0  # seconds with answers after which earlier failures no longer count
    BRIEF = 1.0  # seconds; a watch that ends sooner, even without an error, is not reopened at once

    def __init__(self, random: Callable[[], float]) -> None:
        """``random`` returns numbers from 0 to 1."""
        self._random = random
        self._failures = 0
        self._healthy_since: float | None = None
        self._opened: float | None = None
        self._relisted_at = -math.inf

    def answered(self, now: float) -> None:
        """The server answered (with a page, or by opening a watch) at ``now``."""
        self._opened = now
        if self._healthy_since is None:
            self._healthy_since = now

    def pause(self, now: float, *, clean: bool, longest: float = LONGEST) -> float:
        """Seconds to wait. ``clean``: the server ended the watch without an error."""
        opened, self._opened = self._opened, None
        if clean and opened is not None and now - opened >= self.BRIEF:
            return 0.0
        if self._healthy_since is not None and now - self._healthy_since >= self.HEALTHY:
            self._failures = 0
        self._healthy_since = None
        ceiling = min(2 * self.SHORTEST * 2.0**self._failures, longest)
        self._failures = min(self._failures + 1, 10)
        return ceiling * (1 + self._random()) / 2

    def before_relist(self, now: float) -> float:
        """Seconds to wait before a new list: 0, unless the last new list was less than a minute ago."""
        last, self._relisted_at = self._relisted_at, now
        if now - last >= self.HEALTHY:
            return 0.0
        return self.pause(now, clean=False, longest=self.LONGEST)


class Reflector:
    """Follows one kind. ``send`` returns an answer unread; it raises ``Refused`` and ``NO_ANSWER``."""

    def __init__(
        self, watched: WatchedKind, send: Callable[[Request], HTTPResponse], timeouts: Timeouts | None = None
    ) -> None:
        self.kind = watched.kind
        self.connection = WatchConnection()
        self._problem = ""  # why the last attempt failed
        self._watched, self._send, self._timeouts = watched, send, timeouts or Timeouts()
        self._list_began = -math.inf
        self._late_at, self._late = math.inf, ""  # when a read takes too long, and which one did
        self._protocol = ListWatch(watched)
        # Jitter of its own: a thread leaves the generator of the others alone.
        self._backoff = Backoff(random.SystemRandom().random)
        self._stopping = threading.Event()
        self._waking = threading.Event()
        self._absent = False  # whether the cluster does not serve this kind
        self._absences = 0  # attempts in a row that found it so
        # Whether it did: a server that has just started refuses requests until it has read roles and CRDs.
        self._served = False
        self._relists_wanted = self._relists_begun = self._relists_done = 0  # calls of relist
        self._thread: threading.Thread | None = None
        self._ended: Counter[WatchEnd] = Counter()  # watches and attempts since the start, by how

    @property
    def resource(self) -> str:
        """The plural in the path of the API."""
        return self._watched.resource

    def status(self) -> WatchStatus:
        now = time.monotonic()
        closed, problem = self.connection.closed_for(now), self._problem
        if self._served and not problem and closed >= _SPOKEN_OF:
            problem = f"not open for {closed:.0f} s"
        silent = now - self.connection.received_at
        return WatchStatus(self._watched.full_resource, silent, closed, problem, dict(self._ended))

    def list_once(self) -> list[Event]:
        """All objects, by the calling thread, in one attempt. Raises ``Refused``, ``NO_ANSWER`` and
        ``ProtocolError``."""
        events: list[Event] = []
        while not self._protocol.watching:
            try:
                answer = self._send(self._protocol.next_request())
            except Refused as refused:
                if self._watched.is_absent(refused.status):
                    return [Listed(self.kind, frozenset(), absent=True)]
                raise
            with closing(answer) as page:
                events += self._protocol.page(page.read())
        return events

    def start(self, apply: Apply, background: Background) -> None:
        """Start the thread, which delivers events to ``apply``. Once it runs, that does nothing."""
        if self._thread is None:
            self._thread = background.thread(f"watch of {self._watched.resource}", lambda: self._run(apply))

    def stop(self) -> None:
        """Make the thread end, also during a read. Does not wait for it."""
        self._stopping.set()
        self._waking.set()
        self.connection.shut_down()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread, at most ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(max(timeout, 0.0))

    def relist(self) -> int:
        """Start a new list at once, also during a read. Returns the argument for ``has_listed``."""
        self._relists_wanted += 1
        self._waking.set()
        self.connection.shut_down()
        return self._relists_wanted

    def has_listed(self, call: int) -> bool:
        """Whether a list that began after that call of ``relist`` has been delivered."""
        return self._relists_done >= call

    def end_late_read(self) -> None:
        """End a read that takes too long. For another thread, about once a second."""
        if time.monotonic() >= self._late_at:
            self._late = "the answer came too slowly"
            self.connection.shut_down()

    def retry_now(self) -> None:
        """Skip the pause before the next attempt, unless the watch is open or an attempt ended just now."""
        if self.connection.may_retry():
            self._waking.set()

    def _run(self, apply: Apply) -> None:
        next_try = -math.inf
        while not self._stopping.is_set():
            is_early = time.monotonic() < next_try
            problem, ended_at = self._attempt(apply)
            if self._stopping.is_set():
                return
            if not (is_early and problem):  # a failed early retry changes neither the pauses nor the log
                next_try = ended_at + self._pause(problem)
            self._waking.wait(max(next_try - time.monotonic(), 0.0))
            if not self._stopping.is_set():
                self._waking.clear()

    def _pause(self, problem: str) -> float:
        """Seconds until the next attempt. Logs the problem, if there is one."""
        now, relists = time.monotonic(), problem == _RELIST
        if relists:
            pause = self._backoff.before_relist(now)
        else:
            longest = _ABSENT_PAUSE if self._absent else Backoff.LONGEST
            pause = self._backoff.pause(now, clean=not problem, longest=longest)
        if problem and not self._stopping.is_set():
            level = logging.INFO if relists or self._absent else logging.WARNING
            if self._absent and self._absences > 1:
                level = logging.DEBUG  # it was said
            _log.log(level, "%s: %s, next try in %.1f s", self._watched.resource, problem, pause)
        return pause

    def _attempt(self, apply: Apply) -> tuple[str, float]:
        """Follow until the watch ends. Returns the problem ("" if the server ended the watch in time, or
        ``relist`` did), and when the watch ended."""
        self._absent, self._late = False, ""
        self.connection.answered = False
        problem = self._follow(apply)
        self._absences = self._absences + 1 if self._absent else 0
        ended_at = self.connection.attempt_ended()
        if not (self._stopping.is_set() or self._absent):
            self._ended["relist" if problem == _RELIST else "error" if problem else "in_time"] += 1
        return problem if self._relists_begun == self._relists_wanted else "", ended_at

    def _follow(self, apply: Apply) -> str:
        try:
            while self._must_list():
                self._list(apply)
            self._relists_done = self._relists_begun
            self._watch(apply)
            return "" if self._protocol.watching else _RELIST
        except Refused as refused:
            self.connection.refused()
            self._absent = self._watched.is_absent(refused.status) and not self._served
            is_unknown_kind = self._absent and refused.status == HTTPStatus.NOT_FOUND
            self._problem = "" if is_unknown_kind else str(refused)
            return _RELIST if self._protocol.rejected(refused.status) else str(refused)
        except (*NO_ANSWER, ProtocolError) as error:
            self.connection.failed()
            self._problem = self._late or f"{type(error).__name__}: {error}"
            return self._problem
        except _Stopped:
            return ""
        except Exception:  # the state may have missed events, so all of them must come again
            _log.exception("%s: unexpected error", self._watched.resource)
            self._protocol.relist()
            return _RELIST
        finally:
            self._late_at = math.inf

    def _must_list(self) -> bool:
        if self._relists_begun < self._relists_wanted:
            self._relists_begun = self._relists_wanted
            self._protocol.relist()
        return not self._protocol.watching

    def _list(self, apply: Apply) -> None:
        request = self._protocol.next_request()
        if "continue" not in request.query:  # all pages show the cluster as it is for the first one
            self._list_began = time.monotonic()
        try:
            answer = self._send(request)
        except Refused as refused:
            said_often = refused.status == HTTPStatus.NOT_FOUND or self._absences + 1 >= _REFUSALS
            listed_before = self.connection.received_at > -math.inf
            if self._watched.is_absent(refused.status) and said_often and not listed_before:
                self._deliver([Listed(self.kind, frozenset(), absent=True)], apply)
            raise
        with closing(answer) as page:
            self.connection.answered = self._served = True
            self.connection.reading(page)
            self._late_at = time.monotonic() + self._timeouts.whole_page
            body = page.read()
            self._late_at = math.inf
        self._backoff.answered(time.monotonic())
        self._deliver(self._protocol.page(body, self._list_began), apply)

    def _watch(self, apply: Apply) -> None:
        with closing(self._send(self._protocol.next_request())) as stream:
            self.connection.opening(stream)
            self._backoff.answered(time.monotonic())
            self._deliver([], apply)
            self.connection.opened()
            self._problem = ""
            # From here on ``relist`` ends the read. The condition notices a call that came before.
            while self._relists_begun == self._relists_wanted and self._protocol.watching:
                if not (data := stream.read1(_CHUNK)):
                    break
                events = self._protocol.chunk(data)
                if events or self._late_at == math.inf or not self._protocol.in_line:
                    in_time = time.monotonic() + self._timeouts.line
                    self._late_at = in_time if self._protocol.in_line else math.inf
                self._deliver(events, apply)
            if self._late:
                raise TimeoutError

    def _deliver(self, events: list[Event], apply: Apply) -> None:
        if self._stopping.is_set():
            raise _Stopped
        self.connection.received_at = time.monotonic()
        if events:
            apply(events)
