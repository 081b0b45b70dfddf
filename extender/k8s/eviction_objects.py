"""The objects that control evictions of pods: PriorityClass and PodDisruptionBudget."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from msgspec import Struct

from extender.k8s.affinity import LabelSelectorManifest, NodeSelectorRequirement
from extender.k8s.manifest import Int, Labels, Manifest, Metadata, Named, Namespaced
from extender.untrusted.limits import DISRUPTED_PODS, KEY, quoted

QUEUE_LABEL = "stowage.dev/queue"
"""A label or annotation of a pod or PriorityClass: the name of a queue."""
_TOLERATION = "preemption-toleration.scheduling.x-k8s.io/"
MINIMUM_PREEMPTABLE = f"{_TOLERATION}minimum-preemptable-priority"
TOLERATION_SECONDS = f"{_TOLERATION}toleration-seconds"
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
ABOVE_ALL = 2**31
"""Greater than the priority of any pod."""


@dataclass(frozen=True, slots=True)
class PriorityClass(Named):
    """A PriorityClass. ``queue`` is its label or annotation ``stowage.dev/queue``, "" for none. ``value`` and
    ``never_preempts`` are what the API server writes into its pods; ``is_default``: also into pods without a
    class.

    Its pods tolerate preemption by a priority below ``minimum_preemptable`` for ``toleration`` seconds after
    they were scheduled (``inf``: always). Source: the plugin PreemptionToleration of
    kubernetes-sigs/scheduler-plugins, pkg/preemptiontoleration. ``problem`` names a toleration that could not
    be read, in which case no priority is high enough; "" for none.
    """

    kind: ClassVar[Literal["PriorityClass"]] = "PriorityClass"
    name: str
    queue: str = ""
    minimum_preemptable: int = 0
    toleration: float = 0.0
    problem: str = ""
    value: int = 0
    never_preempts: bool = False
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class PodDisruptionBudget(Namespaced):
    """A PodDisruptionBudget.

    ``selector``: all requirements must match; None selects no pod. ``allowed`` and ``disrupted`` are
    ``disruptionsAllowed`` and the names in ``disruptedPods`` of its status; ``allowed`` is 0 while the status
    is older than the spec. ``frees_unready``: pods that are not ready may always be evicted.

    ``problem`` names the part that exceeds a limit of ``limits.py``, in which case the budget selects every
    pod of its namespace and allows no disruption; "" for none.
    """

    kind: ClassVar[Literal["PodDisruptionBudget"]] = "PodDisruptionBudget"
    namespace: str
    name: str
    selector: tuple[NodeSelectorRequirement, ...] | None = None
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()
    frees_unready: bool = False
    problem: str = ""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a pod of its namespace with these labels."""
        if self.problem:
            return True
        # As in the eviction API, and in kube-scheduler since 1.38, an empty selector matches every pod.
        # Up to 1.37 kube-scheduler ignores such a budget, and all budgets for a pod without labels
        # (``FilterVictimsWithPDBViolation`` of its pkg/scheduler/framework/preemption/util.go).
        return self.selector is not None and all(r.matches(labels) for r in self.selector)


class PriorityClassManifest(Manifest, frozen=True, gc=False):
    value: int = 0
    preemptionPolicy: str = ""
    globalDefault: bool = False

    def record(self) -> PriorityClass:
        """The class. An unreadable toleration protects its pods from all preemption."""
        name, annotations = self.metadata.name, self.metadata.annotations
        queue = self.metadata.labels.get(QUEUE_LABEL) or annotations.get(QUEUE_LABEL, "")
        queue = sys.intern(queue) if len(queue) <= KEY else ""
        value = self.value if abs(self.value) < ABOVE_ALL else 0
        written = value, self.preemptionPolicy == "Never", self.globalDefault
        try:
            minimum = _integer(annotations, MINIMUM_PREEMPTABLE, 32, value + 1)
            seconds = _integer(annotations, TOLERATION_SECONDS, 64, 0)
        except ValueError as error:
            return PriorityClass(name, queue, ABOVE_ALL, math.inf, str(error), *written)
        toleration = math.inf if seconds < 0 else float(seconds)
        return PriorityClass(name, queue, minimum, toleration, "", *written)


def _integer(annotations: Labels, name: str, bits: int, default: int) -> int:
    text = annotations.get(name)
    if text is None:
        return default
    number = int(text) if _INTEGER.fullmatch(text[:KEY]) else None
    if number is None or not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"annotation {name} cannot be read: {quoted(text)}")
    return number


class _BudgetMetadata(Metadata, frozen=True, gc=False):
    generation: Int = 0


class _BudgetSpec(Struct, frozen=True, gc=False):
    selector: LabelSelectorManifest | None = None
    unhealthyPodEvictionPolicy: str = ""


class _BudgetStatus(Struct, frozen=True, gc=False):
    disruptionsAllowed: Int = 0
    observedGeneration: Int = 0
    currentHealthy: Int = 0
    desiredHealthy: Int = 0
    disruptedPods: dict[str, Any] = {}


class PodDisruptionBudgetManifest(Manifest, frozen=True, gc=False):
    metadata: _BudgetMetadata = _BudgetMetadata()
    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()

    def record(self) -> PodDisruptionBudget:
        """The budget. Its namespace is ``default`` if the manifest has none."""
        namespace, name = self.metadata.namespace_or_default, self.metadata.name
        selector, disrupted = self.spec.selector, self.status.disruptedPods
        if len(disrupted) > DISRUPTED_PODS or any(len(pod) > KEY for pod in disrupted):
            return PodDisruptionBudget(namespace, name, problem="disruptedPods is too large to be read")
        if selector is not None and selector.is_too_large:
            return PodDisruptionBudget(namespace, name, problem="selector is too large to be read")
        status, up_to_date = self.status, self.status.observedGeneration >= self.metadata.generation
        return PodDisruptionBudget(
            namespace,
            name,
            selector.requirements() if selector is not None else None,
            allowed=status.disruptionsAllowed if up_to_date else 0,
            disrupted=frozenset(disrupted),
            frees_unready=self.spec.unhealthyPodEvictionPolicy == "AlwaysAllow"
            or status.currentHealthy >= status.desiredHealthy > 0,
        )
