"""What a node offers with another MIG layout, and when it shows one."""

from __future__ import annotations

from typing import Any

import pytest

from extender.inventory.mig_layouts import can_change, named_layouts
from extender.inventory.node_inventory import inventory_of
from extender.inventory.node_state import MIG_CHANGE, MigChange, NodeLayout, mig_change_of
from extender.k8s.objects import MigGroup, MigLayouts, Node
from packing.model.node_spec import NodeSpec

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/mig.config": "all-disabled",
    "nvidia.com/mig.config.state": "success",
    "nvidia.com/mig.strategy": "mixed",
}


def of(labels: dict[str, str] | None = None, **devices: Any) -> tuple[Node, NodeSpec]:
    allocatable = {"cpu": "64", "memory": "512Gi", **(devices.get("devices") or {GPU: "8"})}
    node = Node("n", labels=labels or LABELS, allocatable=allocatable)
    return node, inventory_of(node).spec


def group(instances: dict[str, int] | None, indices: tuple[int, ...] | None = None, *models: str) -> MigGroup:
    return MigGroup(indices, models, None if instances is None else tuple(instances.items()))


def test_the_layouts_of_a_configmap() -> None:
    """Those of other models, that are not certain, have no devices, or cannot be set are left out."""
    layouts = {
        "two": (group(None), group({"1g.10gb": 7}, (0, 1))),
        "filtered": (group({"3g.40gb": 2}, None, "0x2330"), group({"3g.20gb": 2}, None, "0x20b0")),
        "of-another-model": (group({"1g.5gb": 7}),),
        "too-much": (group({"3g.40gb": 3}),),
        "either": (group({"1g.10gb": 7}, None, "0x2330"), group({"3g.40gb": 2}, None, "0x2331")),
        "all-enabled": (group({}),),
        "no value of a label": (group({"3g.40gb": 2}),),
        "x" * 64: (group({"3g.40gb": 2}),),
    }
    found = named_layouts(*of(), MigLayouts("ns/config", layouts=layouts))
    assert {layout.name: dict(layout.devices) for layout in found} == {
        "two": {SMALL: 14, GPU: 6},
        "filtered": {LARGE: 16},
    }


@pytest.mark.parametrize(
    ("labels", "devices", "may"),
    [
        ({}, {GPU: "8"}, True),
        ({"nvidia.com/mig.config": ""}, {GPU: "8"}, True),
        ({"nvidia.com/mig.strategy": "none"}, {GPU: "8"}, False),
        ({"nvidia.com/gpu.product": "NVIDIA-L40S"}, {GPU: "8"}, False),
        ({"nvidia.com/gpu.replicas": "4"}, {GPU: "32"}, False),
        ({}, {GPU: "0", SMALL: "56"}, True),
    ],
)
def test_which_nodes_can_change(labels: dict[str, str], devices: dict[str, str], may: bool) -> None:
    assert can_change(*of(LABELS | labels, devices=devices)) == may


def test_a_change_closes_its_node_for_so_long_and_not_for_ever() -> None:
    change = MigChange(NodeLayout("a", {}), NodeLayout("b", {}), "drain", since=1000, until=1100)
    assert mig_change_of({MIG_CHANGE: change.text()}) == change
    assert [change.closes(now) for now in (0, 999, 1000, 1099, 1100)] == [False, True, True, True, False]
    endless = MigChange(NodeLayout("a", {}), NodeLayout("b", {}), "apply", since=1000, until=1e300)
    assert not endless.closes(1000 + 49 * 3600)
