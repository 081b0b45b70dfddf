"""Koordinator's Device lists the GPUs of a node with their health."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations

import pytest
import yaml

from extender.cluster.state import State
from extender.dialects.shared_gpus import InventoryError
from extender.inventory.node_inventory import inventory_of
from extender.k8s.device_objects import KoordinatorDeviceManifest
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Deleted, KoordinatorDevice, KoordinatorGpu, Listed, Node, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.source.list_watch import ListWatch
from extender.source.watched_kinds import WATCHED_KINDS
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


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_pod_is_on_the_gpu_of_its_minor_number_in_any_order_of_events(order: tuple[int, ...]) -> None:
    """Without the Device, the node has two GPUs by its sums, so it would have no GPU with the number 2."""
    objects = (node(), device(), pod("runs", 50, minor=2))
    state = make_state()
    state.apply([Upserted(objects[index]) for index in order])
    assert compute(state) == [1000, 1000, 500]
    assert not state.problems


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


def test_without_the_device_the_sums_count_again() -> None:
    state = make_state(node())
    for gone in (Deleted("Device", "node-1"), Listed("Device", frozenset())):
        state.apply([Upserted(device())])
        assert len(gpus(state)) == 3
        state.apply([gone])
        assert len(gpus(state)) == 2
    state.apply([Upserted(device()), Deleted("Node", "node-1"), Upserted(node())])
    assert len(gpus(state)) == 3


def test_a_device_without_koordinators_resources_closes_the_node_and_keeps_its_gpus() -> None:
    """Koordinator's pods may still hold parts of the GPUs that only NVIDIA's plugin advertises."""
    plain = replace(node(), allocatable={"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "3"})
    found = inventory_of(plain, device()).spec
    assert (found.sharing_resource, found.gpus) == (
        "koordinator.sh/gpu",
        inventory_of(node(), device()).spec.gpus,
    )
    assert found.blocked is Reason.UNREADABLE
    bare = replace(plain, allocatable={"cpu": "64", "memory": "512Gi"})
    assert inventory_of(bare, device()).spec == inventory_of(bare).spec


@pytest.mark.parametrize("minors", [(0, 0), (-1, 0), (0, 64)])
def test_impossible_minor_numbers_close_the_node(minors: tuple[int, ...]) -> None:
    impossible = KoordinatorDevice(
        "node-1", tuple(KoordinatorGpu(minor, f"GPU-{i}", True) for i, minor in enumerate(minors))
    )
    with pytest.raises(InventoryError, match="minor numbers"):
        inventory_of(node(), impossible)


def test_a_gap_in_the_minor_numbers_takes_no_pods() -> None:
    one = device()
    shape = inventory_of(node(), replace(one, gpus=one.gpus[2:])).spec
    assert [gpu.divisible for gpu in shape.gpus] == [False, False, True]


def test_the_device_is_listed_and_watched() -> None:
    page = {"metadata": {"resourceVersion": "7"}, "items": [yaml.safe_load(DEVICE)]}
    protocol = ListWatch(WATCHED_KINDS["Device"])
    assert protocol.next_request().path == "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    upserted, listed = protocol.page(json.dumps(page).encode())
    assert upserted == Upserted(device())
    assert listed == Listed("Device", frozenset({"node-1"}))
    change = {"type": "DELETED", "object": yaml.safe_load(DEVICE)}
    assert protocol.chunk(json.dumps(change).encode() + b"\n") == [Deleted("Device", "node-1")]
