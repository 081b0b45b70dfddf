"""The inventory of a node follows its allocatable resources and its labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extender.dialects.shared_gpus import InventoryError
from extender.inventory.node_inventory import inventory_of
from extender.k8s.objects import Node
from extender.k8s.quantity import QuantityError
from extender.untrusted.limits import GPU_MIB
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason

LABEL_SETS = {
    entry["id"]: entry
    for entry in json.loads((Path(__file__).parents[1] / "data/node-labels.json").read_text())["nodes"]
}


def node(labels: dict[str, str] | None = None, **allocatable: str) -> Node:
    return Node("n", labels=labels or {}, allocatable=allocatable)


def shape(name: str) -> NodeSpec:
    entry = LABEL_SETS[name]
    resources = {"cpu": "64", "memory": "512Gi", **(entry["allocatable"] or {})}
    return inventory_of(Node(name, labels=entry["labels"], allocatable=resources)).spec


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
    if "placements" in truth:  # no label says where instances start, only how many there are
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


def test_an_instance_of_a_gpu_that_is_not_known_has_so_many_sevenths():
    (pool,) = inventory_of(node(**{"nvidia.com/mig-3g.20gb": "2"})).spec.pools
    assert pool.compute_milli == 428


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
        ({"islands": "0-3", "gpus": "4"}, (tuple(range(8)),)),  # for another number of GPUs
        ({"islands": "0-3"}, (tuple(range(8)),)),  # no guard
        ({"islands": "0-9", "gpus": "8"}, (tuple(range(8)),)),  # GPUs that do not exist
        ({"islands": "zero", "gpus": "8"}, (tuple(range(8)),)),
    ],
)
def test_topology_labels_come_before_the_catalog_if_their_gpu_count_matches(labels, islands):
    prefixed = {f"nvlink.feature.node.kubernetes.io/{key}": value for key, value in labels.items()}
    h100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert inventory_of(node(h100 | prefixed, **{"nvidia.com/gpu": "8"})).spec.islands == islands


def test_a_clique_alone_means_a_switch():
    found = inventory_of(node({"nvidia.com/gpu.clique": "a.1"}, **{"nvidia.com/gpu": "4"})).spec
    assert found.islands == ((0, 1, 2, 3),)


NVLINK = "nvlink.feature.node.kubernetes.io/"
H100_LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.clique": "a.1"}


@pytest.mark.parametrize(
    ("labels", "islands", "source", "keeps", "problem"),
    [
        ({"islands": "0.1_2-7", "gpus": "8", "fabric": "mesh"}, [2, 6], f"{NVLINK}islands", True, ""),
        ({"islands": "0.1.3-7", "gpus": "8", "fabric": "switch"}, [7], f"{NVLINK}islands", False, ""),
        ({"islands": "none", "gpus": "8"}, [], f"{NVLINK}islands", False, ""),
        ({"islands": "0.1", "gpus": "4"}, [8], "catalog", False, "it describes 4 GPUs, but the node has 8"),
        ({"islands": "0.1"}, [8], "catalog", False, "describes an unknown number of GPUs"),
        ({"islands": "0-9", "gpus": "8"}, [8], "catalog", False, "it names GPUs above 7"),
        ({"islands": "0.0", "gpus": "8"}, [8], "catalog", False, "named twice"),
        ({}, [8], "catalog", False, ""),
    ],
)
def test_islands_name_their_source(labels, islands, source, keeps, problem):
    """In the order of trust; a label that is ignored is a problem of the node, which still takes pods."""
    prefixed = {NVLINK + key: value for key, value in labels.items()}
    found = inventory_of(node(H100_LABELS | prefixed, **{"nvidia.com/gpu": "8"}))
    assert [len(island) for island in found.spec.islands] == islands
    assert found.sources.islands == source
    assert found.spec.plugin_keeps_islands is keeps
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)
    assert found.spec.blocked is Reason.FITS


@pytest.mark.parametrize(
    ("product", "gpus", "islands", "keeps"),
    [
        ("Tesla-V100-SXM2-32GB", 8, [4, 4], True),  # DGX-1V: not all eight are connected with each other
        ("NVIDIA-A100-80GB-PCIe", 4, [2, 2], True),
        ("NVIDIA-A100-SXM4-80GB", 16, [8, 8], False),  # two boards with a switch each
        ("NVIDIA-GB200", 4, [4], True),
    ],
)
def test_the_reference_form_of_the_catalog(product, gpus, islands, keeps):
    found = inventory_of(node({"nvidia.com/gpu.product": product}, **{"nvidia.com/gpu": str(gpus)})).spec
    assert ([len(island) for island in found.islands], found.plugin_keeps_islands) == (islands, keeps)


def test_a_clique_is_named_and_unknown_islands_have_no_source():
    four = {"nvidia.com/gpu": "4"}
    assert inventory_of(node({"nvidia.com/gpu.clique": "a.1"}, **four)).sources.islands.endswith("gpu.clique")
    unknown = inventory_of(node({}, **four))
    assert (unknown.sources.islands, unknown.spec.islands, unknown.spec.no_nvlink) == ("", (), False)
    without = inventory_of(node({"nvidia.com/gpu.product": "NVIDIA-L40S"}, **four))
    assert (without.sources.islands, without.spec.no_nvlink) == ("catalog", True)


@pytest.mark.parametrize(
    ("allocatable", "error"),
    [
        ({"nvidia.com/gpu": "eight"}, QuantityError),
        ({"nvidia.com/gpu": "-1"}, QuantityError),
        ({"nvidia.com/gpu": "1e30"}, QuantityError),
        ({"nvidia.com/gpu": "10000000"}, InventoryError),
        ({"nvidia.com/gpu.shared": "4E"}, InventoryError),
        ({"nvidia.com/mig-frob": "1"}, InventoryError),
        ({"cpu": "x"}, QuantityError),
    ],
)
def test_an_impossible_quantity_is_an_error(allocatable, error):
    with pytest.raises(error):
        inventory_of(Node("n", allocatable=allocatable))


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.replicas": "many", "nvidia.com/gpu.memory": "", "nvidia.com/gpu.product": ""},
        {"nvidia.com/gpu.replicas": "9" * 40, "nvidia.com/gpu.memory": "-5", "nvidia.com/gpu.product": "F"},
        {"nvidia.com/gpu.product": "Frob-MIG-1g.10gb", "nvidia.com/gpu.count": "²"},
    ],
)
def test_invalid_labels_are_ignored(labels):
    found = inventory_of(node(labels, **{"nvidia.com/gpu": "7"})).spec
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
        ({"node.kubernetes.io/instance-type": "BM.GPU.B4.8"}, "A100 SXM4 40GB"),
        ({"node.kubernetes.io/instance-type": "BM.GPU.GB200-v3.4"}, "GB200"),
        ({"node.kubernetes.io/instance-type": "VM.GPU.L40S.1"}, "L40S"),
        ({"doks.digitalocean.com/gpu-brand": "nvidia", "doks.digitalocean.com/gpu-model": "l40s"}, "L40S"),
        (
            {"aliyun.accelerator/nvidia_name": "NVIDIA-A10", "aliyun.accelerator/nvidia_mem": "23028MiB"},
            "A10",
        ),
        ({"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-32GB"}, "V100 SXM2 32GB"),
        ({"node.kubernetes.io/instance-type": "m7i.large"}, None),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge", "nvidia.com/gpu.product": "Tesla-T4"}, "T4"),
    ],
)
def test_clouds_name_the_gpu_where_feature_discovery_does_not_run(labels, model):
    assert inventory_of(node(labels, **{"nvidia.com/gpu": "4"})).spec.model == model


@pytest.mark.parametrize(
    ("label", "unit"),
    [
        ("nvidia.com/gpu.memory", 1 << 20),
        ("karpenter.k8s.aws/instance-gpu-memory", 1),
        ("eks.amazonaws.com/instance-gpu-memory", 1),
        ("aliyun.accelerator/nvidia_mem", 1),
    ],
)
def test_a_memory_that_no_gpu_has_is_unknown_and_not_small(label, unit):
    for mib, known in ((GPU_MIB, GPU_MIB), (GPU_MIB + 1, 0)):
        labels = {"nvidia.com/gpu.product": "NVIDIA-X1", label: str(mib * unit)}
        found = inventory_of(node(labels, **{"nvidia.com/gpu": "4"}))
        assert [gpu.memory_mib for gpu in found.spec.gpus] == [known] * 4


def test_more_devices_than_gpus_without_a_sharing_label_are_replicas():
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
    found = inventory_of(node(labels, **{"nvidia.com/gpu": "20"}))
    assert (len(found.spec.gpus), found.spec.pools[0].compute_milli) == (2, 100)
    assert "20 nvidia.com/gpu on 2 GPUs count as replicas" in found.problem


EC2 = "node.kubernetes.io/instance-type"


@pytest.mark.parametrize(
    ("labels", "devices", "gpus", "memory", "compute"),
    [
        (
            {"karpenter.k8s.aws/instance-gpu-name": "l4", "karpenter.k8s.aws/instance-gpu-count": "1"},
            10,
            1,
            2303,
            100,
        ),
        ({EC2: "g6.12xlarge"}, 80, 4, 1151, 50),
        ({EC2: "g6.12xlarge"}, 4, 4, 23034, 1000),
        ({EC2: "a2-highgpu-2g"}, 14, 2, 5851, 142),
        ({EC2: "g6f.large"}, 1, 1, 2879, 125),
        ({EC2: "Standard_NV12ads_A10_v5"}, 1, 1, 7676, 333),
        ({"karpenter.azure.com/sku-gpu-count": "4", EC2: "Standard_NC64as_T4_v3"}, 40, 4, 1536, 100),
        (
            {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-accelerator-count": "2"},
            2,
            2,
            23034,
            1000,
        ),
        ({}, 100, 1, 0, 10),
    ],
)
def test_clouds_say_how_many_gpus_there_are_and_how_much_of_them(labels, devices, gpus, memory, compute):
    found = inventory_of(node(labels, **{"nvidia.com/gpu": str(devices)})).spec
    pool = found.pools[0]
    assert (len(found.gpus), pool.total, pool.memory_mib, pool.compute_milli) == (
        gpus,
        devices,
        memory,
        compute,
    )


@pytest.mark.parametrize("replicas", ["1", "4"])
def test_feature_discovery_describes_one_model_of_several(replicas):
    labels = {
        "nvidia.com/gpu.product": "Tesla-T4",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.memory": "15360",
    }
    devices = 3 * int(replicas)
    found = inventory_of(
        node(labels | {"nvidia.com/gpu.replicas": replicas}, **{"nvidia.com/gpu": str(devices)})
    )
    assert (len(found.spec.gpus), found.spec.model, found.spec.product) == (3, None, "")
    assert {gpu.memory_mib for gpu in found.spec.gpus} == {0}
    assert "describes 1 of 3 GPUs (Tesla-T4)" in found.problem


@pytest.mark.parametrize(("devices", "instance", "gpus"), [(10, "g6.2xlarge", 1), (4, "g6.12xlarge", 4)])
def test_an_instance_has_one_model_so_more_devices_than_it_has_gpus_are_replicas(devices, instance, gpus):
    """Feature discovery runs with a configuration of its own, which may not have the plugin's time slices."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.count": "1", EC2: instance}
    found = inventory_of(
        node(labels | {"nvidia.com/gpu.replicas": "1"}, **{"nvidia.com/gpu": str(devices)})
    ).spec
    assert (len(found.gpus), found.model, found.gpus[0].memory_mib) == (gpus, "L4", 23034)


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
def test_labels_about_sharing_give_the_number_of_replicas(labels, devices):
    known = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2"}
    found = inventory_of(node(known | labels, **{"nvidia.com/gpu": str(devices)})).spec
    assert (len(found.gpus), found.pools[0].total, found.pools[0].compute_milli) == (2, devices, 100)


def test_labels_that_lag_behind_time_slicing_close_no_node():
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-L4",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
    }
    found = inventory_of(node(labels, **{"nvidia.com/gpu": "80"})).spec
    assert (len(found.gpus), found.pools[0].compute_milli, found.blocked) == (8, 100, Reason.FITS)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({}, "set the label nvidia.com/gpu.memory"),
        ({"nvidia.com/gpu.memory": "24000"}, ""),
        ({"nvidia.com/gpu.product": "Tesla-T4"}, ""),
    ],
)
def test_memory_that_is_not_known_is_said(labels, words):
    assert words in (problem := inventory_of(node(labels, **{"nvidia.com/gpu": "1"})).problem)
    assert bool(words) == bool(problem)


@pytest.mark.parametrize(
    ("labels", "cuda"),
    [
        ({"cuda.runtime-version.major": "12", "cuda.runtime-version.minor": "4"}, 12004),
        ({"cuda.runtime.major": "11", "cuda.runtime.minor": "1"}, 11001),
        ({"node-cuda-major": "12", "node-cuda-minor": "8"}, 12008),
        ({}, 0),
    ],
)
def test_the_cuda_version_of_the_driver(labels, cuda):
    prefixed = {f"nvidia.com/{key}": value for key, value in labels.items()}
    assert inventory_of(node(prefixed, **{"nvidia.com/gpu": "1"})).spec.cuda == cuda
