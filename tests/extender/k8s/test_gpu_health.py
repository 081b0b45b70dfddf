"""Conditions, labels and taints that say that a GPU is sick close a node for as long as they stand."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.state import State
from extender.explain.node import view_node
from extender.explain.pod import explain
from extender.inventory.node_inventory import inventory_of
from extender.k8s import gpu_health as health
from extender.k8s.manifests import WireNode
from extender.k8s.objects import Node, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.verbs.filter import filter_nodes
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod, make_settings, make_state, why
from tests.extender.inventory.test_node_inventory import LABEL_SETS

READY = {"type": "Ready", "status": "True"}


def read(
    conditions: list[dict[str, Any]] | None = None,
    taints: list[dict[str, Any]] | None = None,
    labels: dict[str, str] | None = None,
    heartbeat: str = "2026-01-01T00:00:00Z",
) -> Node:
    """A node as it comes from the API server."""
    manifest = {
        "metadata": {
            "name": "n",
            "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"} | (labels or {}),
        },
        "spec": {"taints": taints},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"},
            "conditions": [
                one | {"lastHeartbeatTime": heartbeat, "message": f"seen at {heartbeat}"}
                for one in [READY, *(conditions or [])]
            ],
        },
    }
    return WireNode.model_validate(manifest).record()


@pytest.mark.parametrize(("kind", "bad"), health.CONDITIONS.items())
def test_each_condition_of_the_table_closes_the_node_while_it_stands(kind, bad):
    good = {"True": "False", "False": "True", "": "True"}[bad]
    for status in ("True", "False", "Unknown", ""):
        found = inventory_of(read([{"type": kind, "status": status}]))
        assert found.shape.blocked is (Reason.UNHEALTHY_GPU if bad and status == bad else Reason.FITS)
        assert (kind in found.doubt) == bool(bad and status == bad)
    assert inventory_of(read([{"type": kind, "status": good}])).shape.blocked is Reason.FITS


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("GpuEccProblem", "True"),
        ("NvidiaXID79Error", "True"),
        ("GPUDisconnectedProblem", "True"),
        ("NVIDIAGPUFault", "True"),
        ("AcceleratorUnhealthy", "True"),
        ("GPUNotReady", "True"),
        ("GpuReady", "False"),
        ("NvidiaGpuHealthy", "False"),
        ("example.com/gpu-health", "False"),
        ("NvidiaXID31Error", ""),  # a program's own fault
        ("NvidiaXID310Error", "True"),
        ("Ready", ""),
        ("KernelDeadlock", ""),
        ("MaxIdleReached", ""),
        ("GPUSharing", ""),
        ("NetworkUnavailable", ""),
    ],
)
def test_names_that_a_cluster_chose_itself_count_by_their_words(kind, bad):
    for status in ("True", "False", "Unknown"):
        expected = Reason.UNHEALTHY_GPU if status == bad else Reason.FITS
        assert inventory_of(read([{"type": kind, "status": status}])).shape.blocked is expected


@pytest.mark.parametrize(
    ("key", "value", "effect", "closes"),
    [
        ("nvidia.com/gpu-xid-error", "true", "NoSchedule", True),
        ("nvidia.com/gpu-error", "fatal", "NoExecute", True),
        ("nvlink.health/link-down", "true", "NoSchedule", True),
        ("amd-gpu-unhealthy", "AMDGPUUnhealthy", "NoSchedule", True),
        ("nvidia.com/gpu.health", "unhealthy", "NoSchedule", True),
        ("nvidia.com/gpu-xid-error", "degraded", "PreferNoSchedule", False),
        ("nvidia.com/gpu", "present", "NoSchedule", False),
        ("amd.com/gpu", "", "NoSchedule", False),
        ("node.kubernetes.io/unschedulable", "", "NoSchedule", False),
        ("node.cilium.io/agent-not-ready", "", "NoSchedule", False),
    ],
)
def test_taints_that_speak_of_sick_gpus(key, value, effect, closes):
    found = inventory_of(read(taints=[{"key": key, "value": value, "effect": effect}]))
    assert found.shape.blocked is (Reason.UNHEALTHY_GPU if closes else Reason.FITS)


@pytest.mark.parametrize(
    ("key", "value", "closes"),
    [
        ("nvidia.com/gpu.health", "unhealthy", True),
        ("nvidia.com/gpu.health", "not-ready", True),
        ("nvidia.com/gpu.health", "healthy", False),
        ("gpu-xid-errors", "79", True),
        ("gpu-xid-errors", "0", False),
        ("example.com/gpu-unhealthy", "true", True),
        ("example.com/gpu-unhealthy", "false", False),
        ("sagemaker.amazonaws.com/node-health-status", "UnschedulablePendingReboot", True),
        ("sagemaker.amazonaws.com/node-health-status", "Schedulable", False),
        ("dgxc.nvidia.com/nvsentinel-state", "quarantined", True),
        ("dgxc.nvidia.com/nvsentinel-state", "remediation-succeeded", False),
        ("nvidia.com/gpu.present", "true", False),
        ("nvidia.com/gpu-driver-upgrade-state", "upgrade-done", False),
        ("nvidia.com/gpu.deploy.dcgm", "true", False),
    ],
)
def test_labels_that_speak_of_sick_gpus(key, value, closes):
    found = inventory_of(read(labels={key: value}))
    assert found.shape.blocked is (Reason.UNHEALTHY_GPU if closes else Reason.FITS)


def test_the_known_label_sets_are_healthy():
    for entry in LABEL_SETS.values():
        assert health.reported(Node("n", labels=entry["labels"])) == ""


def test_a_node_opens_again_when_the_condition_is_gone_and_pods_keep_what_they_hold():
    sick = read([{"type": "GPUXIDErrors", "status": "True"}])
    running = make_pod("running", 3, node_name="n")
    state = make_state(read(), running)
    waiting = make_pod("waiting")
    assert why(state, waiting, "n") is Reason.FITS
    state.apply([Upserted(sick)])
    assert why(state, waiting, "n") is Reason.UNHEALTHY_GPU
    assert state.fleet.arrays.free_devices[state.fleet.names.resources["nvidia.com/gpu"], 0] == 5
    seen, told = view_node(state, "n", 0.0), explain(state, waiting)
    assert seen is not None
    assert seen.takes_nothing == Reason.UNHEALTHY_GPU.text
    assert "condition 'GPUXIDErrors' is True" in seen.problem
    assert [(one.reason, one.eviction_helps) for one in told.refusals] == [(Reason.UNHEALTHY_GPU.text, False)]
    state.apply([Upserted(read([{"type": "GPUXIDErrors", "status": "False"}]))])
    assert why(state, waiting, "n") is Reason.FITS
    assert "n" not in state.problems
    state.apply([Upserted(read(taints=[{"key": "nvidia.com/gpu-xid-error", "effect": "NoSchedule"}]))])
    assert why(state, waiting, "n") is Reason.UNHEALTHY_GPU


def test_a_pod_without_a_gpu_goes_to_a_node_with_sick_gpus():
    state = make_state(read([{"type": "GPUXIDErrors", "status": "True"}]))
    names = NodeNames.of(["n"])
    result, _ = filter_nodes(state, FilterArgs(make_pod("cpu", 0), names), make_settings())
    assert list(result.names) == ["n"]


def test_a_register_that_says_which_gpu_is_sick_leaves_the_others_open():
    sign = (("GPUXIDErrors", "True"),)
    for healthy, expected in ((False, Reason.FITS), (True, Reason.UNHEALTHY_GPU)):
        one = {"id": "a", "count": 10, "devmem": 1000, "devcore": 100, "health": True}
        node = Node(
            "n",
            annotations={
                "hami.io/node-nvidia-register": json.dumps([one, one | {"id": "b", "health": healthy}])
            },
            allocatable={"nvidia.com/gpu": "20"},
            conditions=sign,
        )
        assert inventory_of(node).shape.blocked is expected


def test_a_label_overrules_the_signs():
    sick = read([{"type": "GPUMissing", "status": "True"}], labels={health.IGNORED: "true"})
    assert inventory_of(sick).shape.blocked is Reason.FITS


def test_a_heartbeat_does_not_read_the_node_again():
    conditions = [{"type": "GPUMissing", "status": "False"}, {"type": "MemoryPressure", "status": "False"}]
    state: State = make_state(read(conditions))
    changes = state.fleet.changes
    for minute in range(10):
        state.apply([Upserted(read(conditions, heartbeat=f"2026-01-01T00:{minute:02}:00Z"))])
    state.apply([Upserted(read([conditions[0], conditions[1] | {"status": "True"}]))])
    assert state.fleet.changes == changes
    state.apply([Upserted(read([conditions[0] | {"status": "True"}]))])
    assert state.fleet.changes > changes


def test_only_so_many_conditions_are_kept_and_none_that_does_not_matter():
    many = [{"type": f"GpuError{i}", "status": "False"} for i in range(1000)]
    others = [{"type": f"Other{i}", "status": "True"} for i in range(400)]
    node = read([*others, *many])
    assert len(node.conditions) == 64
    assert {kind[:8] for kind, _ in node.conditions} == {"GpuError"}
    long = read([{"type": "GpuError" + "x" * 100_000, "status": "y" * 100_000}])
    assert long.conditions == ()


def test_what_a_sign_says_is_short():
    sick = replace(make_node("n"), conditions=(("GpuError" + "x" * 300, "True"),))
    assert len(inventory_of(sick).doubt) < 200


def test_a_thousand_signs_take_no_memory():
    names = [f"GpuError{i}" for i in range(50_000)]
    tracemalloc.start()
    for name in names:
        health.matters(name)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 2 << 20
