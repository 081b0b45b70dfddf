"""How current the events of one watch are, and when the watch was interrupted."""

from __future__ import annotations

import math
import select
import time
from contextlib import suppress
from enum import Enum, auto

from urllib3 import HTTPResponse

from extender.source.interface import Interruption

_SETTLING = 0.25  # seconds at most until a reopened watch has delivered missed events
_HANGS_UP = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere poll tells of a closed connection, too late
_FRESH = 0.05  # seconds for which "no answer" is still valid


class Freshness(Enum):
    """How current the delivered events are, as far as we can tell without a request."""

    CURRENT = auto()  # the watch has been open long enough to deliver missed events
    BEHIND = auto()  # the watch is not open, and the server answers: there may be newer events
    UNREACHABLE = auto()  # the server did not answer a moment ago: no client can get newer events
    UNKNOWN = auto()  # the watch broke, and we do not know yet whether the server answers


class WatchConnection:
    """The connection of one reflector. Its thread writes, any thread reads. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.received_at = -math.inf  # the last bytes
        self.answered = False  # whether the current attempt, or else the last one, got an answer
        self._refused = False  # whether the last answer was a refusal: then the server is reachable
        self._closed_at = -math.inf
        self._settled_at: float | None = None  # when an open watch has delivered missed events
        self._attempt_ended_at = -math.inf
        self._unanswered_at = -math.inf  # the end of the last attempt without any answer
        self._interruption: Interruption | None = None
        self._stream: HTTPResponse | None = None

    def refused(self) -> None:
        """The server answered with an error status."""
        self.answered = self._refused = True

    def failed(self) -> None:
        """There was no answer, or it broke off."""
        self._refused = False

    def opening(self, stream: HTTPResponse) -> None:
        """The server accepted the watch."""
        self.reading(stream)
        self.answered, self._refused = True, False

    def reading(self, answer: HTTPResponse) -> None:
        """``shut_down`` ends this answer from now on."""
        self._stream = answer

    def opened(self) -> None:
        """Events of the stream are delivered from now on."""
        opened_at = time.monotonic()
        if _SETTLING < opened_at - self._closed_at < math.inf:
            self._interruption = Interruption(self._closed_at, opened_at)
        self._settled_at = opened_at + min(opened_at - self._closed_at, _SETTLING)

    def attempt_ended(self) -> float:
        """The attempt is over. Returns when."""
        now = self._attempt_ended_at = time.monotonic()
        if self._settled_at is not None:
            self._closed_at, self._settled_at = now, None
        if not self.answered:
            self._unanswered_at = now
        return now

    def freshness(self) -> Freshness:
        """How current the delivered events are now."""
        now, settled_at = time.monotonic(), self._settled_at
        if settled_at is not None and self._is_closed_by_server():
            return Freshness.UNKNOWN
        if settled_at is not None:
            return Freshness.CURRENT if now >= settled_at else Freshness.BEHIND
        if self.answered or self._refused:
            return Freshness.BEHIND
        return Freshness.UNREACHABLE if now - self._unanswered_at < _FRESH else Freshness.UNKNOWN

    @property
    def is_open(self) -> bool:
        """Whether the watch is open, as far as the reflector's thread has noticed."""
        return self._settled_at is not None

    def closed_for(self, now: float) -> float:
        """Seconds since the watch was last open; 0 while it is, and before it was for the first time."""
        if self._settled_at is not None or self._closed_at == -math.inf:
            return 0.0
        return max(now - self._closed_at, 0.0)

    def may_retry(self) -> bool:
        """Whether the watch is not open, and the last attempt did not end just now."""
        return not self.is_open and time.monotonic() - self._attempt_ended_at >= _FRESH

    def interruption(self) -> Interruption | None:
        """The last interruption. A watch that ends without an error and is reopened at once has none."""
        if self._settled_at is None and self._closed_at > -math.inf:
            return Interruption(self._closed_at, None)
        return self._interruption

    def shut_down(self) -> None:
        """End a read of the stream in the reflector's thread."""
        if (stream := self._stream) is not None:
            with suppress(OSError, ValueError, RuntimeError):  # it may end by itself at this moment
                stream.shutdown()

    def _is_closed_by_server(self) -> bool:
        """Whether the server has closed the connection, which the reflector's thread may not have noticed."""
        stream, poll = self._stream, select.poll()
        try:
            if stream is not None:
                poll.register(stream.fileno(), _HANGS_UP)
        except (AttributeError, OSError, ValueError):  # the thread closes it at this moment
            return True
        return bool(poll.poll(0))
