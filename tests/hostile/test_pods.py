"""Pods of strangers leave no memory behind, change no answer to others, and what they hold is exact."""

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
    GPU,
    HAMI,
    MIG,
    NAMES,
    OWN,
    PLAIN,
    Cluster,
    Manifest,
    usual_node,
    usual_nodes,
    usual_pod,
)
from tests.hostile.objects import OF_PODS, PARTS, TEXTS, containers, numbered

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
        for key in OF_PODS
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
