"""Which GPU has which MIG instances: the layouts in the ConfigMap of NVIDIA's MIG manager."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.inventory.node_inventory import inventory_of
from extender.k8s.device_objects import MigLayoutsManifest
from extender.k8s.objects import MigLayouts, Node
from packing.model.node_spec import NodeSpec
from tests.extender.builders import H100, make_node

# As gpu-operator ships it (assets/state-mig-manager/0400_configmap.yaml at a22dbf67), in part; and the custom
# layouts of its chart (deployments/gpu-operator/values.yaml).
CONFIG = """
version: v1
mig-configs:
  all-disabled:
    - {devices: all, mig-enabled: false}

  all-enabled:
    - {devices: all, mig-enabled: true, mig-devices: {}}

  all-1g.10gb:
    # H100-80GB, H800-80GB, A100-80GB, A800-80GB
    - device-filter: ["0x233010DE", "0x233110DE", "0x232210DE", "0x20B210DE", "0x20B510DE", "0x20F310DE"]
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
    # A100-40GB, A800-40GB
    - device-filter: ["0x20B010DE", "0x20B110DE", "0x20F110DE", "0x20F610DE"]
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 4}

  all-1g.10gb.me:
    - {devices: all, mig-enabled: true, mig-devices: {"1g.10gb+me": 1}}

  all-3g.40gb:
    - {devices: all, mig-enabled: true, mig-devices: {"3g.40gb": 2}}

  all-balanced:
    # H100 NVL, H800 NVL
    - device-filter: ["0x232110DE", "0x233A10DE"]
      devices: all
      mig-enabled: true
      mig-devices: {"1g.12gb": 2, "2g.24gb": 1, "3g.47gb": 1}
    # H100-80GB, H800-80GB, A100-80GB, A800-80GB
    - device-filter: ["0x233010DE", "0x233110DE", "0x232210DE", "0x20B210DE", "0x20B510DE", "0x20F310DE"]
      devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    # A30-24GB
    - device-filter: "0x20B710DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.6gb": 2, "2g.12gb": 1}

  custom-mig:
    - {devices: [0], mig-enabled: false}
    - {devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 7}}
    - {devices: [2], mig-enabled: true, mig-devices: {"2g.20gb": 2, "3g.40gb": 1}}
    - {devices: [3], mig-enabled: true, mig-devices: {"3g.40gb": 1, "4g.40gb": 1}}
"""
NAME = "gpu-operator/default-mig-parted-config"
CUSTOM = {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 2, "nvidia.com/mig-3g.40gb": 2}
CUSTOM |= {"nvidia.com/mig-4g.40gb": 1, "nvidia.com/gpu": 1}


def manifest(config: str = CONFIG, node: str = "", name: str = NAME) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "nvidia-mig-manager", "nvidia.com/node-name": node}
    namespace, name = name.split("/")
    metadata = {"namespace": namespace, "name": name} | ({"labels": labels} if node else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.yaml": config}}


def layouts(config: str = CONFIG, node: str = "", name: str = NAME) -> MigLayouts:
    return MigLayoutsManifest.from_value(manifest(config, node, name)).record()


def mig_node(layout: str, devices: dict[str, int], *, state: str = "success", **labels: str) -> Node:
    """A node with this layout that advertises these devices."""
    given = {"nvidia.com/mig.config": layout, "nvidia.com/mig.config.state": state, **H100, **labels}
    return replace(
        make_node("n", 0, labels=given),
        allocatable={"cpu": "64", "memory": "512Gi"} | {name: str(n) for name, n in devices.items()},
    )


def devices_by_gpu(shape: NodeSpec) -> list[dict[str, int]]:
    """The devices of each resource on each GPU, as far as it is known."""
    gpus: list[dict[str, int]] = [{} for _ in shape.gpus]
    for pool in shape.pools:
        for gpu, n in zip(pool.gpus, pool.each, strict=True):
            gpus[gpu][pool.resource.removeprefix("nvidia.com/")] = n
    return gpus


CUSTOM_GPUS = [{"gpu": 1}, {"mig-1g.10gb": 7}, {"mig-2g.20gb": 2, "mig-3g.40gb": 1}]
CUSTOM_GPUS += [{"mig-3g.40gb": 1, "mig-4g.40gb": 1}]
BALANCED = {"mig-1g.10gb": 2, "mig-2g.20gb": 1, "mig-3g.40gb": 1}


@pytest.mark.parametrize(
    ("layout", "devices", "gpus"),
    [
        ("custom-mig", CUSTOM, CUSTOM_GPUS),
        ("all-balanced", {f"nvidia.com/{name}": 2 * n for name, n in BALANCED.items()}, [BALANCED] * 2),
        ("all-1g.10gb", {"nvidia.com/mig-1g.10gb": 14}, [{"mig-1g.10gb": 7}] * 2),
        ("all-1g.10gb", {"nvidia.com/mig-1g.10gb": 12}, [{"mig-1g.10gb": 4}] * 3),
        ("all-1g.10gb.me", {"nvidia.com/mig-1g.10gb.me": 3}, [{"mig-1g.10gb.me": 1}] * 3),
    ],
)
def test_a_layout_says_which_gpu_has_which_instances(
    layout: str, devices: dict[str, int], gpus: list[dict[str, int]]
) -> None:
    node = mig_node(layout, devices)
    assert devices_by_gpu(inventory_of(node, None, layouts()).spec) == gpus
    assert inventory_of(node, None, layouts()).sources.layout == f"configmap {NAME}"
    assert inventory_of(node).sources.layout == ""
    assert inventory_of(node, None, layouts()).problem == ""


NO_MATCH = "does not match MIG layout"
COUNT_4, COUNT_8 = {"nvidia.com/gpu.count": "4"}, {"nvidia.com/gpu.count": "8"}


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (mig_node("custom-mig", CUSTOM | {"nvidia.com/mig-1g.10gb": 6}), f"{NO_MATCH} custom-mig"),
        (mig_node("custom-mig", CUSTOM | {"nvidia.com/gpu": 2}, **COUNT_4), f"{NO_MATCH} custom-mig"),
        (mig_node("custom-mig", CUSTOM | {"nvidia.com/mig-1g.20gb": 1}), f"{NO_MATCH} custom-mig"),
        (mig_node("all-balanced", {"nvidia.com/mig-1g.5gb": 2}), f"{NO_MATCH} all-balanced"),
        (mig_node("all-3g.40gb", {"nvidia.com/gpu": 8}), f"{NO_MATCH} all-3g.40gb"),
        (mig_node("all-3g.40gb", {"nvidia.com/mig-3g.40gb": 4}, **COUNT_8), f"{NO_MATCH} all-3g.40gb"),
        (mig_node("all-9g.90gb", CUSTOM), "has no MIG layout all-9g.90gb"),
        (mig_node("custom-mig", {"nvidia.com/mig-1g.10gb": 6}, state="failed"), ""),
        (mig_node("custom-mig", CUSTOM, state="pending"), ""),
        (mig_node("all-disabled", {"nvidia.com/gpu": 7}, **COUNT_8), ""),
        (mig_node("all-enabled", {}), ""),
        (make_node("n"), ""),
    ],
)
def test_a_layout_that_does_not_match_allocatable_is_ignored(node: Node, problem: str) -> None:
    assert inventory_of(node, None, layouts()).spec == inventory_of(node).spec
    found = inventory_of(node, None, layouts()).problem
    assert problem in found
    assert bool(found) == bool(problem)


def test_a_layout_with_two_matching_expansions_is_ignored():
    """GPU 0 has the large instance on one model, GPU 1 on the other, and the node's model is unknown."""
    config = """
    mig-configs:
      either:
      - {device-filter: "0x1", devices: [0], mig-enabled: true, mig-devices: {"7g.80gb": 1}}
      - {device-filter: "0x1", devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 7}}
      - {device-filter: "0x2", devices: [1], mig-enabled: true, mig-devices: {"7g.80gb": 1}}
      - {device-filter: "0x2", devices: [0], mig-enabled: true, mig-devices: {"1g.10gb": 7}}
    """
    node = mig_node("either", {"nvidia.com/mig-7g.80gb": 1, "nvidia.com/mig-1g.10gb": 7})
    assert inventory_of(node, None, layouts(config)).spec == inventory_of(node).spec
    assert inventory_of(node, None, layouts(config)).problem


@pytest.mark.parametrize("instances", [{"1g.10gb": 8}, {"7g.80gb": 1, "1g.10gb": 1}, {"4g.40gb": 2}])
def test_a_layout_with_more_compute_than_a_gpu_is_ignored(instances: dict[str, int]) -> None:
    config = {"mig-configs": {"odd": [{"devices": "all", "mig-enabled": True, "mig-devices": instances}]}}
    node = mig_node("odd", {f"nvidia.com/mig-{name}": n for name, n in instances.items()})
    assert inventory_of(node, None, layouts(yaml.safe_dump(config))).spec == inventory_of(node).spec


LEGAL: list[dict[str, int] | None] = [
    None,
    {},
    {"7g.80gb": 1},
    {"4g.40gb": 1, "3g.40gb": 1},
    {"3g.40gb": 2},
    {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1},
    {"2g.20gb": 3, "1g.10gb+me": 1},
    {"1g.20gb": 1, "1g.10gb": 5},
    {"1g.10gb": 7},
]
FULL = [one for one in LEGAL if one]


@given(st.lists(st.sampled_from(LEGAL), max_size=7), st.sampled_from(FULL), st.data())
def test_random_layouts_match_what_is_advertised(
    first: list[dict[str, int] | None], last: dict[str, int], data: st.DataObject
) -> None:
    gpus = [*first, last]
    config = yaml.safe_dump({"mig-configs": {"any": data.draw(st.permutations(entries(gpus)))}})
    advertised: Counter[str] = Counter()
    for gpu in gpus:
        devices = {"gpu": 1} if gpu is None else {f"mig-{p.replace('+', '.')}": n for p, n in gpu.items()}
        advertised.update({f"nvidia.com/{name}": n for name, n in devices.items()})
    count = {"nvidia.com/gpu.count": str(len(gpus))}
    node = mig_node("any", advertised, **count)
    found = inventory_of(node, None, layouts(config)).spec
    assert {pool.resource: sum(pool.each) for pool in found.pools} == advertised
    assert [
        {name.removeprefix("mig-"): n for name, n in one.items() if name != "gpu"}
        for one in devices_by_gpu(found)
    ] == [{p.replace("+", "."): n for p, n in (gpu or {}).items()} for gpu in gpus]
    assert all(compute <= 1000 for compute in compute_by_gpu(found))
    name = data.draw(st.sampled_from(sorted(advertised)))
    other = mig_node("any", advertised | {name: advertised[name] + 1}, **count)
    assert inventory_of(other, None, layouts(config)).spec == inventory_of(other).spec
    assert inventory_of(other, None, layouts(config)).problem


def entries(gpus: list[dict[str, int] | None]) -> list[dict[str, Any]]:
    """A layout with an entry for each kind of GPU."""
    kinds = [one for index, one in enumerate(gpus) if one not in gpus[:index]]
    return [
        {"devices": [i for i, one in enumerate(gpus) if one == kind], "mig-enabled": kind is not None}
        | ({"mig-devices": kind} if kind is not None else {})
        for kind in kinds
    ]


def compute_by_gpu(shape: NodeSpec) -> list[int]:
    """Compute of all devices of each GPU."""
    compute = [0] * len(shape.gpus)
    for pool in shape.pools:
        for gpu, n in zip(pool.gpus, pool.each, strict=True):
            compute[gpu] += n * pool.compute_milli
    return compute
