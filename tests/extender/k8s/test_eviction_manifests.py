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
from extender.k8s.affinity import NodeSelectorRequirement
from extender.untrusted.limits import BUDGET_SELECTOR, DISRUPTED_PODS, KEY

MINIMUM = "preemption-toleration.scheduling.x-k8s.io/minimum-preemptable-priority"
SECONDS = "preemption-toleration.scheduling.x-k8s.io/toleration-seconds"
QUEUE = "stowage.dev/queue"


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


def test_what_a_class_gives_to_its_pods() -> None:
    never = {"value": -5, "preemptionPolicy": "Never"}
    record = PriorityClassManifest.from_json(json.dumps(never)).record()
    assert (record.value, record.never_preempts) == (-5, True)
    assert (class_of(100).value, class_of(100).never_preempts) == (100, False)
    assert class_of(10**30).value == 0  # the API server accepts none beyond 32 bits
    assert class_of(7, annotations={MINIMUM: "x"}).value == 7


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_a_class_names_its_queue(part: str) -> None:
    assert class_of(**{part: {QUEUE: "batch"}}).queue == "batch"
    assert class_of(**{part: {QUEUE: None}}).queue == ""
    assert class_of(**{part: {QUEUE: "b" * (KEY + 1)}}).queue == ""


@pytest.mark.parametrize(
    ("annotations", "minimum", "toleration"),
    [
        ({MINIMUM: "10000", SECONDS: "3600"}, 10000, 3600.0),
        ({MINIMUM: "-5"}, -5, 0.0),
        ({SECONDS: "60"}, 101, 60.0),
        ({SECONDS: "-1"}, 101, math.inf),
        ({MINIMUM: "+7", SECONDS: "0"}, 7, 0.0),
    ],
)
def test_tolerations_of_scheduler_plugins(
    annotations: dict[str, str], minimum: int, toleration: float
) -> None:
    read = class_of(annotations=annotations)
    assert (read.minimum_preemptable, read.toleration, read.problem) == (minimum, toleration, "")


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


def test_a_budget() -> None:
    selector = {
        "matchLabels": {"app": "x", "a": None},
        "matchExpressions": [
            {"key": "t", "operator": "NotIn", "values": ["1", "2"]},
            {"key": "u", "operator": "Exists"},
            {"key": "v", "operator": "DoesNotExist", "values": []},
        ],
    }
    status = {"disruptionsAllowed": 2, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}}
    assert budget_of(selector, status) == PodDisruptionBudget(
        "ml",
        "b",
        (
            NodeSelectorRequirement("a", "In", ("",)),
            NodeSelectorRequirement("app", "In", ("x",)),
            NodeSelectorRequirement("t", "NotIn", ("1", "2")),
            NodeSelectorRequirement("u", "Exists"),
            NodeSelectorRequirement("v", "DoesNotExist"),
        ),
        allowed=2,
        disrupted=frozenset({"p"}),
    )


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


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"matchLabels": {}, "matchExpressions": None},
        {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]},
    ],
)
def test_a_selector_may_select_a_pod_without_labels(selector: Any) -> None:
    """As the eviction API counts; kube-scheduler does from 1.38 on."""
    assert budget_of(selector).selects({"b": "x"})
    assert budget_of(selector).selects({})


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


def test_a_budget_at_its_limits_is_read() -> None:
    read = budget_of({"matchLabels": many(BUDGET_SELECTOR)}, {"disruptedPods": many(DISRUPTED_PODS)})
    assert not read.problem
    assert len(read.selector) == BUDGET_SELECTOR
    assert len(read.disrupted) == DISRUPTED_PODS
