"""PriorityClasses and PodDisruptionBudgets from their manifests, hostile ones included."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from extender.k8s.admission_objects import (
    PodDisruptionBudget,
    PodDisruptionBudgetManifest,
    PriorityClass,
    PriorityClassManifest,
)
from extender.untrusted.limits import BUDGET_SELECTOR, DISRUPTED_PODS, KEY

MINIMUM = "preemption-toleration.scheduling.x-k8s.io/minimum-preemptable-priority"
SECONDS = "preemption-toleration.scheduling.x-k8s.io/toleration-seconds"


def class_of(value: Any = 100, **metadata: Any) -> PriorityClass:
    manifest = {"metadata": {"name": "c"} | metadata, "value": value}
    return PriorityClassManifest.from_json(json.dumps(manifest)).record()


def budget_of(selector: Any = None, status: Any = None, **metadata: Any) -> PodDisruptionBudget:
    manifest = {
        "metadata": {"name": "b", "namespace": "ml"} | metadata,
        "spec": {"selector": selector},
        "status": status,
    }
    return PodDisruptionBudgetManifest.from_json(json.dumps(manifest)).record()


def test_a_class_without_words_tolerates_nothing() -> None:
    assert class_of() == PriorityClass("c", minimum_preemptable=101, value=100)
    assert PriorityClassManifest().record() == PriorityClass("", minimum_preemptable=1)


@pytest.mark.parametrize("key", [MINIMUM, SECONDS])
@pytest.mark.parametrize("text", ["", "x", "1.5", "1e3", "1_000", "٣", "9" * 20, "9" * 100_000, "0x10", " 1"])
def test_a_toleration_that_cannot_be_read_protects(key: str, text: str) -> None:
    read = class_of(annotations={key: text})
    assert read.minimum_preemptable > 2**31 - 1
    assert read.toleration == math.inf
    assert key in read.problem
    assert len(read.problem) < 300


def test_numbers_beyond_their_type_cannot_be_read() -> None:
    assert class_of(annotations={MINIMUM: str(2**31)}).problem
    assert not class_of(annotations={MINIMUM: str(2**31 - 1)}).problem
    assert class_of(annotations={SECONDS: str(2**63)}).problem
    assert not class_of(annotations={SECONDS: str(2**63 - 1)}).problem


@pytest.mark.parametrize(
    "selector",
    [
        None,
        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]},
        {"matchLabels": {"a": "x"}, "matchExpressions": [{}]},
    ],
)
def test_a_missing_or_invalid_selector_selects_nothing(selector: Any) -> None:
    assert not budget_of(selector).selects({"a": "x"})
    assert not budget_of(selector).selects({})


def many(count: int) -> dict[str, str]:
    return {f"k{n}": "v" for n in range(count)}


@pytest.mark.parametrize(
    ("selector", "status"),
    [
        ({"matchLabels": many(BUDGET_SELECTOR + 1)}, {}),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}] * (BUDGET_SELECTOR + 1)}, {}),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["v"] * (BUDGET_SELECTOR + 1)}]}, {}),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["v"] * 100_000}]}, {}),
        ({"matchLabels": {"k" * (KEY + 1): "v"}}, {}),
        ({"matchLabels": {"k": "v" * (KEY + 1)}}, {}),
        ({"matchExpressions": [{"key": "k" * (KEY + 1), "operator": "Exists"}]}, {}),
        ({"matchExpressions": [{"key": "k", "operator": "I" * (KEY + 1)}]}, {}),
        ({"matchExpressions": [{"key": "k", "operator": "In", "values": ["v" * (KEY + 1)]}]}, {}),
        ({"matchLabels": {"a": "b"}}, {"disruptedPods": many(DISRUPTED_PODS + 1)}),
        ({"matchLabels": {"a": "b"}}, {"disruptedPods": {"p" * (KEY + 1): ""}}),
    ],
)
def test_a_budget_beyond_a_limit_protects_its_namespace(selector: Any, status: Any) -> None:
    read = budget_of(selector, status | {"disruptionsAllowed": 5})
    assert read.problem.endswith("is too large to be read")
    assert (read.selector, read.allowed, read.disrupted) == (None, 0, frozenset())
    assert read.selects({"z": "z"})
    assert read.selects({})
