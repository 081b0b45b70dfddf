"""Records of the objects that say which pods may be evicted: PriorityClass and PodDisruptionBudget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from extender.k8s.affinity import NodeSelectorRequirement


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass. ``queue`` is its label or annotation ``stowage.dev/queue``, "" for none. ``value`` and
    ``never_preempts`` are what the API server writes into its pods.

    Its pods tolerate preemption by a priority below ``minimum_preemptable`` for ``toleration`` seconds after
    they were scheduled (``inf``: always). Source: the plugin PreemptionToleration of
    kubernetes-sigs/scheduler-plugins, pkg/preemptiontoleration. ``problem`` says which of these could not be
    read, "" for none; then no priority is high enough.
    """

    kind: ClassVar[Literal["PriorityClass"]] = "PriorityClass"
    name: str
    queue: str = ""
    minimum_preemptable: int = 0
    toleration: float = 0.0
    problem: str = ""
    value: int = 0
    never_preempts: bool = False

    @property
    def key(self) -> str:
        """The name, because these objects have no namespace."""
        return self.name


@dataclass(frozen=True, slots=True)
class PodDisruptionBudget:
    """A PodDisruptionBudget.

    ``selector``: all requirements must match; none means that it selects no pod. ``allowed`` and
    ``disrupted`` are ``disruptionsAllowed`` and the names in ``disruptedPods`` of its status.

    ``problem`` says what exceeds a limit of ``limits.py``, "" for nothing; then the budget selects every pod
    of its namespace, and allows no disruption.
    """

    kind: ClassVar[Literal["PodDisruptionBudget"]] = "PodDisruptionBudget"
    namespace: str
    name: str
    selector: tuple[NodeSelectorRequirement, ...] = ()
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a pod of its namespace with these labels."""
        if self.problem:
            return True
        # As kube-scheduler (filterPodsWithPDBViolation in k8s.io/kubernetes, pkg/scheduler/framework/plugins/
        # defaultpreemption): an empty selector matches nothing, and none matches a pod without labels.
        return bool(self.selector and labels) and all(one.matches(labels) for one in self.selector)
