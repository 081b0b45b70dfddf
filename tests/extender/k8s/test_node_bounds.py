"""What the author of a node writes is bounded: what is read of it, what is made of it, and what is said."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.inventory.node_inventory import Inventory, InventoryError, inventory_of, sources_of
from extender.k8s.mig_config import layouts_of
from extender.k8s.objects import Card, KoordinatorDevice, MigLayouts, Node, Upserted
from extender.k8s.quantity import QuantityError
from extender.k8s.taints import Taint
from extender.untrusted.limits import GPUS_PER_NODE, NAME, PROBLEM, RESOURCES
from packing.model.gpu_catalogue import parse_product, parse_profile
from packing.model.nvlink import parse_islands
from packing.model.reasons import Reason
from packing.policies.registry import POLICIES
from tests.extender.builders import make_node, make_pod, make_state, why
from tests.extender.counting import calls

HAMI, VOLCANO = "hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"
VGPU, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"
GPU = "nvidia.com/gpu"
LABELS = [
    *(
        f"{GPU}.{key}"
        for key in ("product", "count", "memory", "replicas", "clique", "sharing-strategy", "health")
    ),
    *("nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/mig-1g.10gb.memory"),
    *("nvidia.com/cuda.runtime-version.major", "nvidia.com/cuda.runtime-version.minor"),
    *("amd.com/gpu.vram", "amd.com/gpu.product-name", "node.kubernetes.io/instance-type"),
    *("cloud.google.com/gke-accelerator", "cloud.google.com/gke-gpu-partition-size"),
    *("cloud.google.com/gke-max-shared-clients-per-gpu", "cloud.google.com/gke-gpu-sharing-strategy"),
    *("nvlink.feature.node.kubernetes.io/islands", "nvlink.feature.node.kubernetes.io/gpus"),
    *("stowage.dev/gpu-sharing", "stowage.dev/replicas-per-container", "node.koordinator.sh/gpu-model"),
]
RESOURCE_NAMES = [
    *("cpu", "memory", GPU, f"{GPU}.shared", "amd.com/gpu", "gpu.intel.com/xe"),
    *("nvidia.com/mig-1g.10gb", "nvidia.com/mig-99g.9999gb", "nvidia.com/mig-3g.40gb.shared"),
    f"nvidia.com/mig-{'9' * 60}g.1gb",
    *("nvidia.com/vgpu-number", "volcano.sh/vgpu-number", "aliyun.com/gpu-mem", "aliyun.com/gpu-count"),
    *("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"),
]
LONG = st.sampled_from(["9", "-MIG-1g.1gb", "²", "0-9_"]).map(lambda text: text * 5000)
_TEXTS = st.one_of(
    st.text(max_size=40),
    LONG,
    st.sampled_from(
        [
            *(
                "",
                "0",
                "1",
                "2",
                "8",
                "64",
                "65",
                "999999999",
                "9" * 15,
                "9" * 5000,
                "-1",
                "1e9",
                "1E",
                "²",
                "٣",
            ),
            *(
                "true",
                "time-slicing",
                "mps",
                "pending",
                "success",
                "all-balanced",
                "Deleted_1",
                "none",
                "any",
            ),
            *(
                "NVIDIA-H100-80GB-HBM3",
                "Tesla-T4-SHARED",
                "X-MIG-1g.10gb",
                "X-MIG-99g.9999gb-SHARED",
                "1g.5gb",
            ),
            *(
                "-MIG-1g.1gb" * 20,
                "192G",
                "²G",
                "0-7",
                "0-999",
                "0-63",
                "0.1_2.3",
                "0-999_" * 9,
            ),
        ]
    ),
)


@st.composite
def any_text(draw: st.DrawFn) -> str:
    return draw(_TEXTS)


TEXTS = any_text()
_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.integers(0, 128),
        st.floats(),
        TEXTS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def any_json(draw: st.DrawFn) -> object:
    return draw(_JSON)


JSON = any_json()
FIRST = ("id", "count", "devmem", "health")
KEYS = [
    "id",
    "index",
    "count",
    "devmem",
    "devcore",
    "type",
    "mode",
    "health",
    "migProfiles",
    "uuid",
    "core",
    "memory",
]
KEYS += ["number", "mig", "healthy", "name", "memoryMB", "sliceCount", "placements", "start", "size"]
PLAUSIBLE = st.fixed_dictionaries(
    {
        "id": st.text(max_size=3),
        "count": st.integers(0, 99),
        "devmem": st.integers(0, 99999),
        "health": st.booleans(),
    },
    optional={key: JSON for key in KEYS if key not in FIRST}
    | {"mode": st.sampled_from(["mig", "hami-core", ""])},
)
REGISTERS = st.one_of(
    st.lists(PLAUSIBLE, max_size=70).map(json.dumps),
    st.lists(st.dictionaries(st.sampled_from(KEYS), JSON), max_size=4).map(json.dumps),
    JSON.map(json.dumps),
    st.text('GPU-1,0tre:[]{}"', max_size=80),
    TEXTS,
)
SMALL = st.sampled_from([1, 2, 4, 7, 8, 10, 20, 64, 100]).map(str)
AMOUNTS = st.one_of(SMALL, SMALL, SMALL, TEXTS)
NODES = st.builds(
    Node,
    st.just("n"),
    labels=st.dictionaries(st.sampled_from(LABELS), AMOUNTS, max_size=8),
    annotations=st.dictionaries(
        st.sampled_from([HAMI, VOLCANO, VGPU, CONFIG, "hami.io/node-handshake", "hami.io/device-cordon"]),
        REGISTERS,
        max_size=3,
    ),
    allocatable=st.dictionaries(st.sampled_from(RESOURCE_NAMES), AMOUNTS, max_size=6),
    conditions=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    unreadable=st.sampled_from([(), (), (), (), ("example.com/a",), (HAMI,)]),
    problem=TEXTS,
)
CARDS = st.none() | st.lists(
    st.builds(
        Card, st.integers(-2, 70), TEXTS, st.booleans(), st.just((("koordinator.sh/gpu-memory", "1E"),))
    ),
    max_size=3,
).map(lambda gpus: KoordinatorDevice("n", tuple(gpus)))


def bounded(found: Inventory) -> None:
    shape = found.shape
    assert len(shape.gpus) <= GPUS_PER_NODE
    assert len(shape.pools) <= RESOURCES + 1
    assert sum(map(len, shape.islands)) <= GPUS_PER_NODE
    assert all(len(pool.gpus) <= GPUS_PER_NODE for pool in shape.pools)
    assert len(shape.product) <= NAME
    assert len(found.doubt) <= PROBLEM


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(NODES, CARDS)
def test_any_node_is_read_or_refused_in_few_words(node: Node, cards: KoordinatorDevice | None):
    for read in (inventory_of, sources_of):
        found, error = None, None
        try:
            found = read(node, cards)
        except (InventoryError, QuantityError) as refused:
            error = refused
        assert len(str(error)) <= PROBLEM
        if isinstance(found, Inventory):
            bounded(found)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(NODES, CARDS)
def test_any_node_goes_into_the_books_and_out_again(node: Node, cards: KoordinatorDevice | None):
    state = State(POLICIES["inventory"]())
    state.apply([Upserted(make_node("sound")), Upserted(make_pod("waits", 2))])
    state.apply([Upserted(make_pod("runs", 1, node_name="n")), *([Upserted(cards)] if cards else [])])
    state.apply([Upserted(node)])
    state.policy.cost(state.fleet, next(iter(state.allocations._holds.values())).request)
    assert why(state, make_pod("asks", 1), "sound") is Reason.FITS


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
def test_numbers_that_cannot_be_true_are_as_if_absent(labels: dict[str, str], allocatable: dict[str, str]):
    """Some of these were larger than the type of the array they went to, which ended the watch."""
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
def test_what_the_inventory_is_read_from_and_was_left_out_closes_the_node(name: str):
    sound = make_node("n")
    for left_out, reason in (((name,), Reason.UNREADABLE), (("example.com/notes",), Reason.FITS)):
        state = make_state(sound)
        state.apply([Upserted(replace(sound, unreadable=left_out))])
        assert why(state, make_pod("one"), "n") is reason
        assert ("n" in state.problems) == (reason is not Reason.FITS)


def test_what_exceeds_a_limit_elsewhere_on_the_node_is_said():
    state = make_state(replace(make_node("n"), problem="400 annotations: 64 are read"))
    assert state.problems == {"n": "400 annotations: 64 are read"}
    assert why(state, make_pod("one"), "n") is Reason.FITS


@pytest.mark.parametrize(
    "name", ["9" * 5000 + "g.1gb", "1g." + "9" * 5000 + "gb", "1g.1gb" + "x" * 5000, "١g.5gb"]
)
def test_a_profile_of_thousands_of_digits_is_none(name: str):
    assert parse_profile(name) is None
    with pytest.raises(InventoryError) as refused:
        inventory_of(Node("n", allocatable={f"nvidia.com/mig-{name}": "1"}))
    assert len(str(refused.value)) < 150


def test_a_product_is_parsed_in_one_pass():
    """A label that begins a MIG profile thousands of times took time by its square."""
    assert len(parse_product("-MIG-1g.1gb" * 20_000 + "!").base) <= NAME


@pytest.mark.parametrize("value", ["0-999", "64", "0-63.64", "0-1_" * 100, "9" * 10_000, "٠-٣"])
def test_islands_name_no_more_gpus_than_a_node_has(value: str):
    with pytest.raises(ValueError, match="islands") as refused:
        parse_islands(value)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("mig-configs: {a: &a [1, 1], b: &b [*a, *a], c: [*b, *b], d: {x: *b}}", set()),
        ("x" * (65 << 10), set()),
        ("mig-configs: {" + ", ".join(f"l{i}: []" for i in range(300)) + "}", set()),
        ("mig-configs: {0x" + "f" * 5000 + ": []}", set()),
        ("mig-configs: {a: [{devices: 0x" + "f" * 5000 + ", mig-enabled: true}]}", set()),
        ("mig-configs: {a: [{devices: [0x" + "f" * 5000 + "], mig-enabled: true}]}", set()),
        ("mig-configs: {a: [" + "{devices: all, mig-enabled: false}, " * 65 + "]}", set()),
        ("mig-configs: {" + "n" * 5000 + ": []}", set()),
    ],
)
def test_a_configuration_of_the_mig_manager_is_bounded(config: str, found: set[str]):
    layouts, problem = layouts_of(config)
    assert set(layouts) == found
    assert len(problem) <= PROBLEM
    assert problem


def test_lists_that_hold_each_other_are_not_written_out():
    """Twenty lines of aliases stand for 2 ** 20 numbers, which an error would have listed."""
    lines = ["mig-configs:", "  l0: &l0 [[1, 1]]"]
    lines += [f"  l{i}: &l{i} [*l{i - 1}, *l{i - 1}]" for i in range(1, 22)]
    tracemalloc.start()
    layouts, problem = layouts_of("\n".join(lines))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (layouts, len(problem) <= PROBLEM, most < 4 << 20) == ({}, True, True)


def test_a_layout_with_bounds_is_still_read():
    node = Node("n", labels={"nvidia.com/mig.config": "x" * 5000, "nvidia.com/mig.config.state": "success"})
    node = replace(node, allocatable={"nvidia.com/mig-1g.10gb": "7"})
    found = inventory_of(node, None, MigLayouts("ns/name", layouts={"all": ()}))
    bounded(found)


def steps(state: State, node: Node) -> int:
    """Calls, in Python and in C, that it takes to take in a node whose label has changed."""
    state.apply([Upserted(replace(node, labels={**node.labels, "flaps": "1"}))])
    return calls(lambda: state.apply([Upserted(node)]))


def profiles(kinds: int, places: int) -> list[dict[str, Any]]:
    return [
        PROFILE | {"name": f"{i}g.5gb", "placements": [{"start": j, "size": 1} for j in range(places)]}
        for i in range(kinds)
    ]


def hami(*entries: dict[str, Any]) -> Node:
    register = json.dumps([one | {"id": f"GPU-{i}", "index": i} for i, one in enumerate(entries)])
    return Node("n", annotations={HAMI: register}, allocatable={"cpu": "64", "memory": "512Gi", GPU: "640"})


NORMAL = make_node("n", labels={f"feature.node.kubernetes.io/f{i}": "true" for i in range(40)})
NORMAL_MIG = hami(*[entry(mode="mig", migProfiles=profiles(8, 7))] * 8)


@pytest.mark.parametrize(
    ("node", "normal"),
    [
        (replace(NORMAL, labels={f"example.com/gpu-error-{i}": "0" for i in range(20_000)}), NORMAL),
        (
            replace(NORMAL, labels={f"feature.node.kubernetes.io/{i}": "x" * 63 for i in range(20_000)}),
            NORMAL,
        ),
        (replace(NORMAL, allocatable={f"nvidia.com/mig-1g.{i + 1}gb": "1" for i in range(64)}), NORMAL),
        (replace(NORMAL, allocatable={f"nvidia.com/mig-1g.{i + 1}gb": "1" for i in range(9000)}), NORMAL),
        (replace(NORMAL, conditions=tuple((f"GpuError{i}", "False") for i in range(64))), NORMAL),
        (replace(NORMAL, taints=tuple(Taint(f"gpu-{i}", "", "NoSchedule") for i in range(64))), NORMAL),
        (hami(*[entry()] * 64), NORMAL),
        (hami(*[entry()] * 1000), NORMAL),
        (hami(*[entry(mode="mig", migProfiles=profiles(12, 32))] * 9), NORMAL_MIG),
        (hami(*[entry(mode="mig", migProfiles=profiles(3, 1))] * 64), NORMAL_MIG),
    ],
)
def test_no_node_costs_more_than_twenty_normal_ones(node: Node, normal: Node):
    state = make_state()
    assert steps(state, node) < 20 * steps(state, normal)


def test_a_problem_that_stands_is_logged_once(caplog: pytest.LogCaptureFixture):
    node = replace(make_node("n"), unreadable=(HAMI,))
    state = make_state(node)
    for i in range(20):
        state.apply([Upserted(replace(node, labels={"flaps": str(i)}))])
    assert len(caplog.records) == 1
