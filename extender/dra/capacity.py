"""How much of a device's capacities a request takes.

A device of which several claims may have parts says by policies in which portions. Read from
k8s.io/dynamic-resource-allocation v0.36.3, ``structured/internal/incubating/consumable_capacity.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from extender.k8s.resource_api.objects import CapacityRequestPolicy
from extender.k8s.resource_api.values import Amount


def taken(
    asked: Mapping[str, Amount], capacity: Mapping[str, Amount], policies: Mapping[str, CapacityRequestPolicy]
) -> dict[str, Fraction] | None:
    """By the names as the device writes them; None where the device could not give it if nobody had any."""
    if not asked.keys() <= capacity.keys():
        return None
    found: dict[str, Fraction] = {}
    for name, whole in capacity.items():
        given = _given(asked.get(name), whole, policies.get(name, CapacityRequestPolicy()))
        if given is None or given > whole.number:
            return None
        found[name] = given
    return found


def _given(asked: Amount | None, whole: Amount, policy: CapacityRequestPolicy) -> Fraction | None:
    if asked is not None:
        return policy.portion(asked.number)
    return whole.number if policy.default is None else policy.default
