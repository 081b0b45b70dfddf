"""Gangs: pods that are useless without each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extender.k8s.objects import Pod


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang: its key (unique in the cluster) and how many of its members must run."""

    key: str
    minimum: int


class GangTable:
    """The gangs of all known pods. Implemented by the room ``queues``; the cluster's state keeps it."""

    def gang_of(self, pod: Pod) -> Gang | None:
        """The gang of a pod, None for a pod of its own."""
        return None

    def members(self, key: str) -> Sequence[Pod]:
        """The known members of a gang that have not ended, waiting ones included."""
        return ()
