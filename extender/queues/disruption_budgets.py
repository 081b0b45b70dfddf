"""PodDisruptionBudgets: which evictions violate one."""

from __future__ import annotations

from collections.abc import Sequence

from extender.k8s.objects import Pod


class DisruptionBudgets:
    """The PodDisruptionBudgets of the cluster. Implemented by the room ``queues``; the state keeps it."""

    def violations(self, pods: Sequence[Pod]) -> tuple[bool, ...]:
        """For each pod, whether its eviction violates a budget once those before it are evicted."""
        return (False,) * len(pods)
