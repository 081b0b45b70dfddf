"""Whatever the author of a pod or node writes, its record is bounded, costs little and leaves nothing."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from extender.cluster.state import State
from extender.dialects import constraints
from extender.dialects.pod_request import RequestError, request_of
from extender.k8s.manifests import WireNode, WirePod
from extender.k8s.objects import Deleted, Node, Pod, Upserted
from extender.protocol import messages as envelope
from extender.source.list_watch import ListWatch
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.limits import (
    CONTAINERS,
    KEY,
    LISTED_NAMES,
    NAME,
    NODE_ANNOTATION,
    NODE_ANNOTATIONS,
    NODE_TAINTS,
    POD_ANNOTATION,
    POD_ANNOTATIONS,
    POD_CLAIMS,
    POD_RESOURCES,
    PROBLEM,
    REPORTED_DEVICES,
    RESOURCES,
    SELECTOR_ITEMS,
)
from tests.extender.builders import GPU, make_node, make_state, why
from tests.extender.counting import calls

MODELS = constraints.MODELS


def pod_of(manifest: dict[str, Any]) -> Pod:
    return WirePod.model_validate_json(json.dumps(manifest)).record()


def node_of(manifest: dict[str, Any]) -> Node:
    return WireNode.model_validate_json(json.dumps(manifest)).record()


def manifest(
    name: str = "p", *, spec: dict[str, Any] | None = None, containers: Any = None, **metadata: Any
) -> dict[str, Any]:
    containers = containers or [container()]
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", **metadata},
        "spec": {"containers": containers} | (spec or {}),
    }


def container(name: str = "main", **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests or {GPU: "1", "cpu": "1"}}}


def many(count: int, each: int) -> list[dict[str, Any]]:
    return [
        {"name": f"c{c}", "resources": {"requests": {f"vendor.com/r{c}-{r}": "0" for r in range(each)}}}
        for c in range(count)
    ]


# What is kept of labels and annotations.


def test_a_long_annotation_is_left_out_and_named() -> None:
    pod = pod_of(
        manifest(
            annotations={MODELS: "x" * (POD_ANNOTATION + 1), "stowage.dev/gpus": "2"},
            labels={"gpu-group": "a"},
        )
    )
    assert pod.annotations == {"stowage.dev/gpus": "2"}
    assert pod.labels == {"gpu-group": "a"}
    assert pod.unreadable == (MODELS,)
    assert not pod.problem
    with pytest.raises(RequestError, match=rf"^{MODELS}: more than {POD_ANNOTATION} characters"):
        request_of(pod)


def test_a_long_annotation_that_says_nothing_of_the_request_refuses_nothing() -> None:
    pod = pod_of(manifest(annotations={"hami.io/unknown": "x" * (POD_ANNOTATION + 1)}))
    assert pod.unreadable == ("hami.io/unknown",)
    assert request_of(pod).devices == ((GPU, 1),)


def test_the_longest_annotation_is_read() -> None:
    longest = "x" * POD_ANNOTATION
    assert pod_of(manifest(annotations={MODELS: longest})).annotations == {MODELS: longest}


def test_of_many_annotations_the_smallest_are_kept() -> None:
    texts = {f"stowage.dev/a{n:02}": "x" * (1000 + n) for n in range(50)}
    pod = pod_of(manifest(annotations=texts, labels={"gpu-group": "a"}))
    kept = pod.annotations | pod.labels
    assert {"gpu-group", "stowage.dev/a00"} <= kept.keys()
    assert sum(len(key) + len(text) for key, text in kept.items()) <= POD_ANNOTATIONS
    assert sorted([*kept, *pod.unreadable]) == sorted([*texts, "gpu-group"])
    again = pod_of(manifest(annotations=dict(reversed(texts.items())), labels={"gpu-group": "a"}))
    assert again == pod  # in whatever order they come


def test_too_many_to_be_named_are_a_problem() -> None:
    labels = {f"{n}.nvidia.com/{'x' * 300}": "y" * 63 for n in range(4000)}
    pod = pod_of(manifest(labels=labels))
    assert len(pod.unreadable) <= LISTED_NAMES
    assert size_of(pod) < 2 * POD_ANNOTATIONS
    with pytest.raises(RequestError, match="annotations and labels are too large"):
        request_of(pod)


def test_a_name_that_no_annotation_can_have_is_no_annotation() -> None:
    pod = pod_of(manifest(annotations={"gpu-" + "x" * KEY: "1"}))
    assert not pod.annotations
    assert not pod.unreadable


def test_a_node() -> None:
    node = node_of(
        {
            "metadata": {
                "name": "n",
                "labels": {"zone": "a"},
                "annotations": {"hami.io/big": "x" * (NODE_ANNOTATION + 1), "hami.io/small": "y"},
            },
            "spec": {"taints": [{"key": f"k{n}"} for n in range(NODE_TAINTS + 1)]},
        }
    )
    assert node.labels == {"zone": "a"}
    assert node.annotations == {"hami.io/small": "y"}
    assert node.unreadable == ("hami.io/big",)
    assert len(node.taints) == NODE_TAINTS
    assert node.problem == f"more than {NODE_TAINTS} taints"


def test_a_node_with_many_labels_and_resources() -> None:
    many_labels = {f"feature.node.kubernetes.io/{n}-{'x' * 50}": "true" for n in range(10_000)}
    offers = {f"vendor.com/r{n}": "1" for n in range(RESOURCES + 1)}
    node = node_of({"metadata": {"name": "n", "labels": many_labels}, "status": {"allocatable": offers}})
    assert sum(len(key) + len(text) for key, text in node.labels.items()) <= NODE_ANNOTATIONS
    assert len(node.unreadable) == LISTED_NAMES
    assert not node.allocatable
    assert "annotations and labels are too large" in node.problem


def test_resources_that_a_node_has_none_of_do_not_count() -> None:
    offers = {f"nvidia.com/mig-{n}g.10gb": "0" for n in range(RESOURCES)} | {GPU: "8", "cpu": "64"}
    node = node_of({"metadata": {"name": "n"}, "status": {"allocatable": offers}})
    assert node.allocatable == {GPU: "8", "cpu": "64"}
    assert not node.problem


# What is kept of a spec.

EXCESSIVE: dict[str, tuple[dict[str, Any], str]] = {
    "containers": (
        manifest(containers=[container(f"c{n}") for n in range(CONTAINERS + 1)]),
        f"more than {CONTAINERS} containers",
    ),
    "init containers": (
        manifest(spec={"initContainers": [container(f"i{n}") for n in range(CONTAINERS + 1)]}),
        f"more than {CONTAINERS} containers",
    ),
    "resources of a container": (
        manifest(containers=[*many(1, RESOURCES + 1), container()]),
        f"more than {RESOURCES} resources of one container",
    ),
    "resources of all": (
        manifest(containers=[*many(128, 64), container()]),
        f"more than {CONTAINERS} containers",
    ),
    "resources in all": (
        manifest(containers=[*many(127, 64), container()]),
        f"more than {POD_RESOURCES} resources of all containers",
    ),
    "overhead": (
        manifest(spec={"overhead": {f"vendor.com/r{n}": "1" for n in range(RESOURCES + 1)}}),
        f"more than {RESOURCES} resources of the pod as a whole",
    ),
    "selector": (
        manifest(spec={"nodeSelector": {f"k{n}": "v" for n in range(SELECTOR_ITEMS + 1)}}),
        f"more than {SELECTOR_ITEMS} entries in the node selector",
    ),
    "claims": (
        manifest(
            spec={
                "resourceClaims": [{"name": f"c{n}", "resourceClaimName": "x"} for n in range(POD_CLAIMS + 1)]
            }
        ),
        f"more than {POD_CLAIMS} resource claims",
    ),
    "a name": (
        manifest(containers=[container(**{"vendor.com/" + "x" * KEY: "1", GPU: "1"})]),
        f"more than {KEY} characters in a name or quantity",
    ),
    "a quantity": (
        manifest(containers=[container(**{GPU: "1", "cpu": "1" * 200_000})]),
        f"more than {KEY} characters in a name or quantity",
    ),
    "devices": (
        manifest()
        | {
            "status": {
                "containerStatuses": [
                    {
                        "allocatedResourcesStatus": [
                            {
                                "name": GPU,
                                "resources": [
                                    {"resourceID": f"GPU-{n}"} for n in range(REPORTED_DEVICES + 1)
                                ],
                            }
                        ]
                    }
                ]
            }
        },
        f"kubelet reports more than {REPORTED_DEVICES} devices",
    ),
}


@pytest.mark.parametrize(("wire", "problem"), EXCESSIVE.values(), ids=EXCESSIVE.keys())
def test_what_exceeds_a_limit_is_a_problem_of_the_pod(wire: dict[str, Any], problem: str) -> None:
    pod = pod_of(wire)
    assert pod.problem == problem
    assert size_of(pod) < 64 << 10
    with pytest.raises(RequestError, match=f"^{problem}$"):
        request_of(pod)
    state = make_state(make_node("n"), pod)
    assert pod.key in state.pods
    assert state.learnt == 0


def test_all_limits_may_be_reached() -> None:
    wire = within(CONTAINERS, POD_RESOURCES // CONTAINERS)
    wire["spec"]["nodeSelector"] = {f"k{n}": "v" for n in range(SELECTOR_ITEMS)}
    pod = pod_of(wire)
    assert not pod.problem
    assert len(pod.spec.containers) == CONTAINERS
    assert request_of(pod).devices == ((GPU, 1),)


def test_a_running_pod_with_too_many_containers_counts_all_that_it_uses() -> None:
    wire = manifest(
        containers=[container(f"c{n}", cpu="100m", memory="1Mi") for n in range(CONTAINERS)]
        + [container("gpus", **{GPU: "3", "cpu": "500m"})],
        spec={
            "initContainers": [
                container("first", cpu="20"),
                container("proxy", cpu="1") | {"restartPolicy": "Always"},
            ],
            "overhead": {"cpu": "250m"},
        },
    )
    pod = pod_of(wire)
    spec = pod.spec
    (one,) = spec.containers
    # The sidecar starts after the container that needs most, but in a summary it counts beside all.
    assert dict(one.requests) == {"cpu": "21000m", "memory": str(CONTAINERS << 20), GPU: "3"}
    assert spec.overhead == (("cpu", "250m"),)


def test_a_summary_keeps_what_speaks_of_gpus() -> None:
    requests = {f"a{n}.com/x": "1" for n in range(5000)} | {GPU: "2", "cpu": "1", "memory": "1Gi"}
    pod = pod_of(manifest(containers=[container(**requests)]))
    kept = dict(pod.spec.containers[0].requests)
    assert len(kept) == POD_RESOURCES
    assert (kept[GPU], kept["cpu"], kept["memory"]) == ("2", "1000m", str(1 << 30))


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
def test_what_no_object_of_the_api_goes_by_is_refused(field: str) -> None:
    with pytest.raises(envelope.BadMessage, match=rf"^Pod.metadata.{field}: String should have at most"):
        filter_message(manifest() | {"metadata": {"name": "p"} | {field: "x" * 1000}})


def test_texts_that_the_api_server_does_not_check_are_cut() -> None:
    pod = pod_of(manifest(spec={"schedulerName": "x" * 200_000}) | {"status": {"phase": "y" * 200_000}})
    assert len(pod.scheduler_name) == len(pod.phase) == KEY


# What errors quote.

HOSTILE = "<script>\x1b[31m" * 20_000
TEXTS: dict[str, dict[str, Any]] = {
    "a quantity": manifest(containers=[container(**{GPU: HOSTILE})]),
    "a quantity within a limit": manifest(containers=[container(**{GPU: "\x1b" * 60})]),
    "a resource": manifest(containers=[container(**{f"{'x' * 300}/y": "-1"})]),
    "two kinds": manifest(
        annotations={"stowage.dev/gpus": "1"},
        containers=[container(**{f"nvidia.com/mig-{n}g.5gb.{'x' * 40}": "1" for n in range(60)})],
    ),
    "cuda": manifest(annotations={constraints.CUDA: HOSTILE[:10_000]}),
    "nvlink": manifest(annotations={constraints.NVLINK: HOSTILE[:10_000]}),
    "a model": manifest(annotations={MODELS: HOSTILE[:10_000]}),
    "a list": manifest(annotations={MODELS: "a," * 5000}),
    "the ways to divide": manifest(annotations={"nvidia.com/vgpu-mode": HOSTILE[:10_000]}),
    "an own annotation": manifest(annotations={"stowage.dev/gpu-memory": HOSTILE[:10_000]}),
}


@pytest.mark.parametrize("wire", TEXTS.values(), ids=TEXTS.keys())
def test_an_error_quotes_little_of_the_pod(wire: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        request_of(pod_of(wire))
    assert len(str(caught.value)) <= PROBLEM
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        {"metadata": {"labels": {HOSTILE: []}}},
        {"metadata": {"labels": {f"{n}{HOSTILE[:100]}": [] for n in range(1000)}}},
        {"spec": {"containers": [1] * 10_000}},
        {"spec": {"priority": HOSTILE}},
    ],
)
def test_a_bad_message_says_little(message: dict[str, Any]) -> None:
    with pytest.raises(envelope.BadMessage) as caught:
        filter_message(message)
    assert 0 < len(str(caught.value)) <= PROBLEM


def test_what_the_watch_logs_is_short(caplog: pytest.LogCaptureFixture) -> None:
    following = ListWatch(WATCHED_KINDS["Pod"])
    following.page(b'{"metadata": {"resourceVersion": "1"}, "items": []}')
    following.next_request()
    with caplog.at_level("INFO", logger="extender"):
        lines = [
            {"type": "MODIFIED", "object": {"metadata": {"labels": {HOSTILE: []}}}},
            {"type": "ERROR", "object": {"code": 410, "message": HOSTILE}},
        ]
        for line in lines:
            assert not following.chunk(json.dumps(line).encode() + b"\n")
    assert len(caplog.messages) == 2
    assert all(len(text) < PROBLEM + 100 for text in caplog.messages)


def test_errors_without_number_take_little_memory() -> None:
    body = json.dumps({"Pod": None, "Nodes": None, "NodeNames": [1] * 200_000}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(envelope.BadMessage):
            envelope.read(envelope.FilterMessage, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(body)


def filter_message(pod: dict[str, Any]) -> envelope.FilterMessage:
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": []}).encode()
    return envelope.read(envelope.FilterMessage, body)


# What pods leave behind.


def large_pods() -> Iterator[dict[str, Any]]:
    """300 pods as large as the API server lets through, no two alike."""
    for n in range(100):
        yield manifest(f"annotated-{n}", annotations={MODELS: f"A100,{n}" + "x" * 250_000})
        names = ",".join(f"{n}-{m}" + "x" * 100 for m in range(LISTED_NAMES))
        yield manifest(
            f"listed-{n}",
            annotations={MODELS: names, constraints.NOT_MODELS: names[::-1], "nvidia.com/use-gputype": names},
            labels={f"x{m}.nvidia.com/{n}": "y" * 63 for m in range(1000)},
        )
        extended = [{f"v{n}.com/{c}-{r}-{'x' * 40}": "1" for r in range(60)} for c in range(100)]
        yield manifest(f"vast-{n}", containers=[container(**requests) for requests in extended])


def small_pods() -> Iterator[dict[str, Any]]:
    """5,000 pods of which each has a spec of its own."""
    for n in range(5000):
        asked = {"cpu": f"{n + 1}m", "memory": f"{n + 7}Mi", GPU: "1"}
        yield manifest(f"small-{n}", containers=[container(f"c{n}", **asked)])


@pytest.mark.parametrize("pods", [large_pods, small_pods])
def test_pods_leave_no_memory_behind(pods: Callable[[], Iterator[dict[str, Any]]]) -> None:
    state = make_state(make_node("n"))
    come_and_go(state, iter([manifest(f"first-{n}") for n in range(50)]))  # what is made once for all
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
    assert left < 4 << 20


def come_and_go(state: State, pods: Iterator[dict[str, Any]]) -> None:
    seen = []
    for wire in pods:
        state.apply([Upserted(pod := pod_of(wire))])
        if not pod.problem and not pod.unreadable:
            why(state, pod, "n")
        seen.append(pod.key)
        if len(seen) == 300:
            state.apply([Deleted("Pod", key) for key in seen])
            seen.clear()
    state.apply([Deleted("Pod", key) for key in seen])


# What events cost, in calls of functions, be they written in Python or in C.

NORMAL = manifest(annotations={MODELS: "A100,H100"})


def within(containers: int, each: int) -> dict[str, Any]:
    return manifest(containers=[*many(containers - 1, each), container()])


COSTLY: dict[str, dict[str, Any]] = {
    "all that is allowed": within(CONTAINERS, POD_RESOURCES // CONTAINERS),
    "few containers with many resources": within(POD_RESOURCES // RESOURCES, RESOURCES),
    "128 containers with 64 resources": within(128, 64),
    "a long annotation": manifest(annotations={MODELS: "x" * 250_000}),
    "the longest lists": manifest(
        annotations={MODELS: ",".join(f"{n:03}" + "-x" * 60 for n in range(LISTED_NAMES))}
    ),
    "many labels": manifest(labels={f"{n}.nvidia.com/x": "y" for n in range(10_000)}),
    "an init container each": manifest(
        spec={"initContainers": [container(f"i{n}") for n in range(CONTAINERS)]},
        containers=[container()],
    ),
    "a bad quantity at the end": manifest(
        containers=[*many(CONTAINERS // 4, 3), container(**{GPU: "x", "cpu": "1"})]
    ),
}


@pytest.mark.parametrize("wire", COSTLY.values(), ids=COSTLY.keys())
@pytest.mark.parametrize("node", ["", "n"], ids=["waiting", "running"])
def test_an_event_costs_at_most_20_times_a_normal_one(wire: dict[str, Any], node: str) -> None:
    first, again = costs_of_events(wire, node)
    normal_first, normal_again = costs_of_events(NORMAL, node)
    assert first <= 20 * normal_first
    assert again <= 20 * normal_again


def costs_of_events(wire: dict[str, Any], node: str) -> tuple[int, int]:
    """Calls for the event that brings a pod, and for one that changes an annotation that does not matter."""
    wire = json.loads(json.dumps(wire))
    wire["spec"]["nodeName"] = node
    state = make_state(make_node("n"))
    costs = []
    for version in range(2):
        wire["metadata"]["annotations"] = wire["metadata"].get("annotations", {}) | {"gpu-v": str(version)}
        event = Upserted(pod_of(wire))
        costs.append(calls(partial(state.apply, [event])))
    return costs[0], costs[1]


def test_a_filter_costs_at_most_5_times_a_normal_one() -> None:
    names = [f"H{n:03}" + "00-80GB" * 15 for n in range(LISTED_NAMES)]
    lists = (MODELS, constraints.NOT_MODELS, "nvidia.com/use-gputype", "nvidia.com/nouse-gputype")
    assert max(map(len, names)) <= NAME
    largest = manifest("largest", annotations={key: ",".join(names) for key in lists})
    nodes = [
        make_node(f"n{n}", labels={"nvidia.com/gpu.product": product})
        for n, product in enumerate(["NVIDIA-H100-80GB-HBM3", "Tesla-T4", "NVIDIA-A100-SXM4-40GB"])
    ]
    costs = []
    for wire in (manifest("normal", annotations={MODELS: "A100,H100"}), largest):
        pod = pod_of(wire)
        state = make_state(*nodes, pod)
        costs.append(calls(partial(why, state, pod, "n0")))
    assert costs[1] <= 5 * costs[0]


def size_of(pod: Pod) -> int:
    """Characters of all that a record keeps."""
    return len(repr(pod))
