"""Logs: lines for people where standard error is a terminal, one JSON object per line otherwise.

Nothing here or in a caller logs the content of a pod: names, namespaces and counts only.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

_OURS = ("extender", "packing")


class PeopleFormatter(logging.Formatter):
    """``12:03:04 warning  state: 3 nodes hold more than they have``."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        line = f"{clock} {record.levelname.lower():<8} {_room(record)}: {record.getMessage()}"
        trace = _trace(record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """One object per line: ``time`` (RFC 3339), ``level``, ``logger``, ``message``, perhaps ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": _room(record),
            "message": record.getMessage(),
        }
        trace = _trace(record)
        return json.dumps(fields | ({"traceback": trace} if trace else {}), ensure_ascii=False)


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send the logs of the whole process to ``stream`` (standard error), at ``level`` and above."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PeopleFormatter() if stream.isatty() else JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for ours in _OURS:
        logging.getLogger(ours).setLevel(level.upper())


def _room(record: logging.LogRecord) -> str:
    return record.name.removeprefix("extender.")


def _trace(record: logging.LogRecord) -> str:
    """Where an exception came from, without its text: the text may quote the pod that caused it."""
    error = record.exc_info[1] if record.exc_info else None
    parts: list[str] = []
    while error is not None:
        parts.append("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nafter\n".join(parts)
