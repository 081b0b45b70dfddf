"""The last decisions about each pod, for the debug endpoint: bounded, in memory, read by people only.

Nothing that answers kube-scheduler may look in here: its questions are many, and most are dry runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from extender.cluster.guarded_policy import Failures
from extender.explain.pod import Explanation
from extender.k8s.objects import Pod
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import CACHE, DECISION


@dataclass(frozen=True, slots=True)
class Decision:
    """What a verb answered: when, in one line, and why."""

    at: datetime
    verb: str
    answer: str
    explanation: Explanation | None = None


class Decisions:
    """The last decision of each verb, for the last ``kept`` pods that kube-scheduler asked about; for fewer
    where they are so large that they would take more memory than ``DECISION`` allows for each."""

    def __init__(self, kept: int, failures: Failures | None = None) -> None:
        """``failures`` counts decisions that could not be put into words."""
        self._kept = kept
        self._size = max(CACHE, kept * DECISION)
        self._pods: BoundedMap[str, tuple[Pod, dict[str, Decision]]] = BoundedMap(kept, self._size)
        self._failures = failures or Failures()
        self._put_off: deque[tuple[Pod, Callable[[], Decision]]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether any are kept: with none it is not worth explaining."""
        return self._kept > 0

    def defer(self, pod: Pod, decide: Callable[[], Decision]) -> bool:
        """Keep a decision that is still to be put into words; whether it is the first that waits for that."""
        self._put_off.append((pod, decide))
        return len(self._put_off) == 1

    def flush(self) -> None:
        """Put into words what was put off."""
        while self._put_off:
            pod, decide = self._put_off.popleft()
            try:
                self.add(pod, decide())
            except Exception:  # what people read must not harm what kube-scheduler gets
                self._failures.note("explain")

    def add(self, pod: Pod, decision: Decision) -> None:
        """Keep a decision. One about another pod of the same name (another uid) starts afresh."""
        before, decisions = self._pods.get(pod.key) or (pod, {})
        if before.uid != pod.uid:
            decisions = {}
        decisions[decision.verb] = decision
        size = pod.size + sum(map(_size, decisions.values()))
        self._pods.put(pod.key, (pod, decisions), min(size, self._size // 16))  # at least 16 are kept

    def about(self, key: str) -> list[Decision]:
        """Decisions about the pod ``namespace/name``, newest first."""
        self.flush()
        _, decisions = self._pods.get(key) or (None, {})
        return sorted(decisions.values(), key=lambda decision: decision.at, reverse=True)

    def pod(self, key: str) -> Pod | None:
        """The pod as it was when it was last asked about."""
        self.flush()
        pod, _ = self._pods.get(key) or (None, {})
        return pod


def _size(decision: Decision) -> int:
    """Characters of what is written by others in it, and some for the rest."""
    size, told = 256 + len(decision.answer), decision.explanation
    if told is not None:
        size += len(told.error) + sum(len(what) + len(str(much)) for what, much in told.asks.items())
        size += sum(len(device) for option in told.best for device in option.devices)
        size += sum(len(need.what) for refusal in told.refusals for need in refusal.lacks)
    return size
