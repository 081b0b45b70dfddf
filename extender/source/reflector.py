"""Lists and watches one kind of the API server in its own thread, and retries after every failure.

``list_watch`` determines the next request and interprets answers; this module sends the requests, and tracks
how current the delivered events are. All times are seconds of the monotonic clock. It uses threads because
decoding a page would block the event loop for 30 ms. An idle thread takes 15 KiB.
"""

from __future__ import annotations

import logging
import math
import random
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from enum import Enum, auto
from http import HTTPStatus

from extender.background import Background
from extender.k8s.objects import Event, Listed, Unlisted
from extender.source.interface import NO_BACKLOG, Apply, Backlog, Interruption, WatchEnd, WatchStatus
from extender.source.list_watch import ListWatch, ProtocolError, Request
from extender.source.rest import NO_ANSWER, Answer, Refused, Timeouts
from extender.source.watched_kinds import OF_UNMADE_PODS, UNKNOWN, WatchedKind
from extender.untrusted.limits import shorten
from extender.untrusted.visible import visible

_log = logging.getLogger(__name__)
_CHUNK = 1 << 18  # maximum bytes of a watch that one read returns
_RELIST = "listing again"
_ABSENT_PAUSE = 300.0  # maximum seconds before the next request for a kind that the cluster does not serve
_SPOKEN_OF = 2.0  # seconds without a watch before this is reported as a problem
_REFUSALS = 3  # in a row before a kind counts as absent: a server that is starting has not read its roles yet
_SETTLING = 0.25  # maximum seconds until a reopened watch has delivered missed events
_ROOM = 0.01  # seconds between checks for room
_FRESH = 0.05  # seconds for which "no answer" is still valid
_HANGS_UP = getattr(select, "POLLRDHUP", 0)  # Linux; other systems report a closed connection too late


class Freshness(Enum):
    """Freshness of the delivered events, as far as it is known without a request."""

    CURRENT = auto()  # the watch has been open long enough to deliver missed events
    BEHIND = auto()  # the watch is not open, and the server answers: there may be newer events
    UNREACHABLE = auto()  # the server has just failed to answer: no client can get newer events
    UNKNOWN = auto()  # the watch broke, and it is not known yet whether the server answers


class Backoff:
    """Pauses before the next request: 0.5 to 30 s, doubling with every failure, with jitter."""

    SHORTEST, LONGEST = 0.5, 30.0  # seconds
    HEALTHY = 60.0  # seconds with answers after which earlier failures no longer count
    BRIEF = 1.0  # seconds; a watch that ends sooner, even without an error, is not reopened immediately

    def __init__(self, random: Callable[[], float]) -> None:
        """``random`` returns numbers from 0 to 1."""
        self._random = random
        self._failures = 0
        self._healthy_since: float | None = None
        self._opened: float | None = None
        self._relisted_at = -math.inf

    def answered(self, now: float) -> None:
        """Note that the server answered (with a page, or by opening a watch) at ``now``."""
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
    """Lists and watches one kind. ``send`` returns an unread answer; it raises ``Refused`` and ``NO_ANSWER``.

    Its thread writes the fields; any thread may call the public methods.
    """

    def __init__(
        self, watched: WatchedKind, send: Callable[[Request], Answer], timeouts: Timeouts | None = None
    ) -> None:
        self.kind = watched.kind
        self._watched, self._send, self._timeouts = watched, send, timeouts or Timeouts()
        self._protocol = ListWatch(watched)
        # Separate jitter, so that threads do not share a generator.
        self._backoff = Backoff(random.SystemRandom().random)
        self._stopping, self._waking = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._relists_wanted = self._relists_begun = self._relists_done = 0  # calls of relist
        self._ended: Counter[WatchEnd] = Counter()  # watches and attempts since the start, by cause
        self._problem, self._forbidden = "", False  # why the last attempt failed
        self._absent = False  # whether the cluster does not serve this kind
        self._absences = 0  # consecutive attempts that found it absent
        # Whether it ever did: a starting server refuses requests until it has read roles and CRDs.
        self._served = False
        self.is_known = False  # whether a full list was delivered, or the kind as absent
        self._held: list[Event] = []  # of the first pages
        self._answered = False  # whether the current or else the last attempt was answered
        self._refused = False  # whether the last answer was a refusal: then the server is reachable
        self._stream: Answer | None = None  # being read
        self._list_began = self._received_at = -math.inf  # the last bytes
        self._settled_at: float | None = None  # when an open watch has delivered missed events
        self._closed_at = self._attempt_ended_at = -math.inf
        self._unanswered_at = -math.inf  # the end of the last attempt without any answer
        self._interruption: Interruption | None = None

    @property
    def resource(self) -> str:
        return self._watched.resource

    @property
    def is_absent(self) -> bool:
        """Whether the cluster does not serve the kind, or Stowage may not list it."""
        return self._absences > 0

    @property
    def is_open(self) -> bool:
        """Whether the watch is open, as far as the thread has noticed."""
        return self._settled_at is not None

    def status(self) -> WatchStatus:
        now, problem, closed = time.monotonic(), self._problem, 0.0
        if not self.is_open and self._closed_at > -math.inf:
            closed = max(now - self._closed_at, 0.0)
        if self._served and not problem and closed >= _SPOKEN_OF:
            problem = f"not open for {closed:.0f} s"
        silent = now - self._received_at
        resource, ends = self._watched.full_resource, dict(self._ended)
        return WatchStatus(resource, silent, closed, problem, ends, self._forbidden and bool(problem))

    def freshness(self) -> Freshness:
        """The present freshness of the delivered events."""
        now, settled_at = time.monotonic(), self._settled_at
        if settled_at is not None and self._is_closed_by_server():
            return Freshness.UNKNOWN
        if settled_at is not None:
            return Freshness.CURRENT if now >= settled_at else Freshness.BEHIND
        if self._answered or self._refused:
            return Freshness.BEHIND
        return Freshness.UNREACHABLE if now - self._unanswered_at < _FRESH else Freshness.UNKNOWN

    def interruption(self) -> Interruption | None:
        """The last interruption. A watch that ends without an error and is reopened immediately has none."""
        if not self.is_open and self._closed_at > -math.inf:
            return Interruption(self._closed_at, None)
        return self._interruption

    def list_once(self) -> list[Event]:
        """All objects, listed by the calling thread in one attempt. Raises ``Refused``, ``NO_ANSWER`` and
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

    def unlisted(self, why: str = "") -> Unlisted:
        """That the kind counts as unknown: why, or else why the last attempt failed."""
        why = visible(shorten(why or self._problem or "no complete list has arrived"))
        effect = UNKNOWN.get(self.kind, OF_UNMADE_PODS.get(self.kind, ""))
        return Unlisted(self.kind, self._watched.full_resource, why, effect)

    def start(self, apply: Apply, background: Background, backlog: Backlog = NO_BACKLOG) -> None:
        """Start the thread, which delivers events to ``apply`` while the ``backlog`` has room for them. No
        effect if it is running."""
        if self._thread is None:
            self._backlog = backlog
            self._thread = background.thread(f"watch of {self.resource}", lambda: self._run(apply))

    def stop(self) -> None:
        """Make the thread end, even during a read. Does not wait for it."""
        self._stopping.set()
        self._interrupt()

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the thread to end."""
        if self._thread is not None:
            self._thread.join(max(timeout, 0.0))

    def relist(self) -> int:
        """Start a new list immediately, even during a read. Returns the argument for ``has_listed``."""
        self._relists_wanted += 1
        self._interrupt()
        return self._relists_wanted

    def has_listed(self, call: int) -> bool:
        """Whether a list that began after this call of ``relist`` has been delivered."""
        return self._relists_done >= call

    def retry_now(self) -> None:
        """Skip the pause before the next attempt, unless the watch is open or an attempt has just ended."""
        if not self.is_open and time.monotonic() - self._attempt_ended_at >= _FRESH:
            self._waking.set()

    def _interrupt(self) -> None:
        self._waking.set()
        if (stream := self._stream) is not None:
            with suppress(OSError, ValueError, RuntimeError):  # it may be ending on its own
                stream.shutdown()

    def _is_closed_by_server(self) -> bool:
        """Whether the server has closed the connection, even if the thread has not noticed yet."""
        stream, poll = self._stream, select.poll()
        try:
            if stream is not None:
                poll.register(stream.fileno(), _HANGS_UP)
        except (AttributeError, OSError, ValueError):  # the thread is closing it
            return True
        return bool(poll.poll(0))

    # The thread calls the methods below.

    def _run(self, apply: Apply) -> None:
        next_try = -math.inf
        while not self._stopping.is_set():
            is_early = time.monotonic() < next_try
            problem = self._attempt(apply)
            if self._stopping.is_set():
                return
            if not (is_early and problem):  # a failed early retry affects neither pauses nor log
                next_try = self._attempt_ended_at + self._pause(problem)
            self._waking.wait(max(next_try - time.monotonic(), 0.0))
            if not self._stopping.is_set():
                self._waking.clear()

    def _pause(self, problem: str) -> float:
        """Seconds until the next attempt. Logs the problem, if any."""
        now, relists = time.monotonic(), problem == _RELIST
        if relists:
            pause = self._backoff.before_relist(now)
        else:
            longest = _ABSENT_PAUSE if self._absent else Backoff.LONGEST
            pause = self._backoff.pause(now, clean=not problem, longest=longest)
        if problem and not self._stopping.is_set():
            level = logging.INFO if relists else logging.DEBUG if self._absent else logging.WARNING
            _log.log(level, "%s: %s, next try in %.1f s", self.resource, problem, pause)
        return pause

    def _attempt(self, apply: Apply) -> str:
        """List and watch until the watch ends. Returns the problem, "" if the server ended the watch at its
        timeout, or ``relist`` did."""
        self._absent = self._answered = False
        problem = self._deliver_all(apply)
        self._absences = self._absences + 1 if self._absent else 0
        now = self._attempt_ended_at = time.monotonic()
        if self._settled_at is not None:
            self._closed_at, self._settled_at = now, None
        if not self._answered:
            self._unanswered_at = now
        if not (self._stopping.is_set() or self._absent):
            self._ended["relist" if problem == _RELIST else "error" if problem else "in_time"] += 1
        return problem if self._relists_begun == self._relists_wanted else ""

    def _deliver_all(self, apply: Apply) -> str:
        """Deliver the server's events. Returns why they ended, "" if the server ended them at the timeout."""
        try:
            with closing(self._events()) as batches:
                for events in batches:
                    if self._stopping.is_set():
                        return ""
                    self._received_at = time.monotonic()
                    if events:
                        apply(events)
                        self._wait_for_room()
            return "" if self._protocol.watching else _RELIST
        except Refused as refused:
            self._answered = self._refused = True
            self._absent = self._watched.is_absent(refused.status) and not self._served
            is_unknown_kind = self._absent and refused.status == HTTPStatus.NOT_FOUND
            self._problem = "" if is_unknown_kind else str(refused)
            self._forbidden = refused.status == HTTPStatus.FORBIDDEN
            return _RELIST if self._protocol.rejected(refused.status) else str(refused)
        except (*NO_ANSWER, ProtocolError) as error:
            self._refused = self._forbidden = False
            self._problem = f"{type(error).__name__}: {error}"
            return self._problem
        except Exception:  # the state may have missed events: list again
            _log.exception("%s: unexpected error", self.resource)
            self._protocol.relist()
            return _RELIST

    def _wait_for_room(self) -> None:
        """Wait until there is room for what is read next, ``stop`` or ``relist``. The API server closes the
        watch of a reader that is too slow, and a new list is the quickest way to catch up."""
        while not (self._backlog.has_room(self.kind) or self._relists_begun < self._relists_wanted):
            if self._stopping.wait(_ROOM):
                break

    def _events(self) -> Generator[list[Event]]:
        """The pages of a list where one is due, then the changes as they arrive."""
        while not self._protocol.watching or self._relists_begun < self._relists_wanted:
            if self._relists_begun < self._relists_wanted:
                self._relists_begun = self._relists_wanted
                self._protocol.relist()
            yield from self._page()
        self._relists_done = self._relists_begun
        with closing(self._send(self._protocol.next_request())) as stream:
            self._stream, self._answered, self._refused = stream, True, False
            self._backoff.answered(time.monotonic())
            yield []
            now = time.monotonic()
            if _SETTLING < now - self._closed_at < math.inf:
                self._interruption = Interruption(self._closed_at, now)
            self._settled_at, self._problem = now + min(now - self._closed_at, _SETTLING), ""
            stream.reads.each, events = self._timeouts.silence, list[Event]()
            # From here on ``relist`` ends the read. The condition notices an earlier call.
            while self._relists_begun == self._relists_wanted and self._protocol.watching:
                if not self._protocol.in_line:
                    stream.reads.deadline = math.inf
                elif events or stream.reads.deadline == math.inf:  # the rest of another event
                    stream.reads.deadline = time.monotonic() + self._timeouts.line
                if not (data := stream.read1(_CHUNK)):
                    break
                yield (events := self._protocol.chunk(data))

    def _page(self) -> Iterator[list[Event]]:
        """The next page of the list; for a kind that the cluster does not serve, an empty list."""
        request = self._protocol.next_request()
        if "continue" not in request.query:  # all pages show the cluster at the first one's time
            self._list_began, self._held = time.monotonic(), []
        try:
            answer = self._send(request)
        except Refused as refused:
            said_often = refused.status == HTTPStatus.NOT_FOUND or self._absences + 1 >= _REFUSALS
            if self._watched.is_absent(refused.status) and said_often and not self.is_known:
                self.is_known = True
                yield [Listed(self.kind, frozenset(), absent=True)]
            raise
        with closing(answer) as page:
            self._stream, self._answered, self._served = page, True, True
            page.reads.deadline = time.monotonic() + self._timeouts.whole_page
            body = page.read()
        self._backoff.answered(time.monotonic())
        events, is_whole = self._held + self._protocol.page(body, self._list_began), self._protocol.watching
        self.is_known |= is_whole
        is_due = is_whole or self.kind not in UNKNOWN  # the objects of half a list would deny the others
        self._held = [] if is_due else events
        yield events if is_due else []
