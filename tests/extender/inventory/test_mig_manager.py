"""Which GPU has which MIG instances: the layouts in the ConfigMap of NVIDIA's MIG manager."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.explain.node import view_node
from extender.inventory.node_inventory import inventory_of, shape_of, sources_of
from extender.k8s.manifests import WireMigLayouts
from extender.k8s.mig_config import layouts_of
from extender.k8s.objects import Deleted, Listed, MigLayouts, Node, Upserted
from extender.source.list_watch import ListWatch, mig_layouts
from extender.source.snapshot import Snapshot
from extender.untrusted.limits import MIG_CONFIG, MIG_LAYOUTS, PROBLEM
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from tests.extender.builders import H100, make_node, make_pod, make_state, why

# As gpu-operator ships it (assets/state-mig-manager/0400_configmap.yaml at a22dbf67), in part; and the custom
# layouts of its chart (deployments/gpu-operator/values.yaml).
CONFIG = """
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false

  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}

  all-1g.10gb:
    # H100-80GB, H800-80GB, A100-80GB, A800-80GB
    - device-filter: ["0x233010DE", "0x233110DE", "0x232210DE", "0x20B210DE", "0x20B510DE", "0x20F310DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7

    # A100-40GB, A800-40GB
    - device-filter: ["0x20B010DE", "0x20B110DE", "0x20F110DE", "0x20F610DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 4

  all-1g.10gb.me:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb+me": 1

  all-3g.40gb:
    - devices: all
      mig-enabled: true
      mig-devices:
        "3g.40gb": 2

  all-balanced:
    # H100 NVL, H800 NVL
    - device-filter: ["0x232110DE", "0x233A10DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.12gb": 2
        "2g.24gb": 1
        "3g.47gb": 1

    # H100-80GB, H800-80GB, A100-80GB, A800-80GB
    - device-filter: ["0x233010DE", "0x233110DE", "0x232210DE", "0x20B210DE", "0x20B510DE", "0x20F310DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "2g.20gb": 1
        "3g.40gb": 1

    # A30-24GB
    - device-filter: "0x20B710DE"
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.6gb": 2
        "2g.12gb": 1

  custom-mig:
    - devices: [0]
      mig-enabled: false
    - devices: [1]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
    - devices: [2]
      mig-enabled: true
      mig-devices:
        "2g.20gb": 2
        "3g.40gb": 1
    - devices: [3]
      mig-enabled: true
      mig-devices:
        "3g.40gb": 1
        "4g.40gb": 1
"""
NAME = "gpu-operator/default-mig-parted-config"
CUSTOM = {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 2, "nvidia.com/mig-3g.40gb": 2}
CUSTOM |= {"nvidia.com/mig-4g.40gb": 1, "nvidia.com/gpu": 1}


def manifest(config: str = CONFIG, node: str = "") -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "nvidia-mig-manager", "nvidia.com/node-name": node}
    namespace, name = NAME.split("/")
    metadata = {"namespace": namespace, "name": name} | ({"labels": labels} if node else {})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"config.yaml": config},
    }


def layouts(config: str = CONFIG, node: str = "") -> MigLayouts:
    return WireMigLayouts.model_validate(manifest(config, node)).record()


def divided(layout: str, devices: dict[str, int], *, state: str = "success", **labels: str) -> Node:
    """A node that has been given this layout, and advertises these devices."""
    given = {"nvidia.com/mig.config": layout, "nvidia.com/mig.config.state": state, **H100, **labels}
    return replace(
        make_node("n", 0, labels=given),
        allocatable={"cpu": "64", "memory": "512Gi"} | {name: str(n) for name, n in devices.items()},
    )


def carried(shape: NodeSpec) -> list[dict[str, int]]:
    """The devices of each resource on each GPU, where that is known."""
    gpus: list[dict[str, int]] = [{} for _ in shape.gpus]
    for pool in shape.pools:
        for gpu, n in zip(pool.gpus, pool.each, strict=True):
            gpus[gpu][pool.resource.removeprefix("nvidia.com/")] = n
    return gpus


BALANCED = {"mig-1g.10gb": 2, "mig-2g.20gb": 1, "mig-3g.40gb": 1}


@pytest.mark.parametrize(
    ("layout", "devices", "gpus"),
    [
        (
            "custom-mig",
            CUSTOM,
            [
                {"gpu": 1},
                {"mig-1g.10gb": 7},
                {"mig-2g.20gb": 2, "mig-3g.40gb": 1},
                {"mig-3g.40gb": 1, "mig-4g.40gb": 1},
            ],
        ),
        ("all-balanced", {f"nvidia.com/{name}": 2 * n for name, n in BALANCED.items()}, [BALANCED] * 2),
        ("all-1g.10gb", {"nvidia.com/mig-1g.10gb": 14}, [{"mig-1g.10gb": 7}] * 2),
        ("all-1g.10gb", {"nvidia.com/mig-1g.10gb": 12}, [{"mig-1g.10gb": 4}] * 3),
        ("all-1g.10gb.me", {"nvidia.com/mig-1g.10gb.me": 3}, [{"mig-1g.10gb.me": 1}] * 3),
    ],
)
def test_a_layout_says_which_gpu_has_which_instances(
    layout: str, devices: dict[str, int], gpus: list[dict[str, int]]
) -> None:
    node = divided(layout, devices)
    assert carried(shape_of(node, None, layouts())) == gpus
    assert sources_of(node, None, layouts()).layout == f"configmap {NAME}"
    assert sources_of(node).layout == ""
    assert inventory_of(node, None, layouts()).doubt == ""


def test_under_the_single_strategy_too() -> None:
    """Guessed, eight of them would be on four GPUs, which could have two of them each."""
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", "nvidia.com/gpu.count": "8"}
    half = (
        'version: v1\nmig-configs: {half: [{devices: all, mig-enabled: true, mig-devices: {"3g.40gb": 1}}]}'
    )
    node = divided("half", {"nvidia.com/gpu": 8}, **product)
    assert len(shape_of(node).gpus) == 4
    assert carried(shape_of(node, None, layouts(half))) == [{"gpu": 1}] * 8


def test_replicas_of_instances_are_on_the_gpu_of_the_instance() -> None:
    labels = {"nvidia.com/mig-3g.40gb.replicas": "3", "nvidia.com/mig-3g.40gb.product": "H100-SHARED"}
    node = divided("all-3g.40gb", {"nvidia.com/mig-3g.40gb": 12}, **labels)
    assert carried(shape_of(node, None, layouts())) == [{"mig-3g.40gb": 6}] * 2


def test_a_later_entry_counts_and_a_gpu_in_no_entry_is_whole() -> None:
    config = """
    mig-configs:
      mostly:
      - {devices: [0, 1, 2], mig-enabled: true, mig-devices: {"7g.80gb": 1}}
      - {devices: [1], mig-enabled: false}
    """
    node = divided("mostly", {"nvidia.com/mig-7g.80gb": 2, "nvidia.com/gpu": 2})
    found = shape_of(replace(node, labels=node.labels | {"nvidia.com/gpu.count": "4"}), None, layouts(config))
    assert carried(found) == [{"mig-7g.80gb": 1}, {"gpu": 1}, {"mig-7g.80gb": 1}, {"gpu": 1}]


@pytest.mark.parametrize(
    ("node", "doubt"),
    [
        (divided("custom-mig", CUSTOM | {"nvidia.com/mig-1g.10gb": 6}), "not what MIG layout custom-mig"),
        (
            divided("custom-mig", CUSTOM | {"nvidia.com/gpu": 2}, **{"nvidia.com/gpu.count": "4"}),
            "not what MIG layout custom-mig",
        ),
        (divided("custom-mig", CUSTOM | {"nvidia.com/mig-1g.20gb": 1}), "not what MIG layout custom-mig"),
        (divided("all-balanced", {"nvidia.com/mig-1g.5gb": 2}), "not what MIG layout all-balanced"),
        (divided("all-3g.40gb", {"nvidia.com/gpu": 8}), "not what MIG layout all-3g.40gb"),
        (
            divided("all-3g.40gb", {"nvidia.com/mig-3g.40gb": 4}, **{"nvidia.com/gpu.count": "8"}),
            "not what MIG layout all-3g.40gb",
        ),
        (divided("all-9g.90gb", CUSTOM), "has no MIG layout all-9g.90gb"),
        (divided("custom-mig", {"nvidia.com/mig-1g.10gb": 6}, state="failed"), ""),
        (divided("custom-mig", CUSTOM, state="pending"), ""),
        (divided("all-disabled", {"nvidia.com/gpu": 7}, **{"nvidia.com/gpu.count": "8"}), ""),
        (divided("all-enabled", {}), ""),
        (make_node("n"), ""),
    ],
)
def test_what_does_not_agree_exactly_is_not_heard(node: Node, doubt: str) -> None:
    assert shape_of(node, None, layouts()) == shape_of(node)
    said = inventory_of(node, None, layouts()).doubt
    assert doubt in said
    assert bool(said) == bool(doubt)


def test_of_two_readings_that_agree_none_is_heard():
    """GPU 0 is large on one model, GPU 1 on the other, and which model the node has is not known."""
    config = """
    mig-configs:
      either:
      - {device-filter: "0x1", devices: [0], mig-enabled: true, mig-devices: {"7g.80gb": 1}}
      - {device-filter: "0x1", devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 7}}
      - {device-filter: "0x2", devices: [1], mig-enabled: true, mig-devices: {"7g.80gb": 1}}
      - {device-filter: "0x2", devices: [0], mig-enabled: true, mig-devices: {"1g.10gb": 7}}
    """
    node = divided("either", {"nvidia.com/mig-7g.80gb": 1, "nvidia.com/mig-1g.10gb": 7})
    assert shape_of(node, None, layouts(config)) == shape_of(node)
    assert inventory_of(node, None, layouts(config)).doubt


@pytest.mark.parametrize(
    "text", ["", "mig-configs", "mig-configs: 3", "[", "- a", "a: *b", "[" * 100_000, "\0"]
)
def test_a_text_that_is_no_configuration_has_no_layouts(text: str) -> None:
    found, problem = layouts_of(text)
    assert (dict(found), bool(problem)) == ({}, True)


@pytest.mark.parametrize(
    "entry",
    [
        "{devices: some, mig-enabled: true}",
        "{devices: [64], mig-enabled: true}",
        "{devices: [-1], mig-enabled: true}",
        "{devices: [true], mig-enabled: true}",
        "{mig-enabled: true}",
        "{devices: all}",
        "{devices: all, mig-enabled: 1}",
        '{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 1000000000000}}',
        '{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": -1}}',
        '{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": many}}',
        '{devices: all, mig-enabled: true, mig-devices: ["1g.10gb"]}',
        '{devices: all, mig-enabled: false, mig-devices: {"1g.10gb": 1}}',
        "{device-filter: 7, devices: all, mig-enabled: true}",
        "all",
    ],
)
def test_a_layout_that_cannot_be_read_is_left_out_alone(entry: str) -> None:
    found, problem = layouts_of(f"mig-configs:\n  broken: [{entry}]\n  all-disabled: [{WHOLE}]")
    assert list(found) == ["all-disabled"]
    assert problem.startswith("layout 'broken' is left out: ")


WHOLE = "{devices: all, mig-enabled: false}"


@pytest.mark.parametrize("instances", [{"1g.10gb": 8}, {"7g.80gb": 1, "1g.10gb": 1}, {"4g.40gb": 2}])
def test_nothing_has_more_compute_than_a_gpu(instances: dict[str, int]) -> None:
    config = {"mig-configs": {"odd": [{"devices": "all", "mig-enabled": True, "mig-devices": instances}]}}
    node = divided("odd", {f"nvidia.com/mig-{name}": n for name, n in instances.items()})
    assert shape_of(node, None, layouts(yaml.safe_dump(config))) == shape_of(node)


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
def test_whatever_the_layout_the_gpus_have_what_is_advertised(
    first: list[dict[str, int] | None], last: dict[str, int], data: st.DataObject
) -> None:
    gpus = [*first, last]
    config = yaml.safe_dump({"mig-configs": {"any": data.draw(st.permutations(entries(gpus)))}})
    advertised: Counter[str] = Counter()
    for gpu in gpus:
        devices = {"gpu": 1} if gpu is None else {f"mig-{p.replace('+', '.')}": n for p, n in gpu.items()}
        advertised.update({f"nvidia.com/{name}": n for name, n in devices.items()})
    count = {"nvidia.com/gpu.count": str(len(gpus))}
    node = divided("any", advertised, **count)
    found = shape_of(node, None, layouts(config))
    assert {pool.resource: sum(pool.each) for pool in found.pools} == advertised
    assert [
        {name.removeprefix("mig-"): n for name, n in one.items() if name != "gpu"} for one in carried(found)
    ] == [{p.replace("+", "."): n for p, n in (gpu or {}).items()} for gpu in gpus]
    assert all(compute <= 1000 for compute in on_each(found))
    name = data.draw(st.sampled_from(sorted(advertised)))
    other = divided("any", advertised | {name: advertised[name] + 1}, **count)
    assert shape_of(other, None, layouts(config)) == shape_of(other)
    assert inventory_of(other, None, layouts(config)).doubt


def entries(gpus: list[dict[str, int] | None]) -> list[dict[str, Any]]:
    """A layout with an entry for each kind of GPU."""
    kinds = [one for index, one in enumerate(gpus) if one not in gpus[:index]]
    return [
        {"devices": [i for i, one in enumerate(gpus) if one == kind], "mig-enabled": kind is not None}
        | ({"mig-devices": kind} if kind is not None else {})
        for kind in kinds
    ]


def on_each(shape: NodeSpec) -> list[int]:
    """Compute of all devices of each GPU."""
    compute = [0] * len(shape.gpus)
    for pool in shape.pools:
        for gpu, n in zip(pool.gpus, pool.each, strict=True):
            compute[gpu] += n * pool.compute_milli
    return compute


def known(state: State) -> bool:
    view = view_node(state, "n", 0.0)
    assert view is not None
    assert view.read_from is not None
    return bool(view.read_from.layout) and all(pool.each for pool in view.pools)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_it_does_not_matter_what_comes_first(order: tuple[int, ...]) -> None:
    small = "nvidia.com/mig-1g.10gb"
    pod = make_pod("p", 5, resource=small, node_name="n")
    objects = (divided("custom-mig", CUSTOM), layouts(), pod)
    state = make_state()
    state.apply([Upserted(objects[index]) for index in order])
    row = state.fleet.rows["n"]
    assert state.fleet.arrays.compute[:4, row].tolist() == [1000, 1000 - 5 * 142, 1000, 1000]
    assert state.fleet.arrays.free_devices[state.fleet.names.resources[small], row] == 2
    assert not state.problems
    assert known(state)


def test_nodes_follow_their_label_and_the_configmap_at_once() -> None:
    state = make_state(divided("custom-mig", CUSTOM))
    assert not known(state)
    state.apply([Upserted(layouts())])
    assert known(state)
    state.apply([Upserted(divided("all-3g.40gb", CUSTOM))])
    assert not known(state)
    assert "not what MIG layout all-3g.40gb" in state.problems["n"]
    assert why(state, make_pod("p", 2, resource="nvidia.com/mig-2g.20gb"), "n") is Reason.FITS
    three = {"nvidia.com/mig-3g.40gb": 4}
    state.apply([Upserted(divided("all-3g.40gb", three))])
    assert known(state)
    assert not state.problems
    state.apply([Upserted(layouts(CONFIG.replace('"3g.40gb": 2', '"3g.40gb": 1')))])
    assert known(state)
    assert len(shape(state).gpus) == 4


def shape(state: State) -> NodeSpec:
    found = state.fleet.specs[state.fleet.rows["n"]]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (Deleted("ConfigMap", ""), "is not there"),
        (Listed("ConfigMap", frozenset()), "is not there"),
        (Upserted(layouts("[")), f"{NAME}: config.yaml is not YAML"),
        (
            Upserted(layouts(CONFIG.replace('"1g.10gb": 7', '"1g.10gb": 700'))),
            "layout 'custom-mig' is left out",
        ),
    ],
)
def test_without_a_layout_allocatable_alone_counts(event: Any, problem: str) -> None:
    state = make_state(divided("custom-mig", CUSTOM))
    guessed = shape(state)
    state.apply([Upserted(layouts()), event])
    assert shape(state) == guessed
    assert problem in state.problems["MIG layouts of all nodes"]
    state.apply([Upserted(layouts())])
    assert known(state)
    assert not state.problems


def test_a_configmap_that_was_never_there_is_a_problem() -> None:
    state = make_state(divided("custom-mig", CUSTOM))
    state.apply([Listed("ConfigMap", frozenset())])
    assert "is not there" in state.problems["MIG layouts of all nodes"]


def test_a_node_may_have_a_configmap_of_its_own() -> None:
    state = make_state(divided("custom-mig", CUSTOM))
    state.apply([Upserted(layouts(node="n")), Listed("ConfigMap", frozenset({"n"}))])
    assert known(state)
    assert not state.problems
    state.apply([Upserted(layouts("[", node="other")), Deleted("ConfigMap", "n")])
    assert not known(state)
    assert set(state.problems) == {"MIG layouts of n", "MIG layouts of other"}
    state.apply([Deleted("ConfigMap", "other"), Deleted("Node", "n")])
    assert not state.problems


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("default-mig-parted-config", {"fieldSelector": "metadata.name=default-mig-parted-config"}),
        ("", {"labelSelector": "app.kubernetes.io/component=nvidia-mig-manager"}),
    ],
)
def test_it_is_listed_as_the_api_server_has_it(name: str, selector: dict[str, str]) -> None:
    page = {"metadata": {"resourceVersion": "7"}, "items": [manifest()]}
    protocol = ListWatch(mig_layouts("gpu-operator", name))
    request = protocol.next_request()
    assert request.path == "/api/v1/namespaces/gpu-operator/configmaps"
    assert request.query.items() >= selector.items()
    assert protocol.page(json.dumps(page).encode()) == [
        Upserted(layouts()),
        Listed("ConfigMap", frozenset({""})),
    ]
    assert protocol.next_request().query.items() >= selector.items()
    change = {"type": "DELETED", "object": manifest()}
    assert protocol.chunk(json.dumps(change).encode() + b"\n") == [Deleted("ConfigMap", "")]


def test_a_snapshot_may_have_it_among_other_configmaps() -> None:
    other = {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "-----"}}
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": [other, manifest(), other]}), "cluster.json")
    assert list(snapshot.devices.values()) == [layouts()]
    assert not snapshot.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mig-configs: " + "[" * 60_000, "deep"),
        ("a: &a [x]\nmig-configs: *a", "anchors"),
        ("mig-configs: {a: [" + "x," * (MIG_CONFIG // 2 - 20) + "]}", "too many values"),
        ("#" * (MIG_CONFIG + 1), "characters"),
        ("mig-configs: {" + "".join(f"l{n}: []," for n in range(MIG_LAYOUTS + 1)) + "}", "layouts"),
        ("mig-configs: {}\n---\nmig-configs: {}", "no mig-configs"),
    ],
)
def test_a_config_past_its_limits_is_one_short_problem(text: str, problem: str) -> None:
    found, said = layouts_of(text)
    assert not found
    assert problem in said
    assert len(said) < 150


def test_a_layout_past_its_limits_is_left_out_with_a_short_problem() -> None:
    long = [
        f"{'n' * 1000}: [7]",
        "many: [" + f"{WHOLE}," * 65 + "]",
        f"index: [{{devices: {[0] * 65}, mig-enabled: true}}]",
        f"model: [{{devices: all, device-filter: {['x'] * 65}, mig-enabled: true}}]",
    ]
    found, problem = layouts_of("mig-configs:\n  " + "\n  ".join([*long, f"good: [{WHOLE}]"]))
    assert list(found) == ["good"]
    assert len(problem) <= PROBLEM
