"""Taints and tolerations, of nodes and of devices: as ``ToleratesTaint`` of k8s.io/api ``core/v1`` and of
k8s.io/dynamic-resource-allocation ``resourceclaim`` (v0.36.3) have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taint:
    """What keeps those off a node or a device that do not put up with it."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """Taints that somebody puts up with: an empty key stands for every key, an empty effect for every one."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether this is such a taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


def tolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether each of the taints that keep anything off is covered; those with other effects are hints."""
    return all(
        any(one.covers(taint) for one in tolerations)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )
