"""Options that cannot be used, and the types of those that are numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable


class UsageError(ValueError):
    """Options or files that cannot be used, or not together."""


def number(above: float, most: float, expected: str) -> Callable[[str], float]:
    """The type of an option: a number in this range. It raises ``ArgumentTypeError``."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = above
        if not above < found <= most:
            raise argparse.ArgumentTypeError(f"invalid number {text!r}; expected {expected}")
        return found

    return read


def whole_number(least: int, most: int, expected: str) -> Callable[[str], int]:
    """Likewise, with both ends."""

    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"invalid number {text!r}; expected {expected}")
        return int(text)

    return read
