"""The order in which kube-scheduler places pods after an interruption."""

from __future__ import annotations

import math
from collections.abc import Iterable

from extender.cluster.reservations import RETRIED_WITHIN
from extender.k8s.objects import Pod


class RetryOrder:
    """The order after an interruption: pods of higher priority are placed first. An interruption ends with
    the first request, and with each request that could only be answered with an error.

    While its extender fails, every attempt of kube-scheduler fails. It then clears the nomination of the pod
    and puts it into its backoff queue, each pod for a different time. So a pod of low priority may be retried
    first and take the room that victims have just freed. Until the pods of higher priority have been retried,
    such a pod is rejected with an error, which puts it back into the backoff queue.
    """

    def __init__(self) -> None:
        self._ends = math.inf
        self._tried: set[str] = set()

    def interrupted(self, now: float) -> None:
        """Enforce the order from ``now`` (monotonic seconds) for ``RETRIED_WITHIN`` seconds."""
        self._ends = now + RETRIED_WITHIN
        self._tried.clear()

    def must_wait(self, failed: Iterable[Pod], pod: Pod, now: float) -> bool:
        """Whether a pod of higher priority whose last attempt ``failed`` has not been retried since.
        Otherwise this pod counts as retried."""
        if self._ends == math.inf:
            self.interrupted(now)
        if now >= self._ends:
            self._tried.clear()
            return False
        if any(self._goes_first(other, pod) for other in failed):
            return True
        self._tried.add(pod.uid)
        return False

    def _goes_first(self, other: Pod, pod: Pod) -> bool:
        return (
            other.priority > pod.priority
            and other.scheduler_name == pod.scheduler_name
            and not other.deleting
            and other.uid not in self._tried
        )
