"""Log formats: lines for people if standard error is a terminal, otherwise one JSON object per line.

No log line contains the content of a pod, only names, namespaces and counts.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from extender.untrusted.limits import LOG_LINES, LOG_SECONDS, shorten
from extender.untrusted.visible import joined, visible

_PACKAGES = ("extender", "packing")
_EVICTIONS = "extender.evictor.actions"
"""Its lines are limited by the setting ``evictions_per_minute``, and each is about another pod."""


class PeopleFormatter(logging.Formatter):
    """Lines such as ``12:03:04 warning  cluster.state: node-1: node is over-committed``."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        line = f"{clock} {record.levelname.lower():<8} {_logger_name(record)}: {record.getMessage()}"
        return joined((line, *_trace(record).splitlines()))


class JsonFormatter(logging.Formatter):
    """One object per line: ``time`` (RFC 3339), ``level``, ``logger``, ``message``, perhaps ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": _logger_name(record),
            "message": record.getMessage(),
        }
        trace = _trace(record)
        return visible(json.dumps(fields | ({"traceback": trace} if trace else {}), ensure_ascii=False))


@dataclass(slots=True)
class _Window:
    """Lines of one kind up to ``end`` (monotonic seconds), and the text of the last that was left out."""

    end: float
    lines: int = 0
    last: str = ""


class _LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes at most ``LOG_LINES`` of one kind in a window, and at its end how many it left out. What the
    level ``debug`` adds is not limited: it is asked for."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._windows: dict[tuple[str, int, str], _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.DEBUG or record.name == _EVICTIONS:
            super().emit(record)
            return
        # The templates of others may differ each time.
        kind = record.name, record.levelno, record.msg if record.name.startswith(_PACKAGES) else ""
        now = time.monotonic()
        window = self._windows.get(kind)
        if window is None or (now >= window.end and window.lines <= LOG_LINES):
            window = self._windows[kind] = _Window(now + LOG_SECONDS)
        window.lines += 1
        if window.lines <= LOG_LINES:
            super().emit(record)
            return
        if window.lines == LOG_LINES + 1:
            timer = threading.Timer(window.end - now, self._end, (kind,))
            timer.daemon = True
            timer.start()
        window.last = shorten(record.getMessage())

    def close(self) -> None:
        """Say what was left out until now."""
        for kind in list(self._windows):
            self._end(kind)
        super().close()

    def _end(self, kind: tuple[str, int, str]) -> None:
        with self.lock or nullcontext():
            window = self._windows.pop(kind, None)
            if window is not None and window.lines > LOG_LINES:
                text = "%d more lines like these were left out within %g s, the last one: %s"
                more = window.lines - LOG_LINES, LOG_SECONDS, window.last
                super().emit(logging.LogRecord(*kind[:2], "", 0, text, more, None))


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send the logs of the whole process, from ``level`` on, to ``stream`` (default: standard error)."""
    stream = stream or sys.stderr
    handler = _LimitedHandler(stream)
    handler.setFormatter(PeopleFormatter() if stream.isatty() else JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def _logger_name(record: logging.LogRecord) -> str:
    return record.name.removeprefix("extender.")


def _trace(record: logging.LogRecord) -> str:
    """The traceback of an exception without its message, which may quote the pod that caused it."""
    error = record.exc_info[1] if record.exc_info else None
    parts: list[str] = []
    while error is not None:
        parts.append("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter\n".join(parts)
