"""The claims read from what ``bind`` writes are what the pod requested, for any pod and any GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from extender.cluster.claim_check import ReconciledClaims, reconcile_claims
from extender.dialects.dialect import Chosen, Claims
from extender.dialects.pod_request import claims_of, request_of, writers_on
from extender.k8s.objects import Container, Pod, PodSpec
from packing.model.node_spec import Gpu, NodeSpec, Pool, resolve_on

GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
PERCENT, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
UNITS, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
MIB = 40_536


def shape_of(resource: str, count: int, mib: int = MIB) -> NodeSpec:
    gpus = tuple(Gpu(mib, divisible=True, slots=10, uuid=f"GPU-{g}") for g in range(count))
    pools = (Pool(GPU, count, tuple(range(count)), 1000, mib),) if resource == GPU else ()
    return NodeSpec("n", 64_000, 1 << 20, gpus, pools, sharing_resource=resource)


def assignment(pod: Pod, shape: NodeSpec, chosen: tuple[int, ...], now: float = 0) -> dict[str, str]:
    """What ``bind`` writes if it chooses these GPUs."""
    writer = next(writer for writer in writers_on(shape.sharing_resource) if writer.assigns(pod, shape))
    shares = resolve_on(shape, request_of(pod)).shares
    assert writer.assignment
    assert shares
    return writer.assignment(Chosen(pod, shape, shares, chosen, now))


def written(pod: Pod, shape: NodeSpec, chosen: tuple[int, ...]) -> tuple[Claims | None, ReconciledClaims]:
    """The claims and the allocation of the pod, once it is bound with the annotations written for it."""
    annotations = assignment(pod, shape, chosen, 1_700_000_000.5)
    bound = replace(pod, node_name=shape.name, annotations={**pod.annotations, **annotations})
    claims = claims_of(bound)
    return claims, reconcile_claims(shape, request_of(pod), claims)


def asks(**amounts: int | None) -> tuple[tuple[str, str], ...]:
    names = {"gpu": GPU, "memory": MEMORY, "percent": PERCENT, "cores": CORES}
    return tuple(sorted((names[key], str(n)) for key, n in amounts.items() if n))


def container(gpu: int, memory: int, percent: int, cores: int, sidecar: bool = False) -> Container:
    requests = asks(gpu=gpu, memory=memory, percent=percent, cores=cores) if gpu else ()
    return Container("c", requests, requests, sidecar)


sizes = st.sampled_from([(0, 0), (3000, 0), (0, 1), (0, 33), (0, 100), (MIB, 0)])
hami_containers = st.builds(
    lambda gpu, size, cores, sidecar: container(gpu, *size, cores, sidecar),
    st.integers(0, 2),
    sizes,
    st.sampled_from([0, 1, 30, 100]),
    st.booleans(),
)
draws = st.randoms(use_true_random=False)


def drawn(draw, shape: NodeSpec, pod: Pod) -> tuple[int, ...]:
    """As many GPUs of the node as the pod needs, in random order."""
    part = resolve_on(shape, request_of(pod)).shares
    assume(part is not None and part.count <= len(shape.gpus))
    return tuple(draw.sample(range(len(shape.gpus)), part.count))


@given(
    st.lists(hami_containers, max_size=3),
    st.lists(hami_containers.map(lambda c: replace(c, sidecar=False)), min_size=1, max_size=3),
    draws,
)
def test_hami_reads_the_gpus_of_each_container(inits, containers, draw):
    pod = Pod("d", "p", "u", PodSpec(tuple(containers), tuple(inits)))
    shape = shape_of(GPU, 8)
    chosen = drawn(draw, shape, pod)
    claims, settled = written(pod, shape, chosen)
    assert settled.problem == ""
    assert {gpu for gpu, _, _ in settled.parts} <= set(chosen)
    assert claims is not None
    by_stage: dict[int, Counter[str]] = {}
    for claim in claims.devices:
        by_stage.setdefault(claim.stage, Counter())[claim.device] += 1
    sidecars = {stage: by_stage.pop(stage) for stage in list(by_stage) if stage < 0}
    together = sum(sidecars.values(), by_stage.pop(0, Counter()))
    assert set(together.values()) <= {1}  # containers that run together share no GPU
    assert sum(together.values()) == sum(
        int(dict(c.requests).get(GPU, 0)) for c in (*containers, *(i for i in inits if i.sidecar))
    )
    for stage, init in by_stage.items():
        assert not any(set(init) & set(sidecar) for before, sidecar in sidecars.items() if -before < stage)


@given(st.integers(1, 3), sizes, st.sampled_from([0, 1, 30, 99]), draws)
def test_hami_allocates_what_was_requested(count, size, cores, draw):
    pod = Pod("d", "p", "u", PodSpec((container(count, *size, cores),)))
    shape = shape_of(GPU, 4)
    assume(any(size) or cores)
    chosen = drawn(draw, shape, pod)
    _, settled = written(pod, shape, chosen)
    part = resolve_on(shape, request_of(pod)).shares
    assert part is not None
    each = part.compute_milli, part.memory_mib + MIB * part.memory_milli // 1000
    assert (settled.parts, settled.problem) == (tuple((gpu, *each) for gpu in sorted(chosen)), "")


def test_init_containers_and_sidecars_have_their_places_in_the_text():
    one, sidecar, none = container(1, 1000, 0, 10), container(1, 2000, 0, 20, True), container(0, 0, 0, 0)
    pod = Pod("d", "p", "u", PodSpec((none, replace(one, name="work")), (one, sidecar, none)))
    annotations = assignment(pod, shape_of(GPU, 4), (2, 0))
    text = "GPU-0,NVIDIA,1000,10:;GPU-2,NVIDIA,2000,20:;;;GPU-0,NVIDIA,1000,10:;"
    assert annotations["hami.io/vgpu-devices-to-allocate"] == text


def test_an_init_container_gets_the_gpu_of_a_later_sidecar():
    spec = PodSpec((container(0, 0, 0, 0),), (container(2, 1000, 0, 0), container(1, 1, 0, 0, True)))
    annotations = assignment(Pod("d", "p", "u", spec), shape_of(GPU, 4), (0, 1))
    text = "GPU-1,NVIDIA,1000,0:GPU-0,NVIDIA,1000,0:;GPU-0,NVIDIA,1,0:;;"
    assert annotations["hami.io/vgpu-devices-to-allocate"] == text


stowage_and_kai_annotations = st.one_of(
    st.fixed_dictionaries(
        {"stowage.dev/gpu-compute": st.sampled_from(["1m", "300m", "0.5", "30%", "1"])},
        optional={
            "stowage.dev/gpu-memory": st.sampled_from(["1Mi", "8Gi", "25%", "100%"]),
            "stowage.dev/gpus": st.sampled_from(["1", "2", "4"]),
        },
    ),
    st.fixed_dictionaries({"stowage.dev/gpus": st.sampled_from(["1", "3"])}),
    st.fixed_dictionaries(
        {"gpu-fraction": st.sampled_from(["0.5", "0.333"])},
        optional={"gpu-fraction-num-devices": st.just("2")},
    ),
    st.fixed_dictionaries({"gpu-memory": st.sampled_from(["1", "4000"])}),
)
enforced_annotations = st.fixed_dictionaries(
    {"nvidia.com/container.a.gpu-memory.request": st.sampled_from(["1Mi", "4000M", "8Gi"])},
    optional={
        "gpu-fraction-num-devices": st.just("2"),
        "nvidia.com/container.a.gpu-memory.limit": st.just("16Gi"),
        "nvidia.com/container.a.gpu-compute.mode": st.sampled_from(["time-slicing", "sm-sharing"]),
    },
)


@given(stowage_and_kai_annotations | enforced_annotations, st.booleans(), draws)
def test_own_nodes_allocate_what_was_requested(annotations, ready, draw):
    pod = Pod("d", "p", "u", PodSpec((Container("a"),)), annotations=annotations)
    shape = shape_of("stowage.dev/gpu", 4)
    shape = replace(shape, agents=frozenset({"NvFractions"} if ready else ()))
    chosen = drawn(draw, shape, pod)
    _, settled = written(pod, shape, chosen)
    part = request_of(pod).shares
    assert part is not None
    each = part.compute_milli, part.memory_mib + MIB * part.memory_milli // 1000
    assert (settled.parts, settled.problem) == (tuple((gpu, *each) for gpu in sorted(chosen)), "")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.lists(st.integers(0, 20), max_size=2), draws)
def test_gpushare_allocates_what_was_requested(containers, inits, draw):
    def of(units: int) -> Container:
        requests = ((UNITS, str(units)),) if units else ()
        return Container("c", requests, requests)

    pod = Pod("d", "p", "u", PodSpec(tuple(map(of, containers)), tuple(map(of, inits))))
    most = max(sum(containers), *inits, 0)
    assume(0 < most <= 15)
    found_among_several = not any(inits) and sum(map(bool, containers)) == 1
    shape = shape_of(UNITS, 3 if found_among_several else 1, 15)
    chosen = drawn(draw, shape, pod)
    _, settled = written(pod, shape, chosen)
    assert (settled.parts, settled.problem) == (((*chosen, 0, most),), "")
