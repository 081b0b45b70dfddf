"""After an interruption, pods of higher priority are placed first.

While its extender fails, every attempt of kube-scheduler fails. It then clears the nomination of the pod
(``failed_attempts``) and puts it into its backoff queue, each pod for a time of its own. So a pod of low
priority may be tried first and get the room that victims have just left. Until the pods of higher priority
have been tried again, such a pod is refused with an error, which puts it back into the backoff queue.
"""

from __future__ import annotations

import math

from extender.cluster.failed_attempts import TRIED_AGAIN
from extender.cluster.pod_table import PodTable
from extender.k8s.objects import Pod


class RetryOrder:
    """Who waits for whom. An interruption ends with the first request, and whenever one could be answered
    with nothing but an error."""

    def __init__(self) -> None:
        self._ends = math.inf
        self._tried: set[str] = set()

    def interrupted(self, now: float) -> None:
        """Keep the order from ``now`` on (monotonic seconds), for ``TRIED_AGAIN`` seconds."""
        self._ends = now + TRIED_AGAIN
        self._tried.clear()

    def must_wait(self, pods: PodTable, pod: Pod, now: float) -> bool:
        """Whether a pod of higher priority failed in the interruption and has not been tried since. Otherwise
        this pod counts as tried."""
        if self._ends == math.inf:
            self.interrupted(now)
        if now >= self._ends:
            return False
        if any(self._goes_first(pods[key], pod) for key in pods.failed):
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
