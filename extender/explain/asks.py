"""What a pod asks for, in units of people: for ``explain``, ``top`` and the page."""

from __future__ import annotations

from collections.abc import Mapping

_SMALLEST_GIB = 103  # a tenth, in MiB


def amounts(asks: Mapping[str, int | str]) -> str:
    """What a pod asks for, in units of people."""
    return ", ".join(_amount(name, amount) for name, amount in asks.items() if amount)


def _amount(name: str, amount: int | str) -> str:
    of, _, what = name.rpartition(": ")
    each = f"{of} " if of else ""
    if what == "cpu (milli)":
        return f"{_number(int(amount) / 1000)} CPU"
    if what == "memory (MiB)":
        small = int(amount) < _SMALLEST_GIB
        size = f"{amount} MiB" if small else f"{_number(int(amount) / 1024)} GiB"
        return f"{each}{size} of memory"
    if what in ("compute (milli)", "memory (milli)"):
        return f"{each}{int(amount) / 10:g} % of its {what.split()[0]}"
    if (what, amount) == ("GPUs", 1):
        return "1 GPU"
    if of:
        return f"{each}{amount} {what}"
    is_amount = isinstance(amount, int) or amount[:1].isdigit()
    return f"{amount} {name}" if is_amount else f"{name} {amount}"


def _number(number: float) -> str:
    return f"{number:,.2f}".rstrip("0").rstrip(".")
