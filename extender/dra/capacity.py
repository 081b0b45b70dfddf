"""How much of each capacity of a device a request consumes.

A device that several claims can share has a request policy for each capacity. Read from
k8s.io/dynamic-resource-allocation v0.36.3, ``structured/internal/incubating/consumable_capacity.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from extender.k8s.resource_api.fields import Amount
from extender.k8s.resource_api.objects import CapacityRequestPolicy


def consumed_capacity(
    requested: Mapping[str, Amount],
    capacity: Mapping[str, Amount],
    policies: Mapping[str, CapacityRequestPolicy],
) -> dict[str, Fraction] | None:
    """The amounts by the names that the device writes, or None if even the unused device is too small."""
    if not requested.keys() <= capacity.keys():
        return None
    consumed: dict[str, Fraction] = {}
    for name, total in capacity.items():
        amount = _consumed(requested.get(name), total, policies.get(name, CapacityRequestPolicy()))
        if amount is None or amount > total.number:
            return None
        consumed[name] = amount
    return consumed


def _consumed(requested: Amount | None, total: Amount, policy: CapacityRequestPolicy) -> Fraction | None:
    if requested is not None:
        return policy.round_up(requested.number)
    return total.number if policy.default is None else policy.default
