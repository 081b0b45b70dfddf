"""PodDisruptionBudgets, PriorityClasses and the words of pods that decide over evictions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from extender.k8s.objects import Pod
from extender.untrusted.limits import BUDGETS_PER_POD
from extender.verbs.eviction.plan import rules_for
from tests.examples import NIGHTLY, some
from tests.hostile.cluster import ANNOTATIONS, EVENT, PLAIN, SAID, Budget, Cluster, Manifest, steps, usual_pod

WORDS = [
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
    "volcano.sh/cooldown-time",
    "volcano.sh/preemptable",
    "kai.scheduler/preemptibility",
    "kueue.x-k8s.io/managed",
    "kueue.x-k8s.io/queue-name",
    "stowage.dev/queue",
]
TEXTS = [
    "",
    "x" * 16_000,
    "9" * 16_000,
    "1h" * 8000,
    "-1h",
    "\x00\x1b[31m",
    "\U0001f600" * 100,
    "1e999h",
    "true\n",
]


def budget(selector: Any, name: str = "b", **status: Any) -> Manifest:
    return {
        "metadata": {"namespace": "d", "name": name, "generation": 1},
        "spec": {"selector": selector},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 5} | status,
    }


def texts(count: int, length: int = 20) -> list[str]:
    return [f"{n:0{length}}" for n in range(count)]


def exists(key: str) -> Manifest:
    return {"key": key, "operator": "Exists"}


SELECTORS: dict[str, Callable[[], Any]] = {
    "labels": lambda: {"matchLabels": dict.fromkeys(texts(40_000), "x")},
    "expressions": lambda: {"matchExpressions": [exists("a")] * 20_000},
    "values": lambda: {"matchExpressions": [{"key": "a", "operator": "In", "values": texts(50_000)}]},
    "lists of values": lambda: {
        "matchExpressions": [{"key": "a", "operator": "NotIn", "values": texts(1000)} for _ in range(50)]
    },
    "a long key": lambda: {"matchLabels": {"k" * 1_000_000: "x"}},
    "a long value": lambda: {"matchLabels": {"k": "x" * 1_000_000}},
    "a long operator": lambda: {"matchExpressions": [{"key": "k", "operator": "I" * 1_000_000}]},
    "numbers": lambda: {"matchLabels": {"k": 7}},
    "nothing": lambda: {"matchExpressions": [{}] * 64},
}


def running(cluster: Cluster) -> Pod:
    cluster.put(usual_pod("held", labels={"app": "x"}, node=PLAIN))
    return cluster.engine.state.pods["d/held"]


@pytest.mark.parametrize("kind", some(SELECTORS))
def test_a_selector_of_any_size(runner: asyncio.Runner, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    cluster = Cluster(runner)
    usual = budget({"matchLabels": {"app": "x"}})
    checked = Budget(cluster).of_event("PodDisruptionBudget", "ADDED", budget(SELECTORS[kind]()), usual)
    assert checked == ""
    assert len(caplog.text) <= SAID
    assert all(len(text) < SAID for text in cluster.engine.state.problems.values())
    pod, budgets = running(cluster), cluster.engine.state.budgets
    assert steps(lambda: budgets.violations([pod])) < 5000
    cluster.hear("PodDisruptionBudget", "DELETED", usual)
    assert budgets.violations([pod]) == (False,)
    cluster.alive()


@pytest.mark.parametrize("length", [20, 2000])
def test_disrupted_pods_of_any_number(runner: asyncio.Runner, length: int) -> None:
    cluster = Cluster(runner)
    usual = budget({"matchLabels": {"app": "x"}})
    hostile = budget(
        {"matchLabels": {"app": "x"}}, disruptedPods=dict.fromkeys(texts(30_000 // length, length), "")
    )
    assert Budget(cluster).of_event("PodDisruptionBudget", "ADDED", hostile, usual) == ""
    assert cluster.engine.state.budgets.violations([running(cluster)]) == (length > 317,)


@pytest.mark.parametrize(
    "status", [{"disruptionsAllowed": "5"}, {"disruptionsAllowed": 10**30}, {"disruptedPods": []}]
)
def test_a_status_that_no_api_server_serves(runner: asyncio.Runner, status: Manifest) -> None:
    cluster = Cluster(runner)
    cluster.hear("PodDisruptionBudget", "ADDED", budget({"matchLabels": {"app": "x"}}, **status))
    cluster.engine.state.budgets.violations([running(cluster)])
    cluster.alive()


def test_many_budgets_for_one_pod(runner: asyncio.Runner) -> None:
    """The owner of a namespace makes evictions of its own pods violations, at no cost for others."""
    cluster = Cluster(runner)
    state, pod = cluster.engine.state, running(cluster)
    first = partial(cluster.hear, "PodDisruptionBudget", "ADDED")
    usual = steps(partial(first, budget({"matchLabels": {"app": "x"}}, "b0")))
    cost = steps(lambda: state.budgets.violations([pod]))
    for n in range(1, 2000):
        first(budget({"matchExpressions": [exists("app")] * 60}, f"b{n}"))
    assert steps(partial(first, budget({"matchExpressions": [exists("app")] * 60}, "last"))) < EVENT * usual
    assert steps(lambda: state.budgets.violations([pod])) < EVENT * cost * BUDGETS_PER_POD
    assert state.budgets.violations([pod]) == (True,)
    other = usual_pod("other", labels={"app": "x"}, node=PLAIN)
    other["metadata"]["namespace"] = "elsewhere"
    cluster.put(other)
    assert state.budgets.violations([state.pods["elsewhere/other"]]) == (False,)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:10].encode().hex())
def test_words_of_any_text(runner: asyncio.Runner, text: str) -> None:
    """They never make a pod of higher priority a victim, and cost little."""
    cluster = Cluster(runner)
    rights, pods = cluster.engine.state.rights, cluster.engine.state.pods
    cluster.put(usual_pod("plain", node=PLAIN, priority=1))
    for part in ("annotations", "labels"):
        words = dict.fromkeys(WORDS, text)
        cluster.put(
            usual_pod("low", node=PLAIN, **{part: words}),
            usual_pod("wants", priority=1, **{part: words}),
        )
        low, wants = pods["d/low"], pods["d/wants"]
        for preemptor, victim in ((wants, pods["d/plain"]), (low, wants)):
            assert rules_for(cluster.engine.state, preemptor, 1e9).why_not([victim]) != [""]
        usual = steps(
            lambda: rights.rights_of(replace(pods["d/plain"]))
        )  # a new record of which nothing is known
        assert steps(lambda low=low: rights.rights_of(replace(low))) < EVENT * usual


def test_a_priority_class_of_any_size(runner: asyncio.Runner, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(runner)
    toleration = "preemption-toleration.scheduling.x-k8s.io"
    words = f"{toleration}/toleration-seconds", f"{toleration}/minimum-preemptable-priority"
    usual = {"metadata": {"name": "c"}, "value": 5}
    for text in (*(TEXTS if NIGHTLY else TEXTS[:2]), "9" * (ANNOTATIONS - 1000)):
        for key in ("stowage.dev/queue", *words):
            hostile = {"metadata": {"name": "c", "annotations": {key: text}}, "value": 5}
            caplog.clear()
            assert Budget(cluster).of_event("PriorityClass", "MODIFIED", hostile, usual) == ""
            assert len(caplog.text) <= SAID
            assert all(len(problem) < SAID for problem in cluster.engine.state.problems.values())
    for value in (None, "x", 10**30, -(10**30), 1.5):
        cluster.hear("PriorityClass", "MODIFIED", {"metadata": {"name": "c"}, "value": value})
    cluster.alive()
