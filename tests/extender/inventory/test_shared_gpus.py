"""Nodes whose GPUs a sharing system divides, as its register lists them."""

from __future__ import annotations

import json

import pytest

from extender.dialects.shared_gpus import InventoryError
from extender.inventory.node_inventory import inventory_of
from extender.k8s.objects import Node
from packing.model.reasons import Reason
from tests.extender.inventory.test_node_inventory import node


def annotated(annotations: dict[str, str], **allocatable: str) -> Node:
    return Node("n", annotations=annotations, allocatable=allocatable)


HAMI, VOLCANO = "hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"
VGPU = "nvidia.com/node-device-register"


@pytest.mark.parametrize(
    ("annotations", "allocatable"),
    [
        ({HAMI: "{}"}, {"nvidia.com/gpu": "10"}),
        ({HAMI: "[3]"}, {"nvidia.com/gpu": "10"}),
        ({HAMI: "[{"}, {"nvidia.com/gpu": "10"}),
        ({HAMI: "[" * 100_000}, {"nvidia.com/gpu": "10"}),
        ({HAMI: "GPU-1,10,32768:"}, {"nvidia.com/gpu": "10"}),
        ({HAMI: '[{"id":"a","count":-1,"devmem":1}]'}, {"nvidia.com/gpu": "10"}),
        ({HAMI: '[{"id":"a","count":10,"health":true}]'}, {"nvidia.com/gpu": "10"}),
        (
            {HAMI: '[{"id":"a","count":5,"devmem":1},{"id":"a","count":5,"devmem":1}]'},
            {"nvidia.com/gpu": "10"},
        ),
        ({VOLCANO: "GPU-1,10:"}, {"volcano.sh/vgpu-number": "10"}),
        ({VOLCANO: "GPU-1,10,much,T4,true,hami-core:"}, {"volcano.sh/vgpu-number": "10"}),
        ({VGPU: "nothing"}, {"nvidia.com/vgpu-number": "10"}),
        ({VGPU: "[" * 100_000}, {"nvidia.com/vgpu-number": "10"}),
        ({VGPU: '[{"id":0}]'}, {"nvidia.com/vgpu-number": "10"}),
        (
            {VGPU: "[]", "nvidia.com/node-config-info": '{"memoryFactor":1024}'},
            {"nvidia.com/vgpu-number": "10"},
        ),
        ({}, {"aliyun.com/gpu-mem": "30"}),
        ({}, {"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-count": "2"}),
        ({}, {"koordinator.sh/gpu-core": "150", "koordinator.sh/gpu-memory": "30Gi"}),
        ({}, {"koordinator.sh/gpu-core": "100"}),
        (
            {},
            {
                "aliyun.com/gpu-mem": "30",
                "aliyun.com/gpu-count": "2",
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory": "9Gi",
            },
        ),
    ],
)
def test_an_impossible_register_is_an_error(annotations, allocatable):
    with pytest.raises(InventoryError):
        inventory_of(annotated(annotations, **allocatable))


@pytest.mark.parametrize(
    "labels",
    [
        {"stowage.dev/gpu-sharing": "true"},
        {
            "stowage.dev/gpu-sharing": "true",
            "nvidia.com/gpu.count": "4",
            "nvidia.com/gpu.product": "Tesla-T4-SHARED",
            "nvidia.com/gpu.replicas": "4",
        },
    ],
)
def test_a_node_shared_by_stowage_must_label_its_gpus(labels):
    with pytest.raises(InventoryError, match=r"stowage\.dev/gpu-sharing"):
        inventory_of(node(labels))


REGISTERS = {
    HAMI: '[{"id":"a","count":10,"devmem":1000,"devcore":100,"health":true}]',
    VOLCANO: "GPU-1,10,32768,T4,true,hami-core:",
    VGPU: '[{"id":0,"type":"NVIDIA A10","uuid":"a","core":100,"memory":23028,"number":10,"healthy":true}]',
}


@pytest.mark.parametrize("register", REGISTERS)
def test_a_register_without_a_device_plugin_is_ignored(register):
    assert inventory_of(annotated({register: REGISTERS[register]})).spec.gpus == ()


@pytest.mark.parametrize("device", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"])
@pytest.mark.parametrize("register", REGISTERS)
def test_a_register_beside_nvidias_devices_closes_the_node_and_keeps_its_gpus(register, device):
    """Pods of the sharing system may still run, so their GPUs must not be allocated again."""
    node = annotated({register: REGISTERS[register]}, **{device: "1"})
    found = inventory_of(node)
    assert (found.spec.blocked, len(found.spec.gpus) > 0) == (Reason.UNREADABLE, True)
    assert found.spec.sharing_resource
    assert "accepts no new pods" in found.problem
    assert register in found.problem


def test_gpus_in_mig_mode_belong_to_nvidias_plugin():
    listed = REGISTERS[VGPU].replace('"healthy"', '"mig":true,"healthy"')
    found = inventory_of(annotated({VGPU: listed}, **{"nvidia.com/mig-1g.10gb": "7"})).spec
    assert (found.blocked, found.sharing_resource) == (Reason.FITS, "")


def hami_gpus(*healthy: bool, count: int = 10) -> str:
    return json.dumps(
        [
            {"id": f"GPU-{i}", "index": i, "count": count, "devmem": 40960, "devcore": 100, "health": one}
            for i, one in enumerate(healthy)
        ]
    )


GONE = "Deleted_2026.01.01 00:00:00"


@pytest.mark.parametrize(
    ("healthy", "count", "advertised", "handshake", "takes"),
    [
        ((True, True), 10, 20, "", (0, 1)),
        ((True, True), 10, 10, "", (0, 1)),  # a GPU is unhealthy, and not yet listed as unhealthy
        ((True, False), 10, 10, "", (0,)),
        ((True, False), 2, 2, "", (0,)),  # as many as there are GPUs, and as the healthy one has shares
        ((True,) + (False,) * 9, 10, 10, "", (0,)),
        ((True, True), 2, 2, "", ()),  # no GPU is listed as unhealthy: perhaps a leftover
        ((True, True), 10, 1, "", ()),
        ((True, False), 10, 1, "", ()),
        ((True, True), 1, 2, "", (0, 1)),  # whole GPUs with either plugin
        ((True, True), 10, 20, GONE, ()),
        ((True, True), 10, 2, GONE, ()),  # most likely uninstalled, but its pods may still run
        ((True, False), 2, 2, GONE, ()),
    ],
)
def test_a_hami_register_that_may_be_a_leftover_closes_the_node(healthy, count, advertised, handshake, takes):
    annotations = {HAMI: hami_gpus(*healthy, count=count), "hami.io/node-handshake": handshake}
    found = inventory_of(annotated(annotations, **{"nvidia.com/gpu": str(advertised)}))
    assert (found.spec.sharing_resource, len(found.spec.gpus)) == ("nvidia.com/gpu", len(healthy))
    if takes:
        assert found.spec.blocked is Reason.FITS
        assert tuple(i for i, gpu in enumerate(found.spec.gpus) if gpu.divisible) == takes
    else:
        assert found.spec.blocked is Reason.UNREADABLE
        assert f"remove annotation {HAMI}" in found.problem


@pytest.mark.parametrize(
    ("gpus", "blocked"), [("", Reason.UNREADABLE), ("1", Reason.UNREADABLE), ("3", Reason.FITS)]
)
def test_gpus_that_may_be_advertised_twice_close_the_node(gpus, blocked):
    labels = {"nvidia.com/gpu.count": gpus} if gpus else {}
    allocatable = {"volcano.sh/vgpu-number": "10", "nvidia.com/gpu": "2"}
    if gpus == "1":
        allocatable["nvidia.com/gpu"] = "1"
    annotations = {VOLCANO: REGISTERS[VOLCANO]}
    found = inventory_of(Node("n", labels=labels, annotations=annotations, allocatable=allocatable))
    assert found.spec.blocked is blocked


def test_a_node_shared_by_stowage_with_fewer_gpus_than_labeled_has_an_unhealthy_one():
    labels = {
        "stowage.dev/gpu-sharing": "true",
        "nvidia.com/gpu.count": "4",
        "nvidia.com/gpu.product": "NVIDIA-L40S",
    }
    found = inventory_of(node(labels, **{"nvidia.com/gpu": "3"})).spec
    assert (len(found.gpus), found.blocked) == (4, Reason.UNHEALTHY_GPU)
    assert inventory_of(node(labels, **{"nvidia.com/gpu": "4"})).spec.blocked is Reason.FITS
    assert inventory_of(node(labels)).spec.blocked is Reason.FITS  # without NVIDIA's plugin
