"""Durations as pods write them: in Go's notation, or as a number of seconds."""

from __future__ import annotations

import re

_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 64


def seconds_of_duration(text: str) -> float | None:
    """Seconds of a duration ("1h30m", "1.5h", "300ms") or of a plain number ("90"); None for anything else,
    also for negative durations. Notation: ``ParseDuration`` of Go's package time."""
    text = text.strip() if len(text) <= _LONGEST else ""
    if _SECONDS.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
