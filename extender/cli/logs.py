"""Log formats: lines for people if standard error is a terminal, otherwise one JSON object per line.

No log line contains the content of a pod, only names, namespaces and counts.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

from extender.untrusted.visible import joined, visible

_PACKAGES = ("extender", "packing")


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


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send the logs of the whole process, from ``level`` on, to ``stream`` (default: standard error)."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
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
