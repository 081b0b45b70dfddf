"""A small set of victims by trial, where only a yes or no is known: whether the pod fits without them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from extender.verbs.eviction.costs import total
from packing.victims.search import GangCost, Victim, VictimSet

_Unit = tuple[int, ...]
"""Victims that leave together."""


def cheapest_by_trial(
    victims: Sequence[Victim],
    gangs: Sequence[GangCost],
    required: Collection[int],
    fits: Callable[[tuple[int, ...]], bool],
) -> VictimSet | None:
    """A set without which the pod fits: all that may leave, without those that can stay, the dearest first.
    So no part of it can stay, but there may be a cheaper set. Gangs leave whole only if it must be."""
    for whole in (False, True):
        units = _units(victims, gangs, required, whole=whole)
        if units is None or not fits(tuple(sorted(chain(*units)))):
            continue
        fixed = [unit for unit in units if set(unit) & set(required)]
        free = [unit for unit in units if unit not in fixed]
        free.sort(key=lambda unit: _cost(victims, gangs, unit), reverse=True)
        leaving = fixed + _indispensable(free, fixed, lambda rest: fits(tuple(sorted(chain(*rest)))))
        gone = tuple(sorted(chain(*leaving)))
        left_whole = tuple(
            sorted({victims[unit[0]].gang for unit in leaving if _is_whole(gangs, victims, unit)})
        )
        cost = total((_cost(victims, gangs, unit) for unit in leaving), _nothing(victims))
        return VictimSet(gone, left_whole, cost, exact=False)
    return None


def _indispensable(units: list[_Unit], gone: list[_Unit], fits: Callable[[list[_Unit]], bool]) -> list[_Unit]:
    """Those of the units that must leave beside the ``gone`` ones; the first ones stay if they can. Many are
    tried at once, because most can stay."""
    if not units or fits(gone):
        return []
    if len(units) == 1:
        return units
    half = len(units) // 2
    first = _indispensable(units[:half], gone + units[half:], fits)
    return first + _indispensable(units[half:], gone + first, fits)


def _units(
    victims: Sequence[Victim], gangs: Sequence[GangCost], required: Collection[int], *, whole: bool
) -> list[_Unit] | None:
    """All that may leave: single pods, and gangs down to their minimum or (``whole``) as a whole. None if a
    required victim is not among them."""
    units: list[_Unit] = [(number,) for number, one in enumerate(victims) if one.gang < 0]
    for number, gang in enumerate(gangs):
        members = [index for index, one in enumerate(victims) if one.gang == number]
        if whole and gang.whole is not None and len(members) > gang.spare:
            units.append(tuple(members))
            continue
        members.sort(key=lambda index: (index not in required, victims[index].cost))
        units += [(index,) for index in members[: gang.spare]]
    return units if set(required) <= set(chain(*units)) else None


def _is_whole(gangs: Sequence[GangCost], victims: Sequence[Victim], unit: _Unit) -> bool:
    gang = victims[unit[0]].gang
    return gang >= 0 and len(unit) > gangs[gang].spare


def _cost(victims: Sequence[Victim], gangs: Sequence[GangCost], unit: _Unit) -> tuple[float, ...]:
    if _is_whole(gangs, victims, unit):
        return gangs[victims[unit[0]].gang].whole or ()
    return victims[unit[0]].cost


def _nothing(victims: Sequence[Victim]) -> tuple[float, ...]:
    return (0.0,) * len(victims[0].cost) if victims else ()
