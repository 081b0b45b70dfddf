"""The record of a pod or node is bounded, whatever its author writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.dialects import pod_request
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Node, Pod
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import (
    CONTAINERS,
    KEY,
    LISTED_NAMES,
    NODE_ANNOTATION,
    NODE_ANNOTATIONS,
    NODE_TAINTS,
    POD_ANNOTATION,
    POD_ANNOTATIONS,
    POD_RESOURCES,
    RESOURCES,
)
from tests.extender.builders import GPU

MODELS = pod_request.MODELS


def pod_of(manifest: dict[str, Any]) -> Pod:
    return PodManifest.from_json(json.dumps(manifest)).record()


def node_of(manifest: dict[str, Any]) -> Node:
    return NodeManifest.from_json(json.dumps(manifest)).record()


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


# Labels and annotations.


def test_a_long_annotation_that_is_not_needed_does_not_refuse_the_pod() -> None:
    pod = pod_of(manifest(annotations={"hami.io/unknown": "x" * (POD_ANNOTATION + 1)}))
    assert pod.unreadable == ("hami.io/unknown",)
    assert request_of(pod).devices == ((GPU, 1),)


def test_the_smallest_of_many_annotations_are_kept() -> None:
    texts = {f"stowage.dev/a{n:02}": "x" * (1000 + n) for n in range(50)}
    pod = pod_of(manifest(annotations=texts, labels={"gpu-group": "a"}))
    kept = pod.annotations | pod.labels
    assert {"gpu-group", "stowage.dev/a00"} <= kept.keys()
    assert sum(len(key) + len(text) for key, text in kept.items()) <= POD_ANNOTATIONS
    assert sorted([*kept, *pod.unreadable]) == sorted([*texts, "gpu-group"])
    again = pod_of(manifest(annotations=dict(reversed(texts.items())), labels={"gpu-group": "a"}))
    assert again == pod  # in any order


def test_too_many_dropped_annotations_are_a_problem() -> None:
    labels = {f"{n}.nvidia.com/{'x' * 300}": "y" * 63 for n in range(4000)}
    pod = pod_of(manifest(labels=labels))
    assert len(pod.unreadable) <= LISTED_NAMES
    assert size_of(pod) < 2 * POD_ANNOTATIONS
    with pytest.raises(RequestError, match="annotations and labels are too large"):
        request_of(pod)


def test_an_annotation_with_an_invalid_name_is_ignored() -> None:
    pod = pod_of(manifest(annotations={"gpu-" + "x" * KEY: "1"}))
    assert not pod.annotations
    assert not pod.unreadable


def test_a_node() -> None:
    annotations = {"hami.io/big": "x" * (NODE_ANNOTATION + 1), "hami.io/small": "y"}
    metadata = {"name": "n", "labels": {"zone": "a"}, "annotations": annotations}
    taints = [{"key": f"k{n}"} for n in range(NODE_TAINTS + 1)]
    node = node_of({"metadata": metadata, "spec": {"taints": taints}})
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


def test_resources_with_quantity_zero_do_not_count() -> None:
    offers = {f"nvidia.com/mig-{n}g.10gb": "0" for n in range(RESOURCES)} | {GPU: "8", "cpu": "64"}
    node = node_of({"metadata": {"name": "n"}, "status": {"allocatable": offers}})
    assert node.allocatable == {GPU: "8", "cpu": "64"}
    assert not node.problem


# The spec.


def test_a_running_pod_with_too_many_containers_counts_all_that_it_uses() -> None:
    pod_manifest = manifest(
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
    spec = pod_of(pod_manifest).spec
    (one,) = spec.containers
    # The sidecar starts after the largest init container, but a summary adds it to all containers.
    assert dict(one.requests) == {"cpu": "21000m", "memory": str(CONTAINERS << 20), GPU: "3"}
    assert spec.overhead == (("cpu", "250m"),)


def test_a_summary_keeps_resources_about_gpus() -> None:
    requests = {f"a{n}.com/x": "1" for n in range(5000)} | {GPU: "2", "cpu": "1", "memory": "1Gi"}
    pod = pod_of(manifest(containers=[container(**requests)]))
    kept = dict(pod.spec.containers[0].requests)
    assert len(kept) == POD_RESOURCES
    assert (kept[GPU], kept["cpu"], kept["memory"]) == ("2", "1000m", str(1 << 30))


def within(containers: int, each: int) -> dict[str, Any]:
    return manifest(containers=[*many(containers - 1, each), container()])


def size_of(pod: Pod) -> int:
    """Characters of a record as text."""
    return len(repr(pod))
