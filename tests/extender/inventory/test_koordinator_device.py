"""Koordinator's Device: the GPUs of a node one by one, with their health."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations

import pytest
import yaml

from extender.cluster.state import State
from extender.inventory.node_inventory import shape_of, sources_of
from extender.inventory.shared_gpus import InventoryError
from extender.k8s.manifests import WireCards, WireNode, WirePod
from extender.k8s.objects import Card, Deleted, KoordinatorDevice, Listed, Node, Pod, Upserted
from extender.source.list_watch import CARDS, ListWatch
from packing.model.node_spec import Gpu
from packing.model.reasons import Reason
from tests.extender.builders import make_state, why

# docs/proposals/scheduling/20220629-fine-grained-device-scheduling.md of koordinator-sh/koordinator, with its
# second GPU sick and a third one.
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
  - health: true
    id: GPU-98583a5c-c155-9cf6-f955-03c189d3dbfb
    minor: 0
    resources:
      koordinator.sh/gpu-core: "100"
      koordinator.sh/gpu-memory: 15472384Ki
      koordinator.sh/gpu-memory-ratio: "100"
    type: gpu
  - health: false
    id: GPU-7f6410b9-bdf7-f9a5-de09-aa5ec31a7124
    minor: 1
    resources:
      koordinator.sh/gpu-core: "100"
      koordinator.sh/gpu-memory: 15472384Ki
      koordinator.sh/gpu-memory-ratio: "100"
    type: gpu
  - health: true
    id: GPU-36b27e44-b086-46f7-f2dc-73c36dc65991
    minor: 2
    resources:
      koordinator.sh/gpu-core: "100"
      koordinator.sh/gpu-memory: 15472384Ki
      koordinator.sh/gpu-memory-ratio: "100"
    type: gpu
  - health: true
    id: "0000:1f:00.2"
    minor: 0
    type: rdma
    resources: {koordinator.sh/rdma: "100"}
status: {}
"""
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
    return WireCards.model_validate(yaml.safe_load(DEVICE)).record()


def node() -> Node:
    return WireNode.model_validate(yaml.safe_load(NODE)).record()


def pod(name: str, core: int, minor: int | None = None) -> Pod:
    """A pod that asks for so much of one GPU; with ``minor`` it runs there."""
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
    return WirePod.model_validate(manifest).record()


def compute(state: State) -> list[int]:
    row = state.fleet.rows["node-1"]
    return [int(milli) for milli in state.fleet.arrays.compute[: len(gpus(state)), row]]


def gpus(state: State) -> tuple[Gpu, ...]:
    shape = state.fleet.specs[state.fleet.rows["node-1"]]
    assert shape is not None
    return shape.gpus


def test_each_gpu_has_its_place_its_name_and_its_health() -> None:
    shape = shape_of(node(), device())
    assert [(gpu.memory_mib, gpu.divisible, gpu.uuid[:8]) for gpu in shape.gpus] == [
        (MIB, True, "GPU-9858"),
        (MIB, False, "GPU-7f64"),
        (MIB, True, "GPU-36b2"),
    ]
    assert sources_of(node(), device()).devices == "devices.scheduling.koordinator.sh"
    assert sources_of(node()).devices == "koordinator.sh/gpu-core"


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_pod_is_where_its_minor_number_says_whatever_comes_first(order: tuple[int, ...]) -> None:
    """Without the Device, 2 would be a GPU that the node does not have: it has two, by its sums."""
    objects = (node(), device(), pod("runs", 50, minor=2))
    state = make_state()
    state.apply([Upserted(objects[index]) for index in order])
    assert compute(state) == [1000, 1000, 500]
    assert not state.problems


def test_a_sick_gpu_keeps_what_it_holds_and_takes_nothing() -> None:
    state = make_state(node(), pod("on-sick", 30, minor=1), pod("first", 100, 0), pod("last", 60, 2))
    state.apply([Upserted(device())])
    assert compute(state) == [0, 700, 400]
    assert not state.problems
    assert why(state, pod("small", 40), "node-1") is Reason.FITS
    assert why(state, pod("larger", 50), "node-1") is not Reason.FITS
    well = device()
    healthy = replace(well, gpus=tuple(replace(card, healthy=True) for card in well.gpus))
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


def test_a_device_without_koordinators_resources_closes_the_node_and_keeps_the_books() -> None:
    """Koordinator's pods may hold parts of the GPUs that NVIDIA's plugin advertises alone."""
    plain = replace(node(), allocatable={"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "3"})
    found = shape_of(plain, device())
    assert (found.sharing_resource, found.gpus) == ("koordinator.sh/gpu", shape_of(node(), device()).gpus)
    assert found.blocked is Reason.UNREADABLE
    bare = replace(plain, allocatable={"cpu": "64", "memory": "512Gi"})
    assert shape_of(bare, device()) == shape_of(bare)


@pytest.mark.parametrize("minors", [(0, 0), (-1, 0), (0, 64)])
def test_minor_numbers_that_cannot_be_true_close_the_node(minors: tuple[int, ...]) -> None:
    cards = KoordinatorDevice(
        "node-1", tuple(Card(minor, f"GPU-{i}", True) for i, minor in enumerate(minors))
    )
    with pytest.raises(InventoryError, match="minor numbers"):
        shape_of(node(), cards)


def test_a_gap_in_the_minor_numbers_takes_nothing() -> None:
    one = device()
    shape = shape_of(node(), replace(one, gpus=one.gpus[2:]))
    assert [gpu.divisible for gpu in shape.gpus] == [False, False, True]


def test_it_is_listed_as_the_api_server_has_it() -> None:
    page = {"metadata": {"resourceVersion": "7"}, "items": [yaml.safe_load(DEVICE)]}
    protocol = ListWatch(CARDS)
    assert protocol.next_request().path == "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    upserted, listed = protocol.page(json.dumps(page).encode())
    assert upserted == Upserted(device())
    assert listed == Listed("Device", frozenset({"node-1"}))
    change = {"type": "DELETED", "object": yaml.safe_load(DEVICE)}
    assert protocol.chunk(json.dumps(change).encode() + b"\n") == [Deleted("Device", "node-1")]
