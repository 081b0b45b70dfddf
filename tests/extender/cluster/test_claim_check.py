"""Whatever a pod claims, it counts with no less than it asked for, and with no more of a GPU than it has."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.cluster.claim_check import reconcile_claims
from extender.dialects.dialect import Claim, Claims
from extender.dialects.pod_request import claims_of
from extender.k8s.objects import Container, Pod, PodSpec
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares

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
