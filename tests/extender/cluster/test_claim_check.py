"""Whatever a pod claims, it counts with no less than it asked for, and with no more of a GPU than it has."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.cluster.claim_check import reconcile_claims, reconcile_counts
from extender.dialects.dialect import Claim, Claims
from extender.dialects.pod_request import claims_of
from extender.k8s.objects import Container, Deleted, Pod, PodSpec, Upserted
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import Request, Shares, whole_gpus
from tests.extender.builders import make_state, why
from tests.extender.dialects.test_dialect_manifests import node, pod

MIB = 40_000
HAMI = "nvidia.com/gpu"
KEYS = [
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-node",
    "hami.io/vgpu-mig-allocations",
    "volcano.sh/vgpu-ids-new",
    "nvidia.com/pre-allocated",
    "nvidia.com/real-allocated",
    "scheduling.koordinator.sh/device-allocated",
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_POD",
    "stowage.dev/gpu-indices",
]


def shape(gpus: int = 3, resource: str = HAMI) -> NodeSpec:
    cards = tuple(Gpu(MIB, divisible=True, slots=10, uuid=f"GPU-{g}") for g in range(gpus))
    pool = Pool(HAMI, gpus, tuple(range(gpus)), 1000, MIB)
    return NodeSpec("n", 1, 1, cards, (pool,), sharing_resource=resource)


def share(count: int, milli: int, mib: int) -> Request:
    return Request(shares=Shares(count, milli, mib, resource=HAMI))


amounts = st.sampled_from(["0", "1", "30", "100", "3000", "999999", "-1", "x", "9" * 30, ""])
uuids = st.sampled_from(["GPU-0", "GPU-1", "GPU-2", "GPU-9", "", "0", "7"])
hami = st.lists(
    st.lists(st.builds("{},NVIDIA,{},{}:".format, uuids, amounts, amounts), max_size=3).map("".join),
    max_size=3,
).map(";".join)
anything = st.one_of(hami, hami.map(lambda text: text + ";"), st.text(max_size=20), uuids, amounts)


@given(
    st.dictionaries(st.sampled_from(KEYS), anything),
    st.integers(1, 3),
    st.integers(1, 99),
    st.integers(1, MIB),
)
@example({"hami.io/vgpu-devices-allocated": ",NVIDIA,0,0:"}, 1, 1, 1)
def test_no_claim_makes_a_pod_count_with_less_than_it_asks_for(annotations, count, cores, mib):
    limits = ((HAMI, str(count)), ("nvidia.com/gpumem", str(mib)), ("nvidia.com/gpucores", str(cores)))
    running = Pod("d", "p", spec=PodSpec((Container("a", limits, limits),)), annotations=annotations)
    reconciled = reconcile_claims(shape(), share(count, cores * 10, mib), claims_of(running))
    enough = [gpu for gpu, milli, memory in reconciled.parts if milli >= cores * 10 and memory >= mib]
    assert len(enough) >= count
    if not reconciled.problem:
        assert len(reconciled.parts) == count


@given(st.text(max_size=40), st.sampled_from(KEYS))
def test_no_text_of_an_annotation_breaks_the_allocations(text, key):
    for on in ("hami", "volcano", "vgpu-manager", "koordinator", "gpushare", "stowage", "plain"):
        state = make_state(node(on))
        before = (
            state.fleet.arrays.compute.copy(),
            state.fleet.arrays.memory.copy(),
            state.fleet.arrays.free_devices.copy(),
        )
        running = Pod(
            "d", "p", uid="1", spec=PodSpec((Container("a"),)), node_name=on, annotations={key: text}
        )
        state.apply([Upserted(running), Deleted("Pod", "d/p")])
        assert all((a == b).all() for a, b in zip(before, _arrays(state), strict=True))
        assert state.problems == {}


def _arrays(state):
    return state.fleet.arrays.compute, state.fleet.arrays.memory, state.fleet.arrays.free_devices


@pytest.mark.parametrize(
    ("claims", "parts", "problem"),
    [
        ([Claim("GPU-1", 300, 3000)], ((1, 300, 3000),), ""),
        ([Claim("GPU-1", 300, 3000), Claim("GPU-1", 300, 3000, stage=2)], ((1, 300, 3000),), ""),
        ([Claim("GPU-1", 300, 3000), Claim("GPU-1", 400, 9000, stage=2)], ((1, 400, 9000),), ""),
        ([Claim("GPU-1", 300, 3000), Claim("GPU-1", 100, 1000, stage=-1)], ((1, 400, 4000),), ""),
        (  # the sidecar starts when the init container has ended
            [Claim("GPU-1", 100, 9000, stage=1), Claim("GPU-1", 100, 500, stage=-2), Claim("GPU-1", 1, 1000)],
            ((1, 101, 9000),),
            "",
        ),
        (  # the init container starts when the sidecar runs
            [Claim("GPU-1", 100, 500, stage=-1), Claim("GPU-1", 100, 9000, stage=2), Claim("GPU-1", 1, 1000)],
            ((1, 200, 9500),),
            "",
        ),
        (
            [Claim("GPU-1", 300, 3000), Claim("GPU-2", 100, 1000, stage=2)],
            ((1, 300, 3000), (2, 100, 1000)),
            "",
        ),
        ([Claim("GPU-1", 5000, 3000)], ((1, 1000, 3000),), "claims more than the GPU has"),
        ([Claim("2", memory_milli=500)], ((2, 0, MIB // 2),), ""),
    ],
)
def test_containers_add_up_and_init_containers_count_by_peak(claims, parts, problem):
    reconciled = reconcile_claims(shape(), share(1, 1, 1), Claims(HAMI, tuple(claims)))
    assert (reconciled.parts, reconciled.problem) == (parts, problem)


def test_claims_for_another_kind_of_node_are_not_used():
    claims = Claims("volcano.sh/vgpu-number", (Claim("GPU-1", 1000, MIB),))
    assert reconcile_claims(shape(), Request(), claims).parts == ()
    assert len(reconcile_claims(shape(), share(1, 100, 100), claims).parts) == 3


def test_a_counted_device_counts_as_a_whole_gpu():
    reconciled = reconcile_claims(
        shape(),
        Request(devices=((HAMI, 1),)),
        Claims(HAMI, (Claim("GPU-1", 0, MIB, requested=whole_gpus(1)),)),
    )
    assert reconciled.parts == ((1, 1000, MIB),)
    assert reconciled.problem == ""  # older HAMi writes no cores


def test_kubelet_counts_where_it_reports_more_and_only_on_plain_nodes():
    plain = NodeSpec("n", 1, 1, (Gpu(MIB),) * 4, (Pool(HAMI, 4, (0, 1, 2, 3), 1000, MIB),))
    one = Request(devices=((HAMI, 1),))
    assert reconcile_counts(plain, one, ((HAMI, 1),)) == (one, "")
    raised, problem = reconcile_counts(plain, one, ((HAMI, 3),))
    assert raised.devices == ((HAMI, 3),)
    assert "3 nvidia.com/gpu" in problem
    assert reconcile_counts(shape(), one, ((HAMI, 3),)) == (one, "")


def test_a_contradiction_counts_once_until_it_changes():
    state = make_state(node("hami"))
    forged = pod("hami-forged-less", "hami")
    state.apply([Upserted(forged), Upserted(forged)])
    assert state.allocations.contradictions == 1
    state.apply([Upserted(pod("hami-running", "hami")), Deleted("Pod", forged.key)])
    assert (state.allocations.contradictions, state.problems) == (1, {})


def test_a_nominated_share_counts_on_one_gpu_and_not_on_all():
    asking = pod("hami-memory-and-cores")
    nominated = Pod("d", "nominated", uid="n", spec=asking.spec, nominated_node="hami", priority=5)
    state = make_state(node("hami"), nominated)
    whole = pod("nvidia-whole")
    request = Request(devices=((HAMI, 1),))
    assert why(state, whole, "hami", request) is Reason.FITS
    assert why(state, whole, "hami", Request(devices=((HAMI, 2),))) is not Reason.FITS


def test_an_unknown_gpu_is_a_contradiction_on_a_node_of_one_gpu_too():
    reconciled = reconcile_claims(shape(1), share(1, 300, 3000), Claims(HAMI, (Claim("GPU-7", 300, 3000),)))
    assert reconciled.parts == ((0, 300, 3000),)
    assert "which the node does not have" in reconciled.problem
