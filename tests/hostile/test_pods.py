"""Input that the author of a pod controls: annotations, labels, spec, and status of its containers."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import tracemalloc
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import count, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.examples import examples, some
from tests.hostile.cluster import (
    ANNOTATIONS,
    GPU,
    HAMI,
    MIG,
    NAMES,
    OWN,
    PLAIN,
    Cluster,
    Manifest,
    run_cases,
    usual_node,
    usual_nodes,
    usual_pod,
)

LONG = ANNOTATIONS - 2048
"""Characters of the longest annotation, which leave room for its name and a few others."""
KEYS = [
    *("stowage.dev/gpu-compute", "stowage.dev/gpu-memory", "stowage.dev/gpus", "stowage.dev/gpu-indices"),
    *("stowage.dev/gpu-models", "stowage.dev/gpu-models-not", "stowage.dev/min-cuda", "stowage.dev/nvlink"),
    *("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"),
    *("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/use-gputype"),
    *("nvidia.com/nouse-gputype", "nvidia.com/vgpu-mode", "nvidia.com/numa-bind"),
    *("nvidia.com/include-gpu-type", "nvidia.com/exclude-gpu-uuid", "nvidia.com/pre-allocated"),
    *("nvidia.com/real-allocated", "nvidia.com/node-name", "nvidia.com/predicate-node"),
    *("hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-node"),
    *("hami.io/vgpu-mig-allocations", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/bind-time"),
    *(
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/vgpu-node",
        "volcano.sh/vgpu-use-gpuuuid",
        "volcano.sh/vgpu-mode",
    ),
    "scheduling.koordinator.sh/device-allocated",
    *("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_ASSUME_TIME"),
]
"""Annotations of pods that Stowage reads."""


def repeated(part: str) -> str:
    return part * (LONG // len(part.encode()))


def numbered(separator: str, form: str) -> str:
    return separator.join(form.format(n) for n in range(LONG // (len(form) + len(separator) + 4)))


TEXTS = {
    "digits": repeated("9"),
    "fraction": "0." + repeated("3"),
    "exponent": "1e" + repeated("9"),
    "zeros": repeated("0") + "1",
    "brackets": repeated("["),
    "braces": repeated('{"a":'),
    "JSON list": json.dumps([0] * (LONG // 3)),
    "JSON devices": json.dumps({"gpu": [{"minor": n, "resources": {}} for n in range(LONG // 40)]}),
    "JSON objects": json.dumps([{"index": n, "devices": []} for n in range(LONG // 40)]),
    "colons": repeated(":"),
    "semicolons": repeated(";"),
    "commas": repeated(","),
    "HAMi devices": repeated("GPU-0,NVIDIA,100,1:"),
    "HAMi containers": repeated("GPU-0,NVIDIA,100,1:;"),
    "other devices": numbered(":", "GPU-{},NVIDIA,100,1"),
    "indices": numbered(",", "{}"),
    "one index": repeated("0,"),
    "names": numbered(",", "NVIDIA-{}"),
    "words": repeated("a-"),
    "dots": repeated("1."),
    "spaces": repeated(" "),
    "controls": repeated("\x1b[31m\n\r\t\x7f"),
    "other digits": repeated("٣"),
    "wide": repeated("𝟗"),
    "pattern": repeated("(a+)+$|"),
    "short digits": "9" * 4400,
    "negative": "-1",
    "not a number": "NaN",
    "null": "\x00",
    "nothing": "",
}
PARTS = {GPU: "2", "nvidia.com/gpumem": "4000"}
"""A pod's request in HAMi's dialect."""


@pytest.mark.parametrize("text", some(TEXTS, 1))
def test_one_long_annotation(runner: asyncio.Runner, caplog: pytest.LogCaptureFixture, text: str) -> None:
    pods = {
        key: usual_pod("hostile", PARTS if "/vgpu" in key else {}, annotations={key: TEXTS[text]})
        for key in KEYS
    }
    assert not (problems := list(run_cases(runner, caplog, pods))), "\n".join(problems[:40])


def resources(count: int, quantity: str = "1", form: str = "example.com/r{}") -> dict[str, str]:
    return {form.format(n): quantity for n in range(count)}


def containers(count: int, **asks: str) -> list[Manifest]:
    return [{"name": f"c{n}", "resources": {"limits": asks or {GPU: "1"}}} for n in range(count)]


QUANTITIES = [
    *(
        "3000000000",
        "1000000",
        "1e9",
        "9" * 300,
        "9" * 5000,
        "1e99",
        "1e-99",
        "1e999999999",
        "1E",
        "-1",
        "-0",
    ),
    *("0.5", "1m", "1n", "+1", ".5", "5.", "1Ei", "9223372036854775807", "9223372036854775808Ki", "0x10"),
    *("", " ", "1 ", "٣", "1_000", "NaN", "Infinity", "1e", "e1", "--1", "\x00", "1" + "0" * 17 + "m"),
]
ASKED = [GPU, "cpu", "memory", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/mig-1g.10gb"]
ASKED += ["aliyun.com/gpu-mem", "aliyun.com/gpu-count", "koordinator.sh/gpu-core", "volcano.sh/vgpu-memory"]


@pytest.mark.parametrize("resource", some(ASKED, 1))
def test_quantities_of_every_grammar(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture, resource: str
) -> None:
    pods = {repr(text[:20]): usual_pod("hostile", {GPU: "1", resource: text}) for text in QUANTITIES}
    assert not (problems := list(run_cases(runner, caplog, pods))), "\n".join(problems[:40])


def terms(count: int) -> Manifest:
    expressions = [{"key": f"k{n}", "operator": "In", "values": ["a", "b"]} for n in range(count)]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [one]} for one in expressions]
            }
        }
    }


LABEL = "x" * 63
SPECS: dict[str, Callable[[], Manifest]] = {
    "containers": lambda: usual_pod("hostile", containers=containers(7500)),
    "containers of shares": lambda: usual_pod("hostile", containers=containers(7500, **PARTS)),
    "init containers": lambda: usual_pod("hostile", initContainers=containers(7500)),
    "sidecars": lambda: usual_pod(
        "hostile", initContainers=[one | {"restartPolicy": "Always"} for one in containers(5000)]
    ),
    "empty containers": lambda: usual_pod("hostile", containers=[{}] * 100_000),
    "resources": lambda: usual_pod("hostile", resources(20_000)),
    "GPU resources": lambda: usual_pod("hostile", resources(20_000, form="nvidia.com/mig-{}g.1gb")),
    "resources of the pod": lambda: usual_pod(
        "hostile", resources={"requests": resources(10_000), "limits": resources(10_000)}
    ),
    "many in many": lambda: usual_pod("hostile", containers=containers(500, **resources(60, "1"))),
    "overhead": lambda: usual_pod("hostile", overhead=resources(20_000, "9" * 40)),
    "long quantities": lambda: usual_pod("hostile", resources(300, "9" * 4000)),
    "node selector": lambda: usual_pod("hostile", nodeSelector={f"k{n}": LABEL for n in range(10_000)}),
    "affinity": lambda: usual_pod("hostile", affinity=terms(10_000)),
    "values": lambda: usual_pod(
        "hostile",
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "k", "operator": "In", "values": [LABEL] * 20_000}]}
                    ]
                }
            }
        },
    ),
    "tolerations": lambda: usual_pod("hostile", tolerations=[{"key": f"k{n}"} for n in range(20_000)]),
    "claims": lambda: usual_pod(
        "hostile", resourceClaims=[{"name": f"c{n}", "resourceClaimName": f"c{n}"} for n in range(10_000)]
    ),
    "labels": lambda: usual_pod(
        "hostile", labels={f"nvidia.com/l{n}": LABEL for n in range(10_000)}
    ),
    "annotations": lambda: usual_pod("hostile", annotations={f"gpu-{n}": "1" for n in range(15_000)}),
    "long names": lambda: usual_pod("n" * 253, {f"nvidia.com/{'r' * 63}{n}": "1" for n in range(2000)}),
    "reported devices": lambda: usual_pod("hostile") | {"status": reported(10_000)},
    "claim statuses": lambda: usual_pod("hostile")
    | {
        "status": {
            "resourceClaimStatuses": [{"name": f"c{n}", "resourceClaimName": f"c{n}"} for n in range(10_000)]
        }
    },
    "priority": lambda: usual_pod("hostile", priority=2_000_000_000, schedulerName="s" * 100_000),
}  # fmt: skip


def reported(count: int) -> Manifest:
    devices = [{"resourceID": f"GPU-{n}", "health": "Healthy"} for n in range(count)]
    status = {"name": "main", "allocatedResourcesStatus": [{"name": GPU, "resources": devices}]}
    return {"phase": "Running", "containerStatuses": [status]}


@pytest.mark.parametrize("spec", some(SPECS, 2))
def test_specs_of_every_shape(runner: asyncio.Runner, caplog: pytest.LogCaptureFixture, spec: str) -> None:
    problems = list(run_cases(runner, caplog, {spec: SPECS[spec]()}))
    assert not problems, "\n".join(problems)


# Memory.

PROCESS = 187 << 20
"""Bytes of a Stowage with few objects. Memory must return to within a tenth of this."""
MODELS, MANY = numbered(",", "M{}"), [f"gpu-{n}-" for n in range(6000)]


def large(n: int) -> Manifest:
    annotations = [
        {"stowage.dev/gpu-models": f"{n},{MODELS}"},
        {"hami.io/vgpu-devices-allocated": f"{n},A,1,1:{TEXTS['HAMi devices']}"},
        dict.fromkeys([f"{key}{n}" for key in MANY], "1" * 20),
    ][n % 3]
    return usual_pod(f"p{n}", PARTS if n % 3 == 1 else None, annotations=annotations)


def small(n: int) -> Manifest:
    asks = {GPU: str(n % 8 + 1), "cpu": f"{n + 1}m", f"example.com/r{n}": "1"}
    annotations = {"stowage.dev/gpu-models": f"H100-{n},A{n}", "nvidia.com/nouse-gputype": f"T{n}"}
    return usual_pod(f"p{n}", asks, annotations=annotations, labels={f"nvidia.com/l{n}": "x"})


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("make", "count"), [(large, 300), (small, 3000)], ids=["300 large pods", "3000 small pods"]
)
def test_memory_is_back_after_deletion(cluster: Cluster, make: Callable[[int], Manifest], count: int) -> None:
    def come_and_go(numbers: Iterable[int]) -> None:
        for n in numbers:
            pod = make(n)
            cluster.put(pod)
            asked = {"Pod": pod, "Nodes": None, "NodeNames": NAMES}
            cluster.answer_all([("filter", json.dumps(asked).encode())])
            cluster.hear("Pod", "MODIFIED", pod | {"spec": pod["spec"] | {"nodeName": HAMI}})
            cluster.remove(pod)

    come_and_go(range(1))
    import_module("scipy.optimize")  # the first plan that needs it imports it
    gc.collect()
    tracemalloc.start()
    try:
        come_and_go(range(1, count))
        cluster.plan()
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < PROCESS / 8, f"{left >> 20} MiB"


# Harm to other pods.

NOWHERE = [
    usual_pod("h-huge", {GPU: "3000000000"}),
    usual_pod("h-million", {GPU: "1000000"}),
    usual_pod("h-cpu", {GPU: "1", "cpu": "9000000"}),
    usual_pod("h-memory", {GPU: "1", "memory": "9000Pi"}),
    usual_pod("h-mig", {"nvidia.com/mig-1g.10gb": "2000000000"}),
    usual_pod("h-models", annotations={"stowage.dev/gpu-models": "none-such"}),
    usual_pod("h-unread", annotations={"stowage.dev/nvlink": "yes"}),
    usual_pod("h-parts", {}, annotations={"stowage.dev/gpus": "64", "stowage.dev/gpu-memory": "900Gi"}),
    usual_pod("h-hami", {GPU: "2147483648", "nvidia.com/gpumem": "2147483648"}),
    usual_pod("h-many", containers=containers(4000)),
]
"""Pods that fit on no node, not even on an empty one."""
NORMAL = [
    usual_pod("n-1"),
    usual_pod("n-8", {GPU: "8"}),
    usual_pod("n-share", {}, annotations={"stowage.dev/gpu-compute": "30%"}),
    usual_pod("n-hami", {GPU: "1", "nvidia.com/gpumem": "8000"}),
    usual_pod("n-mig", {"nvidia.com/mig-1g.10gb": "1"}),
]
HALF = {"stowage.dev/gpu-compute": "50%"}
TENANTS = [
    usual_pod("t-1", {GPU: "2"}, node=PLAIN),
    usual_pod("t-2", {}, annotations=HALF | {"stowage.dev/gpu-indices": "3"}, node=OWN),
    usual_pod("t-3", {"nvidia.com/mig-1g.10gb": "3"}, node=MIG),
]  # fmt: skip


def answers_to_normal_pods(cluster: Cluster) -> list[Any]:
    """All answers to all normal pods: at once, after a plan, after a node of a new model, after a plan."""
    answers: list[Any] = []
    new = usual_node("new", {GPU: "4"}, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    for happens in (lambda: None, cluster.plan, lambda: cluster.hear("Node", "ADDED", new), cluster.plan):
        happens()
        for pod in NORMAL:
            answers += [cluster.filter(pod, [*NAMES, "new"]), cluster.prioritize(pod, [*NAMES, "new"])]
    return answers


@pytest.mark.parametrize(("restarted", "gone"), some(product([False, True], [False, True]), 1))
def test_pods_that_fit_nowhere_change_no_answer(runner: asyncio.Runner, restarted: bool, gone: bool) -> None:
    with_them, without = Cluster(runner), Cluster(runner)
    for one in (with_them, without):
        one.put(*TENANTS, *NORMAL * 3)
    if not restarted:
        answers_to_normal_pods(with_them)
        answers_to_normal_pods(without)
    for pod in NOWHERE:
        with_them.put(pod)
        with_them.ask_all(pod)
        with_them.put(
            *(
                pod | {"metadata": pod["metadata"] | {"name": f"{n}", "uid": f"{n}{pod}"[:99]}}
                for n in range(9)
            )
        )
    if gone:
        with_them.remove(*NOWHERE)
    assert answers_to_normal_pods(with_them) == answers_to_normal_pods(without)


def test_each_pod_that_fits_nowhere_alone(runner: asyncio.Runner) -> None:
    """After a restart, the first plan knows only this pod."""
    wanted = answers_to_normal_pods(Cluster(runner))
    for pod in some(NOWHERE):
        cluster = Cluster(runner)
        cluster.put(pod)
        assert answers_to_normal_pods(cluster) == wanted, pod["metadata"]["name"]


# The allocations are exact.

CPU = ("1", "7777777m", "16777217m", "1e15", "3n", "9" * 30)
VARIANTS: list[Manifest] = [
    *NORMAL,
    *NOWHERE,
    *(usual_pod("v", {GPU: "1", "cpu": text}) for text in CPU),
    *(usual_pod("v", {GPU: "1", "memory": text}) for text in ("263856108Ki", "1", "16777217Mi", "0.1")),
    *(
        usual_pod("v", asks, annotations={key: TEXTS[text][:length]})
        for key in KEYS
        for asks, text, length in (
            ({}, "digits", 3),
            (PARTS, "HAMi devices", 500),
            (PARTS, "indices", 30),
            ({GPU: "1"}, "names", 300),
        )
    ),
]  # fmt: skip
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 5),  # which pod
        st.sampled_from(["gone", "waits", "again", *NAMES]),
        st.integers(0, len(VARIANTS) - 1),
    ),
    min_size=5,
    max_size=60,
)


@seed(1)
@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(changes=CHANGES)
def test_the_books_are_those_of_the_objects_that_are_left(
    runner: asyncio.Runner, changes: list[tuple[int, str, int]]
) -> None:
    cluster, there, uids = Cluster(runner), dict[int, Manifest](), count()
    for which, what, variant in changes:
        if what == "again" and which in there:
            cluster.hear("Pod", "MODIFIED", there[which])
        elif what == "gone" and which in there:
            cluster.remove(there.pop(which))
        elif what in ("waits", *NAMES):
            pod = VARIANTS[variant]
            meta = pod["metadata"] | {"name": f"p{which}", "uid": f"u{next(uids)}"}
            there[which] = pod | {
                "metadata": meta,
                "spec": pod["spec"] | {"nodeName": what if what in NAMES else ""},
            }
            cluster.put(there[which])
    again = Cluster(runner)
    again.put(*there.values())
    assert cluster.books() == again.books()


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_the_books_after_huge_requests(runner: asyncio.Runner, resource: str) -> None:
    """What many huge pods take is given back to the last unit."""
    cluster, chance = Cluster(runner), random.Random(3)
    sizes = [f"{n}{unit}" for unit in ("m", "", "Ki", "Mi") for n in (1, 7, 8388607, 9999999, 16777217)]
    running = [usual_pod(f"p{n}", {GPU: "1", resource: sizes[n % len(sizes)]}, node=PLAIN) for n in range(60)]
    cluster.put(*running)
    chance.shuffle(running)
    cluster.remove(*running[:40])
    again = Cluster(runner)
    again.put(*running[40:])
    assert cluster.books() == again.books()
    cluster.remove(*running[40:])
    assert cluster.books() == Cluster(runner).books()


def test_the_books_after_a_long_day(runner: asyncio.Runner) -> None:
    """Many large and odd pods and some nodes come and go. Then the allocations are those of a new process."""
    cluster, chance = Cluster(runner), random.Random(7)
    running: list[Manifest] = []
    for n in range(examples(1500, least=300)):
        if len(running) > 20 or (running and chance.random() < 0.4):
            cluster.remove(running.pop(chance.randrange(len(running))))
        pod = chance.choice(VARIANTS)
        meta = pod["metadata"] | {"name": f"p{n}", "uid": f"u{n}"}
        node = chance.choice(NAMES)
        running.append(pod | {"metadata": meta, "spec": pod["spec"] | {"nodeName": node}})
        cluster.put(running[-1])
        if n % 100 == 0:
            node_manifest = chance.choice(usual_nodes())
            cluster.hear("Node", "DELETED", node_manifest)
            cluster.hear("Node", "ADDED", node_manifest)
    cluster.remove(*running)
    assert cluster.books() == Cluster(runner).books()
    cluster.alive()
