"""Manifests become small records. Fields may be absent, null or unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.affinity import Taint
from extender.k8s.objects import Container, Node, Pod, PodClaim, PodSpec
from tests.extender.k8s.test_object_limits import node_of, pod_of


def container(**resources: Any) -> dict[str, Any]:
    return {"name": "main", "image": "busybox", "resources": resources}


REPORTED = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1"}, {"resourceID": "GPU-2"}]}
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "ml",
        "uid": "u-1",
        "labels": {"app": "train", "runai-gpu-group": "g7"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T00:00:00Z",
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "stowage",
        "priority": -5,
        "overhead": {"memory": "64Mi"},
        "nodeSelector": {"pool": "gpu", "arch": "amd64"},
        "resources": {"limits": {"cpu": "2"}},
        "resourceClaims": [
            {"name": "a", "resourceClaimName": "shared"},
            {"name": "b", "resourceClaimTemplateName": "one-gpu"},
        ],
        "containers": [container(requests={"cpu": "1"}, limits={"cpu": "2", "nvidia.com/gpu": "1"})],
        "initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "fetch"}],
    },
    "status": {
        "phase": "Running",
        "nominatedNodeName": "n2",
        "startTime": "2026-01-01T00:00:10Z",
        "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "train-0-b-x7"}, {"name": "c"}],
        "containerStatuses": [{"name": "main", "allocatedResourcesStatus": [REPORTED]}],
    },
}


def test_a_pod() -> None:
    pod = pod_of(POD)
    assert pod == Pod(
        namespace="ml",
        name="train-0",
        uid="u-1",
        spec=PodSpec(
            containers=(
                Container(
                    name="main",
                    requests=(("cpu", "1"), ("nvidia.com/gpu", "1")),
                    limits=(("cpu", "2"), ("nvidia.com/gpu", "1")),
                ),
            ),
            init_containers=(Container(name="proxy", sidecar=True), Container(name="fetch")),
            limits=(("cpu", "2"),),
            overhead=(("memory", "64Mi"),),
            node_selector=(("arch", "amd64"), ("pool", "gpu")),
            claims=(PodClaim("a", claim="shared"), PodClaim("b", template="one-gpu")),
        ),
        node_name="n1",
        phase="Running",
        grace=30.0,
        scheduler_name="stowage",
        priority=-5,
        nominated_node="n2",
        deleting=True,
        ends=1767312000.0,
        deleted=1767312000.0,
        created=1767225600.0,
        started=1767225610.0,
        labels={"app": "train", "runai-gpu-group": "g7"},
        devices=(("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2")),
        claims=(("b", "train-0-b-x7"),),
    )
    assert pod.key == "ml/train-0"
    assert not pod.terminated


def test_a_node() -> None:
    node = node_of(
        {
            "metadata": {
                "name": "n1",
                "uid": "u-2",
                "labels": {"nvidia.com/gpu.product": "Tesla-T4", "zone": "a"},
                "annotations": {"hami.io/node-nvidia-register": "[]", "node.alpha.kubernetes.io/ttl": "0"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"unschedulable": True, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"nvidia.com/gpu": "4", "cpu": "96"},
                "capacity": {"nvidia.com/gpu": "8", "cpu": "98", "nvidia.com/mig-1g.5gb": "0"},
            },
        }
    )
    assert node == Node(
        name="n1",
        uid="u-2",
        labels={"nvidia.com/gpu.product": "Tesla-T4", "zone": "a"},
        annotations={"hami.io/node-nvidia-register": "[]"},
        allocatable={"nvidia.com/gpu": "4", "cpu": "96"},
        capacity={"nvidia.com/gpu": "8"},
        unschedulable=True,
        taints=(Taint("nvidia.com/gpu", "", "NoSchedule"),),
        created=1767225600.0,
    )
    assert node.key == "n1"


@pytest.mark.parametrize("timestamp", ["yesterday", "", "0000-99-99T00:00:00Z", None])
def test_an_invalid_timestamp_counts_as_unknown(timestamp: str | None) -> None:
    assert pod_of({"metadata": {"creationTimestamp": timestamp}}).created == 0.0


# Every field that Stowage reads.
_FULL: dict[str, Any] = {
    "metadata": {"name": "a", "namespace": "b", "uid": "c", "labels": {"k": "v"}, "annotations": {"k": "v"}},
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}],
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {}}],
        "resourceClaims": [{"name": "x", "resourceClaimName": "y", "resourceClaimTemplateName": "z"}],
        "resources": {"requests": {"cpu": "1"}},
        "taints": [{"key": "k", "value": "v", "effect": "e"}],
        "unschedulable": False,
        "priority": 1,
    },
    "status": {
        "phase": "Running",
        "allocatable": {"cpu": "1"},
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [
            {"allocatedResourcesStatus": [{"name": "r", "resources": [{"resourceID": "d"}]}]}
        ],
        "resourceClaimStatuses": [{"name": "x", "resourceClaimName": "y"}],
    },
}


def with_holes(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict):
        chosen = {k: draw(st.sampled_from(["keep", "keep", "null", "drop"])) for k in value}
        return {
            k: with_holes(draw, v) if chosen[k] == "keep" else None
            for k, v in value.items()
            if chosen[k] != "drop"
        }
    return [with_holes(draw, v) for v in value] if isinstance(value, list) else value


@given(st.data())
def test_any_field_may_be_absent_or_null(data: st.DataObject) -> None:
    manifest = data.draw(st.composite(lambda draw: with_holes(draw, _FULL))())
    assert pod_of(manifest).phase in ("Running", "Pending")
    assert node_of(manifest).name in ("a", "")
