"""How much of a device's capacities a request takes.

A device of which several claims may have parts says by policies in which portions. Read from
k8s.io/dynamic-resource-allocation v0.36.3, ``structured/internal/incubating/consumable_capacity.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from extender.dra.values import Amount


@dataclass(frozen=True, slots=True)
class Policy:
    """In which portions a capacity is given out: one of ``values`` (ascending), or from ``least`` to ``most``
    in whole ``step``s. ``default`` goes to a request that does not say; without it that takes everything."""

    default: Fraction | None = None
    values: tuple[Fraction, ...] = ()
    least: Fraction | None = None
    most: Fraction | None = None
    step: Fraction | None = None

    def portion(self, asked: Fraction) -> Fraction | None:
        """What is given where so much is asked for, None where there is no such portion."""
        if self.values:
            return next((value for value in self.values if asked <= value), None)
        if self.least is None:
            return asked
        given = max(asked, self.least)
        if self.step and asked >= self.least:
            step, first = ceil(self.step), ceil(self.least)
            given = Fraction(first + -((first - ceil(asked)) // step) * step)
        return given if self.most is None or given <= self.most else None


def taken(
    asked: Mapping[str, Amount], capacity: Mapping[str, Amount], policies: Mapping[str, Policy]
) -> dict[str, Fraction] | None:
    """By the names as the device writes them; None where the device could not give it if nobody had any."""
    if not asked.keys() <= capacity.keys():
        return None
    found: dict[str, Fraction] = {}
    for name, whole in capacity.items():
        given = _given(asked.get(name), whole, policies.get(name, Policy()))
        if given is None or given > whole.number:
            return None
        found[name] = given
    return found


def _given(asked: Amount | None, whole: Amount, policy: Policy) -> Fraction | None:
    if asked is not None:
        return policy.portion(asked.number)
    return whole.number if policy.default is None else policy.default
