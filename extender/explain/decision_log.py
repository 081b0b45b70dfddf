"""The last decisions about each pod, for the debug endpoint: bounded, in memory, read by people only.

No answer to kube-scheduler may depend on them: it repeats calls, and many of them are dry runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, thread_time

from extender.background import Failures
from extender.explain.answers import Decision, Explanation
from extender.k8s.objects import Pod
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import CACHE, DECISION
from extender.untrusted.token_bucket import TokenBucket

LONGEST_ANSWER = 4096
"""Characters of an answer about one preemption, in the log and here."""
_SHARE, _BURST = 0.05, 0.5
"""The part of all time that may be spent on explaining why pods fit nowhere, and seconds of CPU after a
pause. People read few explanations, and one costs more than the answer itself."""
_FITTING_SHARE, _FITTING_BURST = 0.002, 0.03
"""The same of pods that fit, of which there are more, and about which people ask less."""


class Decisions:
    """The last decision of each verb, for the last ``kept`` pods that kube-scheduler asked about; for fewer
    where pods are so large that they would take more memory than ``DECISION`` for each."""

    def __init__(
        self,
        kept: int,
        failures: Failures | None = None,
        record: Callable[[Pod, Decision], None] = lambda pod, decision: None,
    ) -> None:
        """``failures`` counts decisions that could not be explained. ``record`` is called with each."""
        self._kept, self._record = kept, record
        self._size = max(CACHE, kept * DECISION)
        self._pods: BoundedMap[str, tuple[Pod, dict[str, Decision]]] = BoundedMap(kept, self._size)
        self._failures = failures or Failures()
        self._deferred: deque[tuple[Pod, Decision, Callable[[], Explanation] | None, TokenBucket]] = deque()
        self._budget = TokenBucket(_SHARE, _BURST)
        self._fitting_budget = TokenBucket(_FITTING_SHARE, _FITTING_BURST)

    @property
    def wanted(self) -> bool:
        """Whether any are kept. Otherwise there is no need to explain them."""
        return self._kept > 0

    def defer(
        self,
        pod: Pod,
        decision: Decision,
        explain: Callable[[], Explanation] | None = None,
        *,
        fits: bool = True,
    ) -> bool:
        """Keep a decision that ``flush`` explains; returns whether it is the first that waits for that.

        It must be flushed before the state changes: an explanation shows what is free at that moment. There
        is not time for all explanations, and less for those of pods that fit.
        """
        budget = self._fitting_budget if fits else self._budget
        if not self._deferred and (explain is None or not budget.allows(0.0, monotonic())):
            self.add(pod, decision)  # nothing to wait for
            return False
        self._deferred.append((pod, decision, explain, budget))
        return len(self._deferred) == 1

    def flush(self) -> None:
        while self._deferred:
            pod, decision, explain, budget = self._deferred.popleft()
            if explain is None or not budget.allows(0.0, monotonic()):
                self.add(pod, decision)
                continue
            started = thread_time()  # CPU: a busy machine must not count as explanations
            with self._failures.caught("explain"):
                self.add(pod, replace(decision, explanation=explain()))
            budget.take(thread_time() - started, monotonic())

    def add(self, pod: Pod, decision: Decision) -> None:
        """Keep a decision. One about another pod of the same name (another UID) replaces all before."""
        before, decisions = self._pods.get(pod.key) or (pod, {})
        if before.uid != pod.uid:
            decisions = {}
        decisions[decision.verb] = decision
        size = pod.size + sum(map(_size, decisions.values()))
        self._pods.put(pod.key, (pod, decisions), min(size, self._size // 16))  # at least 16 are kept
        self._record(pod, decision)

    def about(self, key: str) -> list[Decision]:
        """Decisions about the pod ``namespace/name``, newest first."""
        self.flush()
        _, decisions = self._pods.get(key) or (None, {})
        return sorted(decisions.values(), key=lambda decision: decision.at, reverse=True)

    def latest(self, before: float = float("inf")) -> list[tuple[str, Decision]]:
        """All decisions that are kept ``before`` a moment with the keys of their pods, newest first."""
        self.flush()
        found = [(pod.key, decision) for pod, kept in self._pods.values() for decision in kept.values()]
        found = [pair for pair in found if pair[1].at.timestamp() < before]
        return sorted(found, key=lambda pair: pair[1].at, reverse=True)

    def pod(self, key: str) -> Pod | None:
        """The pod as it was when it was last asked about."""
        self.flush()
        pod, _ = self._pods.get(key) or (None, {})
        return pod


def _size(decision: Decision) -> int:
    """Characters of the texts in it that come from the cluster, and 256 for all else."""
    size, explanation = 256 + len(decision.answer), decision.explanation
    if explanation is not None:
        asks, refusals = explanation.asks.items(), explanation.refusals
        size += len(explanation.error) + sum(len(what) + len(str(amount)) for what, amount in asks)
        size += sum(len(device) for option in explanation.best for device in option.devices)
        size += sum(len(need.what) + len(need.text) for refusal in refusals for need in refusal.lacks)
    return size
