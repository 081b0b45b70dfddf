"""A node beyond a limit is unreadable, with a short text, and costs little."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extender.dialects.shared_gpus import InventoryError
from extender.inventory.node_inventory import NodeInventory, inventory_of
from extender.k8s.objects import Node, Upserted
from extender.untrusted.limits import GPUS_PER_NODE, NAME, PROBLEM, RESOURCES
from packing.model.gpu_catalog import parse_product
from packing.model.nvlink import parse_islands
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod, make_state, why

HAMI, VOLCANO = "hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"
VGPU, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"
GPU = "nvidia.com/gpu"


def bounded(found: NodeInventory) -> None:
    shape = found.spec
    assert len(shape.gpus) <= GPUS_PER_NODE
    assert len(shape.pools) <= RESOURCES + 1
    assert sum(map(len, shape.islands)) <= GPUS_PER_NODE
    assert all(len(pool.gpus) <= GPUS_PER_NODE for pool in shape.pools)
    assert len(shape.product) <= NAME
    assert len(found.problem) <= PROBLEM


@pytest.mark.parametrize(
    ("labels", "allocatable"),
    [
        ({"nvidia.com/cuda.runtime-version.major": "999999999999999"}, {}),
        (
            {
                "nvidia.com/cuda.runtime-version.major": "12",
                "nvidia.com/cuda.runtime-version.minor": "9" * 15,
            },
            {},
        ),
        ({"stowage.dev/replicas-per-container": "999999999999999"}, {}),
        ({"nvidia.com/gpu.replicas": "999999999999999"}, {}),
        ({"nvidia.com/gpu.memory": "999999999999999"}, {}),
        ({"amd.com/gpu.vram": "²G"}, {"amd.com/gpu": "8"}),
        ({"amd.com/gpu.vram": "9" * 5000 + "G"}, {"amd.com/gpu": "8"}),
        (
            {
                "nvlink.feature.node.kubernetes.io/islands": "0-999",
                "nvlink.feature.node.kubernetes.io/gpus": "8",
            },
            {},
        ),
        ({"node.kubernetes.io/instance-type": "p5." + "x" * 100_000}, {}),
    ],
)
def test_impossible_numbers_in_labels_are_ignored(labels: dict[str, str], allocatable: dict[str, str]):
    """Some of these overflowed an array, which ended the watch."""
    node = Node(
        "n", labels=labels, allocatable={"cpu": "64", "memory": "512Gi"} | (allocatable or {GPU: "8"})
    )
    state = make_state(node, make_node("other"))
    assert why(state, make_pod("one"), "other") is Reason.FITS
    assert len(state.fleet.specs[0].gpus) == (1 if "nvidia.com/gpu.replicas" in labels else 8)


def entry(**keys: Any) -> dict[str, Any]:
    return {"id": "GPU-1", "count": 10, "devmem": 40960, "devcore": 100, "health": True} | keys


PROFILE = {
    "name": "1g.5gb",
    "memoryMB": 4864,
    "core": 14,
    "sliceCount": 1,
    "placements": [{"start": 0, "size": 1}],
}


@pytest.mark.parametrize(
    "register",
    [
        json.dumps([entry(id=f"GPU-{i}") for i in range(65)]),
        json.dumps([entry(id=f"GPU-{i}", devmem=1 << 24) for i in range(2)]),
        json.dumps([entry(id="x" * 129)]),
        json.dumps([entry(id=["GPU-1"])]),
        json.dumps([entry(type="x" * 129)]),
        json.dumps([entry(type={"a": 1})]),
        json.dumps([entry(count=True)]),
        json.dumps([entry(count=float("nan"))]),
        json.dumps([entry(count=1 << 21)]),
        json.dumps([entry(count="٣")]),
        json.dumps([entry(devcore="9" * 5000)]),
        "[" + json.dumps(entry())[:-1] + ',"index":' + "9" * 90_000 + "}]",
        json.dumps([entry(mode="mig", migProfiles=[PROFILE] * 65)]),
        json.dumps([entry(mode="mig", migProfiles=[PROFILE | {"placements": PROFILE["placements"] * 33}])]),
        json.dumps([entry(mode="mig", migProfiles=[PROFILE | {"name": "x" * 129}])]),
        "GPU-1,10,1,100,T4,0,true:" * 65,
        ":" * 90_000,
        json.dumps([entry(x=[[[[1]]]])]).replace("1]]]]", "[" * 50_000),
    ],
)
def test_a_register_that_exceeds_a_limit_closes_the_node_with_a_short_text(register: str):
    node = Node("n", annotations={HAMI: register}, allocatable={GPU: "10"})
    if register.strip(":"):
        with pytest.raises(InventoryError) as refused:
            inventory_of(node)
        assert len(str(refused.value)) <= PROBLEM
    else:
        with pytest.raises(InventoryError):
            inventory_of(node)
    state = make_state(node)
    assert why(state, make_pod("one", cpu="0"), "n") is Reason.UNREADABLE


@pytest.mark.parametrize(
    "name", [HAMI, VOLCANO, VGPU, "hami.io/node-handshake", f"{GPU}.replicas", f"{GPU}.product"]
)
def test_a_node_without_a_required_annotation_is_unreadable(name: str):
    sound = make_node("n")
    for left_out, reason in (((name,), Reason.UNREADABLE), (("example.com/notes",), Reason.FITS)):
        state = make_state(sound)
        state.apply([Upserted(replace(sound, unreadable=left_out))])
        assert why(state, make_pod("one"), "n") is reason
        assert ("n" in state.problems) == (reason is not Reason.FITS)


def test_a_product_is_parsed_in_one_pass():
    """A label with thousands of beginnings of MIG profiles took quadratic time."""
    assert len(parse_product("-MIG-1g.1gb" * 20_000 + "!").base) <= NAME


@pytest.mark.parametrize("value", ["0-999", "64", "0-63.64", "0-1_" * 100, "9" * 10_000, "٠-٣"])
def test_islands_name_no_more_gpus_than_a_node_has(value: str):
    with pytest.raises(ValueError, match="islands") as refused:
        parse_islands(value)
    assert len(str(refused.value)) < 700


def test_a_problem_that_persists_is_logged_once(caplog: pytest.LogCaptureFixture):
    node = replace(make_node("n"), unreadable=(HAMI,))
    state = make_state(node)
    for i in range(20):
        state.apply([Upserted(replace(node, labels={"flaps": str(i)}))])
    assert len(caplog.records) == 1
