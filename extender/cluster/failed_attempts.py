"""Pods whose last attempt ended with an error, and the nominations that this has cleared.

When an attempt fails, as all do while an extender does not answer, kube-scheduler clears the pod's nomination
(``handleSchedulingFailure`` in its schedule_one.go), also if victims have left for the pod already. Another
pod of the same priority could take that room before the pod is tried again, and the pod would need other
victims. So the nomination counts a while longer. A Stowage that has just started has not seen it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from extender.k8s.objects import Pod

FAILED = "SchedulerError"
"""Reason of the condition PodScheduled after an attempt that ended with an error."""
TRIED_AGAIN = 12.0
"""Seconds in which kube-scheduler has tried such a pod again: ``podMaxBackoffSeconds`` is 10 by default."""


class ClearedNominations:
    """By the pod's UID, the node of a nomination that counts although an error has cleared it."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self._cleared: dict[str, tuple[str, float]] = {}

    def note(self, known: Pod | None, pod: Pod) -> None:
        """The watch shows this pod, and has shown it as ``known`` before."""
        before = self._cleared.pop(pod.uid, None)
        if pod.unscheduled != FAILED or pod.node_name or pod.nominated_node or pod.deleting:
            return
        if known is not None and known.uid == pod.uid and known.nominated_node:
            before = known.nominated_node, self.clock()
        if before is not None:
            self._cleared[pod.uid] = before

    def node(self, uid: str) -> str:
        """Where the pod still counts as nominated; "" for nowhere."""
        return self._cleared[uid][0] if uid in self._cleared else ""

    def forget(self, uid: str) -> None:
        self._cleared.pop(uid, None)

    def expire(self) -> list[str]:
        """Forget those that no attempt has followed in time. Returns the UIDs of their pods."""
        now = self.clock()
        over = [uid for uid, (_, since) in self._cleared.items() if now - since >= TRIED_AGAIN]
        for uid in over:
            del self._cleared[uid]
        return over
