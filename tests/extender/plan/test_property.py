"""No plan loses a pod or hands out a GPU twice, and each gains what it promised."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extender.plan.drain import plan_drain
from extender.plan.moves import plan_moves, steps_of
from extender.replay.steps import Outcome, Step, carry_out
from tests.examples import examples
from tests.extender.plan.clusters import GPU, budget, node, pod, share, shared_node, source_of


def quiet(what: str, part: float) -> None:
    """No progress bar."""


@st.composite
def clusters(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Nodes with whole GPUs and shared ones, filled by pods that may move or not, and pods that wait."""
    items: list[dict[str, Any]] = [budget(0, guarded="yes")]
    number = 0
    for n in range(draw(st.integers(1, 4))):
        name, size = f"whole-{n}", draw(st.integers(1, 4))
        items.append(node(name, size, labels={"zone": draw(st.sampled_from("ab"))}))
        while size and draw(st.booleans()):
            gpus = draw(st.integers(0, size))
            size -= gpus
            number += 1
            items.append(pod(f"p{number}", name, gpus, **draw(_RULES)))
    for n in range(draw(st.integers(0, 2))):
        items.append(shared_node(f"shared-{n}", 2))
        for gpu in range(2):
            left = 100
            while left >= 20 and draw(st.booleans()):
                part = draw(st.sampled_from([20, 50, 70, 100]))
                if part <= left:
                    left -= part
                    number += 1
                    items.append(share(f"s{number}", f"shared-{n}", f"{part}%", gpu))
    for gpus in draw(st.lists(st.integers(1, 4), max_size=2)):
        number += 1
        items.append(pod(f"w{number}", gpus=gpus))
    return items


_RULES = st.sampled_from(
    [
        {}, {}, {},
        {"owner": ""},
        {"owner": "DaemonSet"},
        {"labels": {"guarded": "yes"}},
        {"nodeSelector": {"zone": "a"}},
        {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
    ]
)  # fmt: skip


def audit(items: list[dict[str, Any]], steps: list[Step], outcome: Outcome) -> None:
    """From the manifests alone: who is where in the end, and that it fits."""
    where = {f"ml/{one['metadata']['name']}": one for one in items if one["kind"] == "Pod"}
    at = {key: one["spec"].get("nodeName", "") for key, one in where.items()} | outcome.placed
    nodes = {one["metadata"]["name"]: one for one in items if one["kind"] == "Node"}
    used: Counter[str] = Counter()
    shares: Counter[str] = Counter()
    for key, name in at.items():
        one = where[key]
        if one["spec"].get("nodeName"):
            assert name, f"{key} ran and has no node"
        if name in outcome.removed:
            assert one["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
        used[name] += int(one["spec"]["containers"][0]["resources"]["requests"].get(GPU, 0))
        shares[name] += int(one["metadata"]["annotations"].get("stowage.dev/gpu-compute", "0%")[:-1])
    for name, one in nodes.items():
        assert used[name] <= int(one["status"]["allocatable"].get(GPU, 0))
        assert shares[name] <= 200
    for key in {step.pod for step in steps if step.what == "evict"}:
        meta = where[key]["metadata"]
        assert meta["labels"] == {}
        assert meta["ownerReferences"][0]["kind"] == "Job"


FEW = settings(
    max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@FEW
@given(clusters())
def test_a_drain_keeps_every_pod_and_goes_as_far_as_promised(items):
    source = source_of(*items, bind=True)
    plan = plan_drain(source.trial(), quiet)
    outcome = carry_out(source.trial(), plan.steps())
    audit(items, plan.steps(), outcome)
    assert outcome.problems == ()
    assert set(outcome.removed) == set(plan.goes)


@FEW
@given(clusters(), st.integers(1, 4), st.sampled_from(["gpus", "nodes"]))
def test_moves_free_what_they_promise(items, moves, free):
    source = source_of(*items, bind=True)
    work = source.trial()
    whole = work.figures().whole
    freed = plan_moves(work, moves, free)
    steps = steps_of(freed)
    outcome = carry_out(source.trial(), steps)
    audit(items, steps, outcome)
    assert outcome.problems == ()
    assert sum(len(unit.moves) for unit in freed) <= moves
    if free == "gpus":
        assert outcome.figures.whole == whole + len(freed)


@pytest.mark.parametrize("policy", ["best-fit", "most-allocated"])
def test_every_policy_carries_out_its_plan(policy):
    items = [node("a"), node("b"), node("c"), pod("x", "a", 2), pod("y", "b", 1), pod("z", "c", 1)]
    source = source_of(*items, policy=policy)
    plan = plan_drain(source.trial(), quiet)
    assert len(plan.goes) == 2
    assert set(carry_out(source.trial(), plan.steps()).removed) == set(plan.goes)
