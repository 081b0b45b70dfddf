"""Conditions, labels and taints about unhealthy GPUs close a node as long as they are set."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from extender.explain.node import view_node
from extender.explain.pod import explain
from extender.inventory.node_inventory import inventory_of
from extender.k8s import gpu_health
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Node, Upserted
from packing.model.reasons import Reason
from tests.extender.builders import H100, make_pod, make_state, why
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
        "metadata": {"name": "n", "labels": H100 | (labels or {})},
        "spec": {"taints": taints},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"},
            "conditions": [
                one | {"lastHeartbeatTime": heartbeat, "message": f"seen at {heartbeat}"}
                for one in [READY, *(conditions or [])]
            ],
        },
    }
    return NodeManifest.from_value(manifest).record()


@pytest.mark.parametrize(("kind", "bad"), gpu_health.CONDITIONS.items())
def test_each_condition_of_the_table_closes_the_node_while_it_is_set(kind, bad):
    good = {"True": "False", "False": "True", "": "True"}[bad]
    for status in ("True", "False", "Unknown", ""):
        found = inventory_of(read([{"type": kind, "status": status}]))
        assert found.spec.blocked is (Reason.UNHEALTHY_GPU if bad and status == bad else Reason.FITS)
        assert (kind in found.problem) == bool(bad and status == bad)
    assert inventory_of(read([{"type": kind, "status": good}])).spec.blocked is Reason.FITS


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
        ("NvidiaXID31Error", ""),  # caused by an application
        ("NvidiaXID310Error", "True"),
        ("Ready", ""),
        ("KernelDeadlock", ""),
        ("MaxIdleReached", ""),
        ("GPUXidCheckPassed", "False"),
        ("NoGPUErrors", "False"),
        ("GPUDefaultProfileActive", ""),
        ("GPUFailoverReady", "False"),
        ("NVLinkDown", "True"),
        ("NvLinkLost", "True"),
        ("NVSwitchFault", "True"),
        ("GPUsUnhealthy", "True"),
        ("NvidiaXIDsSeen", "True"),
        ("GpuThermalShutdown", "True"),
        ("GPUDriverCooldown", ""),
        ("NVSwitchNoResponse", ""),
        ("GPUSharing", ""),
        ("NetworkUnavailable", ""),
    ],
)
def test_names_that_are_not_in_the_table_count_by_their_words(kind, bad):
    for status in ("True", "False", "Unknown"):
        expected = Reason.UNHEALTHY_GPU if status == bad else Reason.FITS
        assert inventory_of(read([{"type": kind, "status": status}])).spec.blocked is expected


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
def test_taints_about_unhealthy_gpus(key, value, effect, closes):
    found = inventory_of(read(taints=[{"key": key, "value": value, "effect": effect}]))
    assert found.spec.blocked is (Reason.UNHEALTHY_GPU if closes else Reason.FITS)


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
        ("netboxId", "4711", False),
        ("example.com/netbox-id", "17", False),
        ("gpu-default", "a100", False),
        ("gpu-default", "true", False),
        ("gpu-failover-group", "1", False),
        ("gpu-fault-domain", "2", False),
        ("gpu-driver-download", "true", False),
        ("gpu-error-policy", "retry-later", False),
        ("gpu.faultDetected", "true", True),
        ("nvlinkdown", "true", True),
        ("nvidia.com/gpu-hwerror", "true", True),
        ("example.com/gpu-lost", "0,3", True),
        ("gpu-no-schedule", "false", False),
        ("gpuUnhealthy", "yes", True),
    ],
)
def test_labels_about_unhealthy_gpus(key, value, closes):
    found = inventory_of(read(labels={key: value}))
    assert found.spec.blocked is (Reason.UNHEALTHY_GPU if closes else Reason.FITS)


def test_the_known_label_sets_are_healthy():
    for entry in LABEL_SETS.values():
        assert gpu_health.unhealthy_gpu_sign(Node("n", labels=entry["labels"])) == ""


def test_a_node_opens_again_when_the_condition_is_gone_and_pods_keep_their_gpus():
    unhealthy = read([{"type": "GPUXIDErrors", "status": "True"}])
    running = make_pod("running", 3, node_name="n")
    state = make_state(read(), running)
    waiting = make_pod("waiting")
    assert why(state, waiting, "n") is Reason.FITS
    state.apply([Upserted(unhealthy)])
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


def test_a_label_overrides_the_signs():
    unhealthy = read([{"type": "GPUMissing", "status": "True"}], labels={gpu_health.IGNORE_LABEL: "true"})
    assert inventory_of(unhealthy).spec.blocked is Reason.FITS


def test_a_bounded_number_of_gpu_conditions_is_kept():
    many = [{"type": f"GpuError{i}", "status": "False"} for i in range(1000)]
    others = [{"type": f"Other{i}", "status": "True"} for i in range(400)]
    node = read([*others, *many])
    assert len(node.conditions) == 64
    assert {kind[:8] for kind, _ in node.conditions} == {"GpuError"}
    long = read([{"type": "GpuError" + "x" * 100_000, "status": "y" * 100_000}])
    assert long.conditions == ()


def test_many_signs_take_little_memory():
    names = [f"GpuError{i}" for i in range(50_000)]
    tracemalloc.start()
    for name in names:
        gpu_health.is_gpu_condition(name)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 2 << 20
