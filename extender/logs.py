"""Log formats and levels: human-readable lines, or one JSON object per line.

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
from typing import Literal, TextIO, TypeAlias

from extender.untrusted.limits import KEY, LOG_LINES, LOG_SECONDS, shorten
from extender.untrusted.visible import joined, visible

_PACKAGES = ("extender", "packing")
DECISION = 15
"""The level of a line for each decision, between ``debug`` and ``info``."""
logging.addLevelName(DECISION, "DECISION")
Format: TypeAlias = Literal["text", "json"]
_EVICTIONS = "extender.evictor.actions"
"""Its lines are limited by the setting ``evictions_per_minute``, and each is about a different pod."""


class PeopleFormatter(logging.Formatter):
    """Lines such as ``12:03:04 decision server.engine: 3 of 8 nodes fit verb=filter pod=team/a ms=0.42``."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        line = f"{clock} {record.levelname.lower():<8} {_logger_name(record)}: {record.getMessage()}"
        for key, value in _fields(record).items():
            text = str(value)
            is_plain = text and not set(text) & set(' "=')
            line += f" {key}={text if is_plain else json.dumps(text, ensure_ascii=False)}"
        return joined((line, *_trace(record).splitlines()))


class JsonFormatter(logging.Formatter):
    """One object per line: ``ts`` (RFC 3339), ``level``, ``logger``, ``msg``; for a decision also ``verb``,
    ``pod``, ``node``, ``result`` and ``ms``; optionally ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": _logger_name(record),
            "msg": record.getMessage(),
            **_fields(record),
        }
        trace = _trace(record)
        return visible(json.dumps(fields | ({"traceback": trace} if trace else {}), ensure_ascii=False))


def log_decision(
    log: logging.Logger,
    text: str,
    verb: str,
    pod: str,
    *,
    node: str = "",
    result: str,
    seconds: float,
    level: int = DECISION,
) -> None:
    """Log an answer for the pod ``namespace/name``; ``seconds`` is its duration."""
    if log.isEnabledFor(level):
        about = {"verb": verb, "pod": shorten(pod, KEY), "node": shorten(node, KEY), "result": result}
        fields = {key: value for key, value in about.items() if value}
        log.log(level, "%s", text, extra={"fields": fields | {"ms": round(seconds * 1000, 3)}})


@dataclass(slots=True)
class _Window:
    """The count of lines of one kind up to ``end`` (monotonic seconds), and the text of the last suppressed
    one."""

    end: float
    lines: int = 0
    last: str = ""


class _LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes at most ``LOG_LINES`` lines of one kind per window, and at its end the number of suppressed
    lines. Levels below ``info`` are not limited, because they are enabled on purpose."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._windows: dict[tuple[str, int, str], _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO or record.name == _EVICTIONS:
            super().emit(record)
            return
        # Message templates of other packages may differ each time.
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
        """Report the lines suppressed so far."""
        for kind in list(self._windows):
            self._end(kind)
        super().close()

    def _end(self, kind: tuple[str, int, str]) -> None:
        with self.lock or nullcontext():
            window = self._windows.pop(kind, None)
            if window is not None and window.lines > LOG_LINES:
                text = "%d similar lines were suppressed within %g s, the last one: %s"
                more = window.lines - LOG_LINES, LOG_SECONDS, window.last
                super().emit(logging.LogRecord(*kind[:2], "", 0, text, more, None))


def configure(level: str, stream: TextIO | None = None, form: Format | None = None) -> None:
    """Send the logs of the whole process, from ``level`` on, to ``stream`` (default: standard error), as text
    if that is a terminal, else as JSON, unless ``form`` is given."""
    stream = stream or sys.stderr
    handler = _LimitedHandler(stream)
    text = stream.isatty() if form is None else form == "text"
    handler.setFormatter(PeopleFormatter() if text else JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    set_level(level)


def set_level(level: str) -> None:
    """Log from this level on, a value of the setting ``log_level``, in the running process."""
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def level_of(verbosity: int) -> str:
    """The level for ``-v``, with klog's numbers: 2 for each decision, 4 for debugging."""
    return "info" if verbosity < 2 else "decision" if verbosity < 4 else "debug"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, "fields", {})


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
