"""Pods leave no memory behind, and their events cost little, whatever their authors write."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from extender.cluster.state import State
from extender.dialects import pod_request
from extender.k8s.objects import Deleted, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import LISTED_NAMES, NAME
from tests.extender.builders import GPU, make_node, make_state, why
from tests.extender.counting import calls
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


def test_a_filter_costs_at_most_5_times_a_normal_one() -> None:
    names = [f"H{n:03}" + "00-80GB" * 15 for n in range(LISTED_NAMES)]
    lists = (MODELS, pod_request.NOT_MODELS, "nvidia.com/use-gputype", "nvidia.com/nouse-gputype")
    assert max(map(len, names)) <= NAME
    largest = manifest("largest", annotations={key: ",".join(names) for key in lists})
    nodes = [
        make_node(f"n{n}", labels={"nvidia.com/gpu.product": product})
        for n, product in enumerate(["NVIDIA-H100-80GB-HBM3", "Tesla-T4", "NVIDIA-A100-SXM4-40GB"])
    ]
    costs = []
    for pod_manifest in (manifest("normal", annotations={MODELS: "A100,H100"}), largest):
        pod = pod_of(pod_manifest)
        state = make_state(*nodes, pod)
        costs.append(calls(partial(why, state, pod, "n0")))
    assert costs[1] <= 5 * costs[0]


def test_pods_of_one_template_share_labels_and_owner() -> None:
    owner = {"kind": "Job", "name": "j", "uid": "1", "controller": True}
    metadata = {"labels": {"app": "a", "empty": None}, "ownerReferences": [owner]}
    first, second = (PodManifest.from_value({"metadata": {**metadata, "name": name}}) for name in "ab")
    one, same = first.record(), second.record()
    assert (one.labels, one.owner) == ({"app": "a", "empty": ""}, same.owner)
    assert one.owner is same.owner
    plain = PodManifest.from_value({"metadata": {"labels": {"app": "a", "b": "c"}}})
    assert plain.record().labels is plain.record().labels
    other = PodManifest.from_value({"metadata": {"labels": {"app": "b", "x" * 400: "dropped"}}})
    assert other.record().labels == {"app": "b"}
