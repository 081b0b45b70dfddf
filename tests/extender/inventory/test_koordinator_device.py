"""Koordinator's Device lists the GPUs of a node with their health."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from extender.cluster.state import State
from extender.dialects.shared_gpus import InventoryError
from extender.inventory.node_inventory import inventory_of
from extender.k8s.device_objects import KoordinatorDeviceManifest
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import KoordinatorDevice, KoordinatorGpu, Node, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from packing.model.node_spec import Gpu
from packing.model.reasons import Reason
from tests.extender.builders import make_state, why

# docs/proposals/scheduling/20220629-fine-grained-device-scheduling.md of koordinator-sh/koordinator, with its
# second GPU unhealthy and a third one.
DEVICE = """
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: Device
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/gpu-checkpoints: |-
      [{"podUID": "fa8983dc-bb76-4eeb-8dcc-556fbd44d7ce", "containerName": "cuda-container",
        "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-36b27e44-b086-46f7-f2dc-73c36dc65991"]}]
spec:
  devices:
  - {health: true, id: GPU-98583a5c-c155-9cf6-f955-03c189d3dbfb, minor: 0, type: gpu, resources: RESOURCES}
  - {health: false, id: GPU-7f6410b9-bdf7-f9a5-de09-aa5ec31a7124, minor: 1, type: gpu, resources: RESOURCES}
  - {health: true, id: GPU-36b27e44-b086-46f7-f2dc-73c36dc65991, minor: 2, type: gpu, resources: RESOURCES}
  - {health: true, id: "0000:1f:00.2", minor: 0, type: rdma, resources: {koordinator.sh/rdma: "100"}}
status: {}
"""
AMOUNTS = 'koordinator.sh/gpu-core: "100", koordinator.sh/gpu-memory: 15472384Ki'
DEVICE = DEVICE.replace("RESOURCES", f'{{{AMOUNTS}, koordinator.sh/gpu-memory-ratio: "100"}}')
NODE = """
metadata:
  name: node-1
  labels: {node.koordinator.sh/gpu-model: Tesla-T4}
status:
  allocatable:
    {cpu: "64", memory: 512Gi, koordinator.sh/gpu-core: "200", koordinator.sh/gpu-memory: 30944768Ki,
    koordinator.sh/gpu-memory-ratio: "200", koordinator.sh/gpu.shared: "200"}
"""
MIB = 15472384 // 1024


def device() -> KoordinatorDevice:
    return KoordinatorDeviceManifest.from_value(yaml.safe_load(DEVICE)).record()


def node() -> Node:
    return NodeManifest.from_value(yaml.safe_load(NODE)).record()


def pod(name: str, core: int, minor: int | None = None) -> Pod:
    """A pod that requests this part of one GPU. With ``minor`` it runs on that GPU."""
    amounts = {"koordinator.sh/gpu-core": str(core), "koordinator.sh/gpu-memory-ratio": str(core)}
    manifest = {
        "metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]},
    }
    if minor is not None:
        given = {"gpu": [{"minor": minor, "resources": amounts}]}
        manifest["metadata"]["annotations"] = {
            "scheduling.koordinator.sh/device-allocated": json.dumps(given)
        }
        manifest["spec"]["nodeName"] = "node-1"
    return PodManifest.from_value(manifest).record()


def compute(state: State) -> list[int]:
    row = state.fleet.rows["node-1"]
    return [int(milli) for milli in state.fleet.arrays.compute[: len(gpus(state)), row]]


def gpus(state: State) -> tuple[Gpu, ...]:
    shape = state.fleet.specs[state.fleet.rows["node-1"]]
    assert shape is not None
    return shape.gpus


def test_each_gpu_has_its_index_uuid_and_health() -> None:
    shape = inventory_of(node(), device()).spec
    assert [(gpu.memory_mib, gpu.divisible, gpu.uuid[:8]) for gpu in shape.gpus] == [
        (MIB, True, "GPU-9858"),
        (MIB, False, "GPU-7f64"),
        (MIB, True, "GPU-36b2"),
    ]
    assert inventory_of(node(), device()).sources.devices == "devices.scheduling.koordinator.sh"
    assert inventory_of(node()).sources.devices == "koordinator.sh/gpu-core"


def test_an_unhealthy_gpu_keeps_its_pods_and_takes_no_new_ones() -> None:
    state = make_state(node(), pod("on-unhealthy", 30, minor=1), pod("first", 100, 0), pod("last", 60, 2))
    state.apply([Upserted(device())])
    assert compute(state) == [0, 700, 400]
    assert not state.problems
    assert why(state, pod("small", 40), "node-1") is Reason.FITS
    assert why(state, pod("larger", 50), "node-1") is not Reason.FITS
    unhealthy = device()
    healthy = replace(unhealthy, gpus=tuple(replace(gpu, healthy=True) for gpu in unhealthy.gpus))
    state.apply([Upserted(healthy)])
    assert why(state, pod("larger", 50), "node-1") is Reason.FITS


@pytest.mark.parametrize("minors", [(0, 0), (-1, 0), (0, 64)])
def test_impossible_minor_numbers_close_the_node(minors: tuple[int, ...]) -> None:
    impossible = KoordinatorDevice(
        "node-1", tuple(KoordinatorGpu(minor, f"GPU-{i}", True) for i, minor in enumerate(minors))
    )
    with pytest.raises(InventoryError, match="minor numbers"):
        inventory_of(node(), impossible)
