"""Pods leave no memory behind, and their events cost little, whatever their authors write."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from extender.cluster.state import State
from extender.dialects import pod_request
from extender.k8s.objects import Deleted, Upserted
from extender.untrusted.limits import LISTED_NAMES
from tests.extender.builders import GPU, make_node, make_state, why
from tests.extender.k8s.test_object_limits import MODELS, container, manifest, pod_of


def large_pods() -> Iterator[dict[str, Any]]:
    """300 different pods, as large as the API server allows."""
    for n in range(100):
        yield manifest(f"annotated-{n}", annotations={MODELS: f"A100,{n}" + "x" * 250_000})
        names = ",".join(f"{n}-{m}" + "x" * 100 for m in range(LISTED_NAMES))
        yield manifest(
            f"listed-{n}",
            annotations={MODELS: names, pod_request.NOT_MODELS: names[::-1], "nvidia.com/use-gputype": names},
            labels={f"x{m}.nvidia.com/{n}": "y" * 63 for m in range(1000)},
        )
        extended = [{f"v{n}.com/{c}-{r}-{'x' * 40}": "1" for r in range(60)} for c in range(100)]
        yield manifest(f"vast-{n}", containers=[container(**requests) for requests in extended])


def small_pods() -> Iterator[dict[str, Any]]:
    """5,000 pods with different specs."""
    for n in range(5000):
        asked = {"cpu": f"{n + 1}m", "memory": f"{n + 7}Mi", GPU: "1"}
        yield manifest(f"small-{n}", containers=[container(f"c{n}", **asked)])


@pytest.mark.nightly
@pytest.mark.parametrize("pods", [large_pods, small_pods])
def test_pods_leave_no_memory_behind(pods: Callable[[], Iterator[dict[str, Any]]]) -> None:
    state = make_state(make_node("n"))
    come_and_go(state, iter([manifest(f"first-{n}") for n in range(50)]))  # objects that are created once
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        come_and_go(state, pods())
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert not state.pods
    assert left < 6 << 20  # the learned demand, which is bounded, has 2 MiB of it


def come_and_go(state: State, pods: Iterator[dict[str, Any]]) -> None:
    seen = []
    for pod_manifest in pods:
        state.apply([Upserted(pod := pod_of(pod_manifest))])
        if not pod.problem and not pod.unreadable:
            why(state, pod, "n")
        seen.append(pod.key)
        if len(seen) == 300:
            state.apply([Deleted("Pod", key) for key in seen])
            seen.clear()
    state.apply([Deleted("Pod", key) for key in seen])
