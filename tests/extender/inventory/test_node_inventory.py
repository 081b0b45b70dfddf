"""Nodes are read as their labels and allocatable describe them, whoever wrote the labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extender.inventory.node_inventory import InventoryError, inventory_of, shape_of
from extender.k8s.objects import Container, Node, PodSpec
from extender.k8s.quantity import QuantityError
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from tests.extender.builders import make_pod, make_state, why

LABEL_SETS = {
    entry["id"]: entry
    for entry in json.loads((Path(__file__).parents[1] / "data/node-labels.json").read_text())["nodes"]
}


def node(labels: dict[str, str] | None = None, **allocatable: str) -> Node:
    return Node(
        "n", labels=labels or {}, allocatable={k.replace("__", "/"): v for k, v in allocatable.items()}
    )


def shape(name: str) -> NodeSpec:
    entry = LABEL_SETS[name]
    resources = {"cpu": "64", "memory": "512Gi", **(entry["allocatable"] or {})}
    return shape_of(Node(name, labels=entry["labels"], allocatable=resources))


def whole(found: NodeSpec) -> int:
    return sum(
        pool.total for pool in found.pools if pool.compute_milli == 1000 and pool.resource == "nvidia.com/gpu"
    )


TRUTHS = {name: entry["ground_truth"] for name, entry in LABEL_SETS.items() if "ground_truth" in entry}


def test_there_are_29_label_sets_and_14_state_a_ground_truth():
    assert (len(LABEL_SETS), len(TRUTHS)) == (29, 14)


@pytest.mark.parametrize("name", TRUTHS)
def test_ground_truth(name):
    truth, found = TRUTHS[name], shape(name)
    if "full_gpus" in truth:
        assert whole(found) == truth["full_gpus"]
        partitioned = {gpu for pool in found.pools if pool.compute_milli < 1000 for gpu in pool.gpus}
        assert len(partitioned) == truth["mig_gpus"]
    if "islands" in truth:
        assert [list(island) for island in found.islands] == truth["islands"]
    if "placements" in truth:  # where instances start is in no label: what they leave is all that can be read
        free = {pool.resource.removeprefix("nvidia.com/mig-"): pool.total for pool in found.pools}
        placed = [placement["profile"] for placement in truth["placements"]]
        assert free == {profile: placed.count(profile) for profile in placed}


@pytest.mark.parametrize("name", LABEL_SETS)
def test_every_label_set_offers_what_allocatable_says_and_no_more(name):
    advertised = {k: int(v) for k, v in (LABEL_SETS[name]["allocatable"] or {}).items() if v != "0"}
    assert {pool.resource: pool.total for pool in shape(name).pools} == advertised


@pytest.mark.parametrize(
    ("name", "model", "gpus", "memory_mib"),
    [
        ("h100-8-single-1g.10gb", "H100 SXM5 80GB", 8, 81559),
        ("t4-time-sliced-8-old-gfd", "T4", 1, 15360),
        ("gke-a3-highgpu-8g-default", "H100 SXM5 80GB", 8, 81559),
        ("gke-a100-mig-1g.5gb-default", "A100 SXM4 40GB", 1, 40960),
        ("coreweave-h100", "H100 SXM5 80GB", 8, 81559),
        ("amd-mi300x-8", "MI300X", 8, 196608),
        ("no-labels", None, 4, 0),
    ],
)
def test_models_and_memory(name, model, gpus, memory_mib):
    found = shape(name)
    assert (found.model, len(found.gpus), found.gpus[0].memory_mib) == (model, gpus, memory_mib)


@pytest.mark.parametrize(
    ("name", "resource", "compute_milli", "memory_mib"),
    [
        ("t4-time-sliced-8-old-gfd", "nvidia.com/gpu", 125, 1920),
        ("t4-time-sliced-4", "nvidia.com/gpu", 250, 3840),
        ("t4-time-sliced-4-renamed", "nvidia.com/gpu.shared", 250, 3840),
        ("t4-mps-4", "nvidia.com/gpu", 250, 3840),
        ("h100-8-single-1g.10gb", "nvidia.com/gpu", 142, 9984),
        ("h100-1-mixed-all-balanced", "nvidia.com/mig-3g.40gb", 428, 40320),
        ("a100-sxm4-40gb-1-mixed-7g", "nvidia.com/mig-7g.40gb", 1000, 40192),
    ],
)
def test_the_size_of_one_device(name, resource, compute_milli, memory_mib):
    pool = next(pool for pool in shape(name).pools if pool.resource == resource)
    assert (pool.compute_milli, pool.memory_mib) == (compute_milli, memory_mib)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("h100-8-reconfiguring", Reason.REPARTITIONING), ("h100-8-single-invalid", Reason.INVALID_LAYOUT)],
)
def test_nodes_that_take_nothing(name, reason):
    assert shape(name).blocked is reason


@pytest.mark.parametrize(
    ("labels", "islands"),
    [
        ({"islands": "0-3_4-7", "gpus": "8"}, ((0, 1, 2, 3), (4, 5, 6, 7))),
        ({"islands": "none", "gpus": "8"}, ()),
        ({"islands": "0-3", "gpus": "4"}, (tuple(range(8)),)),  # made for another number of GPUs
        ({"islands": "0-3"}, (tuple(range(8)),)),  # no guard
        ({"islands": "0-9", "gpus": "8"}, (tuple(range(8)),)),  # GPUs that the node has not
        ({"islands": "zero", "gpus": "8"}, (tuple(range(8)),)),
    ],
)
def test_topology_labels_win_over_the_catalogue_if_their_guard_passes(labels, islands):
    prefixed = {f"nvlink.feature.node.kubernetes.io/{key}": value for key, value in labels.items()}
    found = shape_of(
        node({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"} | prefixed, **{"nvidia.com/gpu": "8"})
    )
    assert found.islands == islands


def test_a_clique_alone_means_a_switch():
    found = shape_of(node({"nvidia.com/gpu.clique": "a.1"}, **{"nvidia.com/gpu": "4"}))
    assert found.islands == ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("allocatable", "error"),
    [
        ({"nvidia.com/gpu": "eight"}, QuantityError),
        ({"nvidia.com/gpu": "-1"}, QuantityError),
        ({"nvidia.com/gpu": "1e30"}, QuantityError),
        ({"nvidia.com/gpu": "100000"}, InventoryError),
        ({"nvidia.com/gpu.shared": "4E"}, InventoryError),
        ({"nvidia.com/mig-frob": "1"}, InventoryError),
        ({"cpu": "x"}, QuantityError),
    ],
)
def test_what_cannot_be_true_is_an_error(allocatable, error):
    with pytest.raises(error):
        shape_of(Node("n", allocatable=allocatable))


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.replicas": "many", "nvidia.com/gpu.memory": "", "nvidia.com/gpu.product": ""},
        {
            "nvidia.com/gpu.replicas": "9" * 40,
            "nvidia.com/gpu.memory": "-5",
            "nvidia.com/gpu.product": "Frob",
        },
        {"nvidia.com/gpu.product": "Frob-MIG-1g.10gb", "nvidia.com/gpu.count": "²"},
    ],
)
def test_nonsense_labels_are_as_if_absent(labels):
    found = shape_of(node(labels, **{"nvidia.com/gpu": "7"}))
    assert sum(pool.total for pool in found.pools) == 7
    assert found.blocked is Reason.FITS


@pytest.mark.parametrize(
    ("labels", "model"),
    [
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "H100 SXM5 80GB"),
        ({"node.kubernetes.io/instance-type": "p5en.48xlarge"}, "H200 SXM5 141GB"),
        ({"node.kubernetes.io/instance-type": "g6e.12xlarge"}, "L40S"),
        ({"node.kubernetes.io/instance-type": "g6.12xlarge"}, "L4"),
        ({"karpenter.k8s.aws/instance-gpu-name": "a10g"}, "A10G"),
        ({"eks.amazonaws.com/instance-gpu-name": "l40s"}, "L40S"),
        ({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, "H100 SXM5 80GB"),
        ({"node.kubernetes.io/instance-type": "Standard_NC48ads_A100_v4"}, "A100 PCIe 80GB"),
        ({"node.kubernetes.io/instance-type": "Standard_NC80adis_H100_v5"}, "H100 NVL 94GB"),
        ({"node.kubernetes.io/instance-type": "Standard_ND96asr_v4"}, "A100 SXM4 40GB"),
        ({"node.kubernetes.io/instance-type": "BM.GPU.H100.8"}, "H100 SXM5 80GB"),
        ({"node.kubernetes.io/instance-type": "BM.GPU4.8"}, "A100 SXM4 40GB"),
        ({"node.kubernetes.io/instance-type": "m7i.large"}, None),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge", "nvidia.com/gpu.product": "Tesla-T4"}, "T4"),
    ],
)
def test_clouds_name_the_gpu_where_feature_discovery_does_not_run(labels, model):
    assert shape_of(node(labels, **{"nvidia.com/gpu": "4"})).model == model


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
def test_a_register_that_cannot_be_true_is_an_error(annotations, allocatable):
    with pytest.raises(InventoryError):
        shape_of(annotated(annotations, **allocatable))


@pytest.mark.parametrize(
    "labels",
    [
        {"stowage.dev/gpu-sharing": "true"},
        {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.count": "4"},
        {
            "stowage.dev/gpu-sharing": "true",
            "nvidia.com/gpu.count": "4",
            "nvidia.com/gpu.product": "Tesla-T4-SHARED",
            "nvidia.com/gpu.replicas": "4",
        },
    ],
)
def test_a_node_set_aside_must_say_what_it_has(labels):
    with pytest.raises(InventoryError, match=r"stowage\.dev/gpu-sharing"):
        shape_of(node(labels))


REGISTERS = {
    HAMI: '[{"id":"a","count":10,"devmem":1000,"devcore":100,"health":true}]',
    VOLCANO: "GPU-1,10,32768,T4,true,hami-core:",
    VGPU: '[{"id":0,"type":"NVIDIA A10","uuid":"a","core":100,"memory":23028,"number":10,"healthy":true}]',
}


@pytest.mark.parametrize("register", REGISTERS)
def test_registers_without_any_device_plugin_are_left_over(register):
    assert shape_of(annotated({register: REGISTERS[register]})).gpus == ()


@pytest.mark.parametrize("device", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"])
@pytest.mark.parametrize("register", REGISTERS)
def test_a_register_beside_nvidias_devices_closes_the_node_and_keeps_its_gpus(register, device):
    """Pods of the sharing system may run on: a node taken for a plain one would give their GPUs away."""
    node = annotated({register: REGISTERS[register]}, **{device: "1"})
    found = inventory_of(node)
    assert (found.shape.blocked, len(found.shape.gpus) > 0) == (Reason.UNREADABLE, True)
    assert found.shape.sharing_resource
    assert "takes nothing new" in found.doubt
    assert register in found.doubt


def test_gpus_in_mig_mode_are_the_native_plugins():
    listed = REGISTERS[VGPU].replace('"healthy"', '"mig":true,"healthy"')
    found = shape_of(annotated({VGPU: listed}, **{"nvidia.com/mig-1g.10gb": "7"}))
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
        ((True, True), 10, 10, "", (0, 1)),  # a GPU is sick, and the register does not say so yet
        ((True, False), 10, 10, "", (0,)),
        ((True, False), 2, 2, "", (0,)),  # as many as GPUs, and as the healthy one has
        ((True,) + (False,) * 9, 10, 10, "", (0,)),
        ((True, True), 2, 2, "", ()),  # nobody says that one is sick: perhaps a leftover
        ((True, True), 10, 1, "", ()),
        ((True, False), 10, 1, "", ()),
        ((True, True), 1, 2, "", (0, 1)),  # whole GPUs, whoever hands them out
        ((True, True), 10, 20, GONE, ()),
        ((True, True), 10, 2, GONE, ()),  # most likely uninstalled, but its pods may still run
        ((True, False), 2, 2, GONE, ()),
    ],
)
def test_a_node_with_a_hami_register_is_hamis_and_takes_nothing_in_doubt(
    healthy, count, advertised, handshake, takes
):
    annotations = {HAMI: hami_gpus(*healthy, count=count), "hami.io/node-handshake": handshake}
    found = inventory_of(annotated(annotations, **{"nvidia.com/gpu": str(advertised)}))
    assert (found.shape.sharing_resource, len(found.shape.gpus)) == ("nvidia.com/gpu", len(healthy))
    if takes:
        assert found.shape.blocked is Reason.FITS
        assert tuple(i for i, gpu in enumerate(found.shape.gpus) if gpu.divisible) == takes
    else:
        assert found.shape.blocked is Reason.UNREADABLE
        assert f"remove annotation {HAMI}" in found.doubt


def test_a_whole_gpu_does_not_fit_beside_a_share_on_a_hami_node_with_a_sick_gpu():
    annotations = {HAMI: hami_gpus(True, False, count=2)}
    resources = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "2"}
    share = make_pod(
        "share",
        spec=PodSpec((Container("main", (("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "30000"))),)),
        node_name="n",
        annotations={"hami.io/vgpu-node": "n", "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,30000,0:;"},
    )
    for handshake in ("Reported 2026-01-01 00:00:00", GONE):
        told = annotations | {"hami.io/node-handshake": handshake}
        state = make_state(Node("n", annotations=told, allocatable=resources), share)
        assert why(state, make_pod("whole"), "n") is not Reason.FITS
        assert state.fleet.arrays.memory[0, 0] == 40960 - 30000


def test_more_devices_than_gpus_of_which_nothing_says_how_they_are_shared():
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
    twenty = node(labels, **{"nvidia.com/gpu": "20"})
    with pytest.raises(InventoryError, match="no label says how they are shared"):
        shape_of(twenty)
    state = make_state(twenty)
    assert why(state, make_pod("one", cpu="0"), "n") is Reason.UNREADABLE


@pytest.mark.parametrize(
    ("labels", "devices"),
    [
        ({"nvidia.com/gpu.replicas": "10"}, 20),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}, 20),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, 20),
        ({"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "10"}, 20),
        ({"cloud.google.com/gke-max-shared-clients-per-gpu": "10"}, 20),
        ({"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, 20),
    ],
)
def test_labels_that_say_how_gpus_are_shared(labels, devices):
    known = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
    found = shape_of(node(known | labels, **{"nvidia.com/gpu": str(devices)}))
    assert (len(found.gpus), found.pools[0].total, found.pools[0].compute_milli) == (2, devices, 100)


def test_more_replicas_than_the_label_says_are_not_known():
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "1"}
    with pytest.raises(InventoryError, match="no label says"):
        shape_of(node(labels, **{"nvidia.com/gpu": "20"}))


@pytest.mark.parametrize(
    ("gpus", "blocked"), [("", Reason.UNREADABLE), ("1", Reason.UNREADABLE), ("3", Reason.FITS)]
)
def test_whole_gpus_beside_divided_ones_may_be_the_same(gpus, blocked):
    labels = {"nvidia.com/gpu.count": gpus} if gpus else {}
    allocatable = {"volcano.sh/vgpu-number": "10", "nvidia.com/gpu": "2"}
    if gpus == "1":
        allocatable["nvidia.com/gpu"] = "1"
    found = shape_of(
        Node("n", labels=labels, annotations={VOLCANO: REGISTERS[VOLCANO]}, allocatable=allocatable)
    )
    assert found.blocked is blocked


def test_a_node_of_our_own_with_fewer_gpus_than_its_label_has_a_sick_one():
    labels = {
        "stowage.dev/gpu-sharing": "true",
        "nvidia.com/gpu.count": "4",
        "nvidia.com/gpu.product": "NVIDIA-L40S",
    }
    found = shape_of(node(labels, **{"nvidia.com/gpu": "3"}))
    assert (len(found.gpus), found.blocked) == (4, Reason.UNHEALTHY_GPU)
    assert shape_of(node(labels, **{"nvidia.com/gpu": "4"})).blocked is Reason.FITS
    assert shape_of(node(labels)).blocked is Reason.FITS  # without NVIDIA's plugin


def test_gpus_of_several_kinds_have_no_one_model():
    register = (
        '[{"id":"a","count":10,"devmem":40536,"devcore":100,"type":"NVIDIA A100-PCIE-40GB","health":true},'
        '{"id":"b","index":1,"count":10,"devmem":15360,"devcore":100,"type":"NVIDIA-Tesla T4","health":true}]'
    )
    found = shape_of(annotated({HAMI: register}, **{"nvidia.com/gpu": "20"}))
    assert (found.model, found.product) == (None, "")
    assert [gpu.memory_mib for gpu in found.gpus] == [40536, 15360]


def test_indices_order_the_gpus():
    register = (
        '[{"id":"b","index":1,"count":10,"devmem":2,"devcore":100,"health":true},'
        '{"id":"a","count":10,"devmem":1,"devcore":100,"health":true}]'
    )
    found = shape_of(annotated({HAMI: register}, **{"nvidia.com/gpu": "20"}))
    assert [gpu.uuid for gpu in found.gpus] == ["a", "b"]


@pytest.mark.parametrize(
    ("labels", "cuda"),
    [
        (
            {"nvidia.com/cuda.runtime-version.major": "12", "nvidia.com/cuda.runtime-version.minor": "4"},
            12004,
        ),
        ({"nvidia.com/cuda.runtime.major": "11", "nvidia.com/cuda.runtime.minor": "1"}, 11001),
        ({"nvidia.com/node-cuda-major": "12", "nvidia.com/node-cuda-minor": "8"}, 12008),
        ({}, 0),
    ],
)
def test_the_cuda_version_of_the_driver(labels, cuda):
    assert shape_of(node(labels, **{"nvidia.com/gpu": "1"})).cuda == cuda
