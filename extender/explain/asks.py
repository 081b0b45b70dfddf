"""What a pod asks for, in units of people: for ``explain``, ``top`` and the page."""

from __future__ import annotations

from collections.abc import Mapping

from extender.untrusted.visible import many

_EACH = "of each: "
_SMALLEST_GIB = 103  # a tenth, in MiB


def amounts(asks: Mapping[str, int | str]) -> str:
    """What a pod asks for, in units of people."""
    parts = [_amount(name, amount) for name, amount in asks.items() if amount and name.startswith(_EACH)]
    texts = [_amount(name, amount) for name, amount in asks.items() if amount and not name.startswith(_EACH)]
    if parts and "GPUs" in asks:
        gpus = many(int(asks["GPUs"]), "GPU")
        of = " and ".join(parts)
        texts[texts.index(gpus)] = f"{of} of {gpus}" if asks["GPUs"] == 1 else f"{of} of each of {gpus}"
    return ", ".join(texts)


def _amount(name: str, amount: int | str) -> str:
    what = name.removeprefix(_EACH)
    if what == "cpu (milli)":
        return f"{_number(int(amount) / 1000)} CPU{'' if int(amount) <= 1000 else 's'}"
    if what == "memory (MiB)":
        small = int(amount) < _SMALLEST_GIB
        size = f"{amount} MiB" if small else f"{_number(int(amount) / 1024)} GiB"
        return f"{size} of {'the ' * (what != name)}memory"
    if what in ("compute (milli)", "memory (milli)"):
        return f"{int(amount) / 10:g} % of the {what.split()[0]}"
    if what == "GPUs":
        return many(int(amount), "GPU")
    is_amount = isinstance(amount, int) or amount[:1].isdigit()
    return f"{amount} {what}" if is_amount else f"{what} {amount}"


def _number(number: float) -> str:
    return f"{number:,.2f}".rstrip("0").rstrip(".")
