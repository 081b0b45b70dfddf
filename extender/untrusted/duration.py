"""Durations in the notation of Go and Kubernetes (``1h30m``), in seconds."""

from __future__ import annotations

import re
from functools import lru_cache

from extender.untrusted.limits import quoted

_LONGEST = 64  # characters
_MOST_SECONDS = 2**63 / 1e9  # Go's time.Duration counts nanoseconds in 64 bits
_PART = r"(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"([-+]?)(0|(?:{_PART})+)", re.ASCII)
_PARTS = re.compile(r"([\d.]+)([a-zµμ]+)", re.ASCII)
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class DurationError(ValueError):
    """A malformed or too large duration. The text quotes it."""


@lru_cache(maxsize=1024)
def seconds(text: str) -> float:
    """Seconds of a duration; negative durations are allowed. Raises ``DurationError``.

    Grammar and range: ``ParseDuration`` of Go's package ``time``.
    """
    match = _DURATION.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise DurationError(f"{quoted(text)} is not a duration such as 1h30m")
    total = sum(float(number) * _UNITS[unit] for number, unit in _PARTS.findall(match[2]))
    if total >= _MOST_SECONDS:
        raise DurationError(f"duration {quoted(text)} is too large")
    return -total if match[1] == "-" else total


def as_seconds(text: str) -> float:
    """Seconds of a number (``90``) or of a duration (``1h30m``). Raises ``DurationError``."""
    try:
        return float(text)
    except ValueError:
        return seconds(text)
