"""PodDisruptionBudgets: the evictions that the eviction API rejects."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TypeAlias

from extender.k8s.admission_objects import PodDisruptionBudget
from extender.k8s.objects import Deleted, Event, Listed, Pod, Upserted
from extender.untrusted.limits import BUDGETS_PER_POD

_Bucket: TypeAlias = tuple[str, str | None, str]
"""A namespace, and a label with its value that all pods of a budget have (None: no such label)."""
Selecting: TypeAlias = list[PodDisruptionBudget] | None
"""The budgets that select a pod; None if uncertain."""
_NEVER_HELD = ("Pending", "Succeeded", "Failed")


class DisruptionBudgets:
    """The budgets by key. Each is indexed by one label of its selector, the one with the fewest budgets.

    ``changes`` counts changes of their selectors.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._budgets: dict[str, PodDisruptionBudget] = {}
        self._bucket_of: dict[str, _Bucket] = {}
        self._buckets: dict[_Bucket, dict[str, PodDisruptionBudget]] = {}

    def apply(self, event: Event) -> None:
        """Apply an event of a PodDisruptionBudget."""
        match event:
            case Upserted(PodDisruptionBudget() as budget):
                self._put(budget)
            case Deleted(_, key):
                self._remove(key)
            case Listed(_, keys):
                for key in self._budgets.keys() - keys:
                    self._remove(key)

    def records(self) -> list[PodDisruptionBudget]:
        return list(self._budgets.values())

    def _put(self, budget: PodDisruptionBudget) -> None:
        known = self._budgets.get(budget.key)
        if known is None or (known.selector, known.problem) != (budget.selector, budget.problem):
            self._remove(budget.key)
            self.changes += 1
            exact = (r for r in budget.selector or () if r.operator == "In" and len(r.values) == 1)
            buckets: list[_Bucket] = [(budget.namespace, r.key, r.values[0]) for r in exact]
            buckets = buckets or [(budget.namespace, None, "")]
            self._bucket_of[budget.key] = min(buckets, key=lambda b: len(self._buckets.get(b, ())))
        self._budgets[budget.key] = budget
        self._buckets.setdefault(self._bucket_of[budget.key], {})[budget.key] = budget

    def _remove(self, key: str) -> None:
        if self._budgets.pop(key, None):
            self.changes += 1
            bucket = self._bucket_of.pop(key)
            del self._buckets[bucket][key]
            if not self._buckets[bucket]:
                del self._buckets[bucket]

    def may_select(self, pod: Pod) -> bool:
        """Whether the eviction of the pod can violate a budget."""
        return self._selecting(pod) != []

    def violations(
        self, pods: Sequence[Pod], selecting: MutableMapping[str, Selecting] | None = None
    ) -> tuple[bool, ...]:
        """For each pod, in this order, whether its eviction after the preceding ones violates a budget.
        ``selecting``: a cache by the key of the pod, for callers that repeat the question immediately.

        Follows the eviction API (kubernetes, ``pkg/registry/core/pod/storage/eviction.go``): no budget
        protects a pod that is Pending or terminating, and no budget with ``frees_unready`` a pod that is not
        ready; a pod with two budgets is never evicted. Every budget is charged, unless its ``disruptedPods``
        already contain the pod. An unreadable budget, or too many that may select the pod, also count as a
        violation.
        """
        charged: dict[str, int] = {}
        found, selecting = [], {} if selecting is None else selecting
        for pod in pods:
            if pod.key not in selecting:
                selecting[pod.key] = self._selecting(pod)
            budgets = selecting[pod.key]
            if pod.deleting or pod.phase in _NEVER_HELD:
                budgets = []
            violated = budgets is None or len(budgets) > 1
            for budget in budgets or ():
                if pod.name in budget.disrupted or (budget.frees_unready and not pod.ready):
                    continue
                charged[budget.key] = charged.get(budget.key, 0) + 1
                violated |= charged[budget.key] > budget.allowed
            found.append(violated)
        return tuple(found)

    def _selecting(self, pod: Pod) -> Selecting:
        """The budgets that select the pod; None if one is unreadable, or if more than ``BUDGETS_PER_POD``
        must be compared."""
        namespace, buckets = pod.namespace, self._buckets
        if not buckets:
            return []
        filed = [buckets.get((namespace, None, ""))]
        filed += [buckets.get((namespace, *label)) for label in pod.labels.items()]
        found = [bucket for bucket in filed if bucket]
        if sum(map(len, found)) > BUDGETS_PER_POD:
            return None
        selecting = [budget for bucket in found for budget in bucket.values() if budget.selects(pod.labels)]
        return None if any(budget.problem for budget in selecting) else selecting
