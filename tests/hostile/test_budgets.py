"""PodDisruptionBudgets and the words of pods that decide over evictions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from extender.k8s.objects import Pod
from extender.untrusted.limits import BUDGETS_PER_POD
from tests.hostile.cluster import EVENT, PLAIN, Cluster, steps, usual_pod
from tests.hostile.objects import budget, exists

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


def running(cluster: Cluster) -> Pod:
    cluster.put(usual_pod("held", labels={"app": "x"}, node=PLAIN))
    return cluster.engine.state.pods["d/held"]


@pytest.mark.parametrize(("length", "protects"), [(20, False), (2000, True)])
def test_disrupted_pods_of_any_number(runner: asyncio.Runner, length: int, protects: bool) -> None:
    cluster, names = Cluster(runner), [f"{n:0{length}}" for n in range(30_000 // length)]
    cluster.hear(
        "PodDisruptionBudget",
        "ADDED",
        budget({"matchLabels": {"app": "x"}}, disruptedPods=dict.fromkeys(names, "")),
    )
    assert cluster.engine.state.budgets.violations([running(cluster)]) == (protects,)


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
            assert cluster.engine.state.rules_for(preemptor, 1e9).why_not([victim]) != [""]
        usual = steps(
            lambda: rights.rights_of(replace(pods["d/plain"]))
        )  # a new record of which nothing is known
        assert steps(lambda low=low: rights.rights_of(replace(low))) < EVENT * usual
