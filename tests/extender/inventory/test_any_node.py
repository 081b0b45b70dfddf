"""Any node at all can be read, or is refused with a short text."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.dialects.shared_gpus import InventoryError
from extender.inventory.node_inventory import inventory_of
from extender.k8s.objects import KoordinatorDevice, KoordinatorGpu, Node, Upserted
from extender.k8s.quantity import QuantityError
from extender.untrusted.limits import PROBLEM
from packing.model.reasons import Reason
from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.builders import make_node, make_pod, why
from tests.extender.inventory.test_inventory_limits import CONFIG, GPU, HAMI, VGPU, VOLCANO, bounded

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
WORDS = [
    *("", "0", "1", "2", "8", "64", "65", "999999999", "9" * 15, "9" * 5000, "-1", "1e9", "1E", "²", "٣"),
    *("true", "time-slicing", "mps", "pending", "success", "all-balanced", "Deleted_1", "none", "any"),
    *("NVIDIA-H100-80GB-HBM3", "Tesla-T4-SHARED", "X-MIG-1g.10gb", "X-MIG-99g.9999gb-SHARED", "1g.5gb"),
    *("-MIG-1g.1gb" * 20, "192G", "²G", "0-7", "0-999", "0-63", "0.1_2.3", "0-999_" * 9),
]
_TEXTS = st.one_of(st.text(max_size=40), LONG, st.sampled_from(WORDS))


@st.composite
def any_text(draw: st.DrawFn) -> str:
    return draw(_TEXTS)


TEXTS = any_text()
_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.integers(0, 128), st.floats(), TEXTS
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
    *("id", "index", "count", "devmem", "devcore", "type", "mode", "health", "migProfiles", "uuid", "core"),
    *("memory", "number", "mig", "healthy", "name", "memoryMB", "sliceCount", "placements", "start", "size"),
]
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
DEVICES = st.none() | st.lists(
    st.builds(
        KoordinatorGpu,
        st.integers(-2, 70),
        TEXTS,
        st.booleans(),
        st.just((("koordinator.sh/gpu-memory", "1E"),)),
    ),
    max_size=3,
).map(lambda gpus: KoordinatorDevice("n", tuple(gpus)))


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(NODES, DEVICES)
def test_any_node_is_read_or_refused_with_a_short_text(node: Node, device: KoordinatorDevice | None):
    found, error = None, None
    try:
        found = inventory_of(node, device)
    except (InventoryError, QuantityError) as refused:
        error = refused
    assert len(str(error)) <= PROBLEM
    if found is not None:
        bounded(found)


@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(NODES, DEVICES)
def test_any_node_can_be_added_to_the_state(node: Node, device: KoordinatorDevice | None):
    state = State(POLICIES["inventory"]())
    state.apply([Upserted(make_node("sound")), Upserted(make_pod("waits", 2))])
    state.apply([Upserted(make_pod("runs", 1, node_name="n")), *([Upserted(device)] if device else [])])
    state.apply([Upserted(node)])
    state.policy.cost(state.fleet, next(iter(state.allocations._placements.values())).request)
    assert why(state, make_pod("asks", 1), "sound") is Reason.FITS
