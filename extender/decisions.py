"""The last decisions about each pod, for the debug endpoint: bounded, in memory, read by people only.

Nothing that answers kube-scheduler may look in here: its questions are many, and most are dry runs.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from extender.explain import Explanation
from extender.objects import Pod

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a verb answered: when, in one line, and why."""

    at: datetime
    verb: str
    answer: str
    explanation: Explanation | None = None


class Decisions:
    """The last decision of each verb, for the last ``kept`` pods that kube-scheduler asked about."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._pods: OrderedDict[str, tuple[Pod, dict[str, Decision]]] = OrderedDict()
        self._put_off: deque[tuple[Pod, Callable[[], Decision]]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether any are kept: with none it is not worth explaining."""
        return self._kept > 0

    def put_off(self, pod: Pod, decide: Callable[[], Decision]) -> bool:
        """Keep a decision that is still to be put into words; whether it is the first that waits for that."""
        self._put_off.append((pod, decide))
        return len(self._put_off) == 1

    def catch_up(self) -> None:
        """Put into words what was put off."""
        while self._put_off:
            pod, decide = self._put_off.popleft()
            try:
                self.add(pod, decide())
            except Exception:  # what people read must not harm what kube-scheduler gets
                _log.exception("a decision was not kept")

    def add(self, pod: Pod, decision: Decision) -> None:
        """Keep a decision. One about another pod of the same name (another uid) starts afresh."""
        before, decisions = self._pods.pop(pod.key, (pod, {}))
        if before.uid != pod.uid:
            decisions = {}
        decisions[decision.verb] = decision
        self._pods[pod.key] = pod, decisions
        while len(self._pods) > self._kept:
            self._pods.popitem(last=False)

    def about(self, key: str) -> list[Decision]:
        """Decisions about the pod ``namespace/name``, newest first."""
        self.catch_up()
        _, decisions = self._pods.get(key, (None, {}))
        return sorted(decisions.values(), key=lambda decision: decision.at, reverse=True)

    def pod(self, key: str) -> Pod | None:
        """The pod as it was when it was last asked about."""
        self.catch_up()
        pod, _ = self._pods.get(key, (None, {}))
        return pod
