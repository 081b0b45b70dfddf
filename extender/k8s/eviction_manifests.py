"""Reads PriorityClasses and PodDisruptionBudgets from their manifests."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from itertools import chain
from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict

from extender.k8s.affinity import NodeSelectorRequirement
from extender.k8s.eviction_objects import PodDisruptionBudget, PriorityClass
from extender.k8s.metadata import NO_ENTRIES, Metadata, Text, TextMap
from extender.untrusted.limits import BUDGET_SELECTOR, DISRUPTED_PODS, KEY, quoted

QUEUE_LABEL = "stowage.dev/queue"
"""A label or annotation of a pod or PriorityClass: the name of a queue."""
_TOLERATION = "preemption-toleration.scheduling.x-k8s.io/"
MINIMUM_PREEMPTABLE = f"{_TOLERATION}minimum-preemptable-priority"
TOLERATION_SECONDS = f"{_TOLERATION}toleration-seconds"
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
_ABOVE_ALL = 2**31
"""No pod has this priority."""


class PriorityClassManifest(BaseModel):
    metadata: Metadata | None = None
    value: int | None = None
    preemptionPolicy: str | None = None

    def record(self) -> PriorityClass:
        """The class. A toleration that cannot be read protects its pods from every preemption."""
        metadata = self.metadata or {}
        name, annotations = metadata.get("name") or "", metadata.get("annotations") or NO_ENTRIES
        queue = (metadata.get("labels") or NO_ENTRIES).get(QUEUE_LABEL) or annotations.get(QUEUE_LABEL) or ""
        queue = sys.intern(queue) if len(queue) <= KEY else ""
        value = self.value or 0
        value, never = (value if abs(value) < _ABOVE_ALL else 0), self.preemptionPolicy == "Never"
        try:
            minimum = _integer(annotations, MINIMUM_PREEMPTABLE, 32, value + 1)
            seconds = _integer(annotations, TOLERATION_SECONDS, 64, 0)
        except ValueError as error:
            return PriorityClass(name, queue, _ABOVE_ALL, math.inf, str(error), value, never)
        toleration = math.inf if seconds < 0 else float(seconds)
        return PriorityClass(name, queue, minimum, toleration, "", value, never)


def _integer(annotations: Mapping[str, str | None], name: str, bits: int, default: int) -> int:
    text = annotations.get(name)
    if text is None:
        return default
    number = int(text) if _INTEGER.fullmatch(text[:KEY]) else None
    if number is None or not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"annotation {name} cannot be read: {quoted(text)}")
    return number


class _Expression(TypedDict, total=False):
    key: str | None
    operator: str | None
    values: list[Text] | None


class _Selector(TypedDict, total=False):
    matchLabels: TextMap
    matchExpressions: list[_Expression] | None


class _BudgetSpec(TypedDict, total=False):
    selector: _Selector | None


class _BudgetStatus(TypedDict, total=False):
    disruptionsAllowed: int | None
    disruptedPods: dict[str, Any] | None


class PodDisruptionBudgetManifest(BaseModel):
    metadata: Metadata | None = None
    spec: _BudgetSpec | None = None
    status: _BudgetStatus | None = None

    def record(self) -> PodDisruptionBudget:
        """The budget. Its namespace is ``default`` if the manifest has none."""
        metadata, status = self.metadata or {}, self.status or {}
        namespace, name = sys.intern(metadata.get("namespace") or "default"), metadata.get("name") or ""
        selector, disrupted = (self.spec or {}).get("selector") or {}, status.get("disruptedPods") or {}
        if len(disrupted) > DISRUPTED_PODS or any(len(pod) > KEY for pod in disrupted):
            return PodDisruptionBudget(namespace, name, problem="disruptedPods is too large to be read")
        if _too_large(selector):
            return PodDisruptionBudget(namespace, name, problem="selector is too large to be read")
        return PodDisruptionBudget(
            namespace,
            name,
            _requirements(selector),
            allowed=status.get("disruptionsAllowed") or 0,
            disrupted=frozenset(disrupted),
        )


def _too_large(selector: _Selector) -> bool:
    labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    if len(labels) + len(expressions) > BUDGET_SELECTOR:
        return True
    values = [values for one in expressions if (values := one.get("values"))]
    if len(labels) + sum(map(len, values)) > BUDGET_SELECTOR:
        return True
    texts = chain(labels, labels.values(), *values)
    keys = (text for one in expressions for text in (one.get("key"), one.get("operator")))
    return any(len(text) > KEY for text in chain(texts, keys) if text)


def _requirements(selector: _Selector) -> tuple[NodeSelectorRequirement, ...]:
    """The requirements, none if one is invalid: such a selector matches nothing.

    Source: ``LabelSelectorAsSelector`` and ``NewRequirement`` in k8s.io/apimachinery, pkg/apis/meta/v1 and
    pkg/labels.
    """
    labels = sorted((selector.get("matchLabels") or {}).items())
    found = [NodeSelectorRequirement(sys.intern(key), "In", (value or "",)) for key, value in labels]
    for one in selector.get("matchExpressions") or ():
        operator, values = one.get("operator") or "", tuple(one.get("values") or ())
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            return ()
        if bool(values) != (operator in ("In", "NotIn")):
            return ()
        found.append(NodeSelectorRequirement(sys.intern(one.get("key") or ""), operator, values))
    return tuple(found)
