"""What works for pods of Fence (``fence.py``): run by ``test_made_up_dialect.py``, in a copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import extender
from extender.dialects import stowage
from extender.dialects.pod_request import DIALECTS, request_of
from extender.dialects.pod_resources import RequestError
from extender.explain.pod import explain
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Node, Pod
from extender.k8s.pod_manifest import PodManifest
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.trial.cluster_pods import as_new
from extender.untrusted.limits import POD_ANNOTATION
from extender.verbs.filter import filter_nodes
from extender.verbs.prioritize import prioritize
from packing.model.reasons import Reason
from tests.extender.builders import make_state, why
from tests.extender.verbs.binding import Cluster, own

FENCE = "fence.example.com/container."
MIB = 46_068


def node(name: str, *, ready: str = "True") -> Node:
    """A node of Stowage with two GPUs; ``ready``: the status of Fence's condition, "" for none."""
    condition = [{"type": "fence.example.com/GpuReady", "status": ready}] if ready else []
    labels = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.product": "NVIDIA-L40S"}
    labels |= {"nvidia.com/gpu.memory": str(MIB), "nvidia.com/gpu.count": "2"}
    uuids = {"stowage.dev/gpu-uuids": f"{name}-0,{name}-1"}
    manifest = {
        "metadata": {"name": name, "labels": labels, "annotations": uuids},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi"}, "conditions": condition},
    }
    return NodeManifest.from_value(manifest).record()


def pod(name: str = "p", on: str = "", **annotations: str) -> Pod:
    """A pod with two containers; annotations with ``__`` for what stands before the last dot."""
    named = {FENCE + key.replace("__", "."): text for key, text in annotations.items()}
    if "only" in annotations:
        named["fence.example.com/only"] = named.pop(FENCE + "only")
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": named}
    spec: dict[str, Any] = {"containers": [{"name": "main"}, {"name": "side"}]}
    manifest = {"metadata": metadata, "spec": spec | ({"nodeName": on} if on else {})}
    return PodManifest.from_value(manifest).record()


def free(cluster: Cluster, name: str) -> list[int]:
    row = cluster.state.fleet.rows[name]
    return cluster.state.fleet.arrays.memory[:2, row].tolist()


def test_the_product_is_a_copy_with_the_dialect():
    assert Path(extender.__file__).parents[1] == Path(os.environ["COPY"])
    assert "Fence" in [dialect.name for dialect in DIALECTS]


def test_filter_and_prioritize_accept_nodes_with_ready_agents():
    status = {"ready": "True", "down": "False", "unknown": "Unknown", "none": ""}
    state = make_state(*(node(name, ready=text) for name, text in status.items()), binds=True)
    names = [*status]
    args = FilterArgs(pod(main__mib="8192"), NodeNames.of(names))
    result = filter_nodes(state, args, Settings(bind=True, shortlist=0))[0]
    assert list(result.names) == ["ready"]
    assert {text: sorted(refused) for text, refused in result.unresolvable.items()} == {
        Reason.AGENTS_NOT_READY.text: ["down", "none", "unknown"]
    }
    scores, _ = prioritize(state, args)
    assert scores[0] == max(scores) > 0
    # The others stay open for other pods.
    assert all(why(state, own("x"), name) is Reason.FITS for name in names)


def test_explain_names_the_condition():
    state = make_state(node("down", ready="False"), binds=True)
    found = explain(state, pod(main__mib="8192"))
    (refusal,) = found.refusals
    assert refusal.reason == Reason.AGENTS_NOT_READY.text
    assert "fence.example.com/GpuReady is 'False'" in refusal.advice


def test_explain_corrects_a_name_with_a_container_in_it():
    found = explain(make_state(node("ready"), binds=True), pod(main__mibs="8192"))
    assert FENCE + "main.mib" in str(found)


async def test_bind_writes_the_gpu_and_reads_it_back():
    cluster = Cluster(node("ready"), first := pod("a", main__mib="8192"))
    assert await cluster.bind(first, "ready") == ""
    assert cluster.api.sent == [("ready", {FENCE + "main.gpus": "ready-0"})]
    cluster.tell("default/a")
    assert free(cluster, "ready") == [MIB - 8192, MIB]
    assert cluster.state.problems == {}


async def test_a_pod_gets_a_gpu_that_it_permits():
    chosen = pod("b", main__mib="8192", only="ready-1")
    cluster = Cluster(node("ready"), chosen)
    assert await cluster.bind(chosen, "ready") == ""
    assert cluster.api.sent == [("ready", {FENCE + "main.gpus": "ready-1"})]
    assert why(cluster.state, pod("c", main__mib="1", only="other"), "ready") is not Reason.FITS


async def test_pods_of_other_dialects_on_the_node_get_their_annotations():
    cluster = Cluster(node("ready"), own("a"))
    assert await cluster.bind(own("a"), "ready") == ""
    assert cluster.api.sent == [("ready", {stowage.INDICES: "0", stowage.SHARE: "600m,0Mi,600m"})]


async def test_a_forged_assignment_is_refused():
    forged = pod("a", main__mib="8192", side__gpus="ready-1")
    cluster = Cluster(node("ready"), forged)
    assert "own annotations prevent the assignment" in await cluster.bind(forged, "ready")
    assert cluster.api.sent == []


def test_a_gpu_that_the_node_does_not_have_counts_on_every_gpu():
    cluster = Cluster(node("ready"), pod("a", on="ready", main__mib="8192", main__gpus="elsewhere"))
    assert free(cluster, "ready") == [MIB - 8192, MIB - 8192]
    assert cluster.state.problems.keys() == {"default/a"}


def test_what_is_too_long_to_be_read_counts():
    long = "x" * (POD_ANNOTATION + 1)
    with pytest.raises(RequestError, match=r"fence.example.com/container.main.mib"):
        request_of(pod(main__mib=long))
    cluster = Cluster(node("ready"), pod("a", on="ready", main__mib="8192", main__gpus=long))
    assert free(cluster, "ready") == [MIB - 8192, MIB - 8192]


def test_a_running_pod_whose_request_cannot_be_read_holds_its_gpu():
    cluster = Cluster(node("ready"), pod("a", on="ready", main__mib="a lot", main__gpus="ready-1"))
    assert free(cluster, "ready") == [MIB, 0]


def test_a_pod_that_moves_leaves_its_assignment_behind():
    moved = as_new(pod("a", on="ready", main__mib="8192", main__gpus="ready-1"))
    assert moved.annotations == {FENCE + "main.mib": "8192"}


def test_the_policy_of_the_api_server_freezes_its_annotations():
    from deploy import render

    (text,) = render.with_names_of_dialects().values()
    for name in ("container.*.mib", "container.*.gpus", "only"):
        assert f"'fence.example.com/{name}'" in text
