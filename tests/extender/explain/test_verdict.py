"""The decisive reason why a pod fits nowhere, and the ways out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.explain.answers import Need, NeedKind, Verdict
from extender.explain.needs import at_most
from extender.explain.pod import explain
from extender.explain.what_if import unplaceable_member
from extender.explain.words import Word
from extender.k8s.affinity import NodeSelectorRequirement, NodeSelectorTerm, SchedulingConstraints, Taint
from extender.k8s.objects import Container, Node, Owner, Pod, PodSpec
from extender.queues.gang_words import GANG, GANG_MIN
from tests.extender.builders import NOW, make_node, make_pod, make_state

TAINTED = replace(make_node("a"), taints=(Taint("team", "ml", "NoSchedule"),))
JOB = Owner("Job", "job")


def selecting(pod: Pod, **labels: str) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_selector=tuple(labels.items())))


def verdict(pod: Pod, *objects: Node | Pod) -> Verdict:
    return explain(make_state(*objects), pod, now=NOW).verdict


def test_a_misspelt_resource_decides_before_full_nodes() -> None:
    found = verdict(
        make_pod("new", resource="nvidia.com/gpus"), make_node("a"), make_pod("x", 8, node_name="a")
    )
    assert found.why.startswith("No node offers nvidia.com/gpus. Did you mean nvidia.com/gpu?")
    assert found.ways[0] == (
        'write limits: {nvidia.com/gpu: "1"}; then: not enough free GPUs (1 of 1 node) '
        "(a: needs 1 nvidia.com/gpu, 0 of 8 are free)"
    )
    assert found.ways[1] == "then wait until default/x on a ends: that frees enough room"


def test_resources_that_no_node_has_together_are_named_also_behind_a_taint() -> None:
    both = (("nvidia.com/gpu", "1"), ("nvidia.com/mig-3g.40gb", "1"))
    mig = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/mig-3g.40gb": "2"}
    nodes = TAINTED, replace(TAINTED, name="b", uid="b", allocatable=mig)
    found = verdict(make_pod("new", spec=PodSpec((Container("main", both),))), *nodes)
    assert found.why.startswith("No node offers nvidia.com/gpu and nvidia.com/mig-3g.40gb together")
    assert found.ways[0].startswith("remove nvidia.com/gpu; then: node has a taint")
    assert found.ways[1].startswith("then write tolerations: [{key: team,")


def test_what_is_in_the_way_behind_a_taint_is_told_with_it() -> None:
    rdma = Container("main", (("nvidia.com/gpu", "1"), ("rdma/hca", "1")))
    with_rdma = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "4", "rdma/hca": "2"}
    models = {"stowage.dev/gpu-models": "H100"}
    pod = make_pod("new", spec=PodSpec((rdma,)), annotations=models)
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    small = replace(TAINTED, labels=labels, name="b", uid="b")
    other = make_node("c", labels={"nvidia.com/gpu.product": "NVIDIA-L40S"})
    found = verdict(pod, small, replace(other, allocatable=with_rdma, taints=TAINTED.taints))
    assert found.why.startswith("node has a taint that the pod does not tolerate: team=ml:NoSchedule (2 of 2")
    assert "; without that rule: " in found.why


@pytest.mark.parametrize("evictable", [True, False])
def test_eviction_is_advised_only_where_it_makes_room(evictable: bool) -> None:
    pod = replace(make_pod("new", 8), priority=100 if evictable else 0)
    found = verdict(pod, make_node("a"), make_pod("x", 8, node_name="a"))
    assert any("evict" in way for way in found.ways) == evictable
    assert "stowage plan change --add 1xa" in found.ways[-1]


def test_gpu_memory_without_a_unit_is_meant_in_mib() -> None:
    pod = make_pod("new", 0, annotations={"stowage.dev/gpu-memory": "10240"})
    found = verdict(pod, make_node("a"))
    assert found.ways[0].startswith(
        'write annotations: {stowage.dev/gpu-memory: "10240Mi"}; then: No node is '
    )


def test_no_move_is_advised_for_more_storage_than_any_node_has() -> None:
    storage = (("nvidia.com/gpu", "1"), ("ephemeral-storage", "100Ti"))
    pod = make_pod("new", spec=PodSpec((Container("main", storage),)))
    x, node = make_pod("x", 8, node_name="a", owner=JOB), {"ephemeral-storage": "400Gi"}
    found = verdict(pod, make_node("a", **node), make_node("b", **node), x)
    assert found.why == f"{Word.TOO_LARGE()}."
    assert found.ways == ("request at most 400 GiB of ephemeral-storage per pod: b has no more",)


@pytest.mark.parametrize(
    ("nodes", "says"), [("ab", "2 nodes would accept the whole gang"), ("a", "--add 1xa")]
)
def test_behind_a_taint_the_whole_gang_counts(nodes: str, says: str) -> None:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": "2"}
    pods = [make_pod(name, 8, labels=labels) for name in ("v", "w")]
    state = make_state(*pods, *(replace(TAINTED, name=name, uid=name) for name in nodes))
    state.gang_check = True
    (way,) = explain(state, pods[0], now=NOW).verdict.ways
    assert way.endswith(says)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("gpu", ""),
        ("gpu.product", "nvidia.com/gpu.product"),
        ("nvidia.com/gpu-product", "nvidia.com/gpu.product"),
        ("cloud.google.com/gke-accelerator", ""),
    ],
)
def test_the_domain_of_a_label_does_not_make_it_near(key: str, near: str) -> None:
    labels = {"cloud.google.com/gke-spot": "true", "nvidia.com/gpu.product": "NVIDIA-L40S"}
    found = verdict(selecting(make_pod("new"), **{key: "x"}), make_node("a", labels=labels))
    assert found.why.startswith(f"No node has a label {key}{f' (did you mean {near}?)' if near else ''}.")


@pytest.mark.parametrize(
    ("labels", "way"),
    [
        ({}, "remove pool In a, b from spec.affinity.nodeAffinity"),
        (
            {"pool": "c"},
            'write matchExpressions: [{key: pool, operator: In, values: ["c"]}] in place of pool In a, b '
            "in spec.affinity.nodeAffinity",
        ),
    ],
)
def test_a_node_affinity_is_changed_by_a_line_to_paste(labels: dict[str, str], way: str) -> None:
    term = NodeSelectorTerm((NodeSelectorRequirement("pool", "In", ("a", "b")),))
    rules = SchedulingConstraints(node_affinity=(term,))
    found = verdict(make_pod("new", scheduling_constraints=rules), make_node("a", labels=labels))
    assert found.ways == (f"{way}: 1 node would accept it",)


def test_parts_of_gpus_that_no_system_gives_are_told_with_what_whole_gpus_would_meet() -> None:
    parts = Container("main", (("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "4000")))
    found = verdict(make_pod("new", spec=PodSpec((parts,))), TAINTED)
    assert found.why.startswith("It requests fractions of GPUs in the format of HAMi, which no node runs.")
    way = 'write limits: {nvidia.com/gpu: "1"} for whole GPUs, without nvidia.com/gpumem; then: node has a '
    assert found.ways[0].startswith(way)
    assert found.ways[1].startswith("then write tolerations: [{key: team,")


@pytest.mark.parametrize(("kind", "total", "says"), [
    (NeedKind.BYTES, 700 << 20, "700 MiB of ephemeral-storage"),
    (NeedKind.BYTES, (80 << 30) + 5, "80 GiB of ephemeral-storage"),
    (NeedKind.BYTES, 1000, None),
    (NeedKind.GPU_MEMORY, 512, "512 MiB of a GPU's memory"),
    (NeedKind.GPU_MEMORY, (40 << 10) + 900, "40 GiB of a GPU's memory"),
    (NeedKind.MEMORY, 1500, "1500 MiB of memory"),
    (NeedKind.CPU, 1995, "1.995 CPUs"),
    (NeedKind.CPU, 4, "0.004 CPU"),
    (NeedKind.GPUS, 1, "1 GPU"),
    (NeedKind.DEVICES, 0, None),
])  # fmt: skip
def test_the_largest_request_is_rounded_down_and_never_nothing(
    kind: NeedKind, total: int, says: str | None
) -> None:
    what = "memory (MiB)" if kind is NeedKind.MEMORY else "ephemeral-storage"
    said = at_most(Need(what, total + 1, 0, total, "", kind))
    assert (str(said) if said else None) == says


def test_of_a_gang_of_many_unlike_members_only_the_first_are_tried() -> None:
    """Each costs an evaluation, and requests of kube-scheduler wait meanwhile."""

    def blocked(unlike: int) -> Pod | None:
        labels = {GANG: "g", GANG_MIN: str(unlike + 2)}
        sizes = [1, *range(2, unlike + 2), 100]
        members = [replace(make_pod(f"m{n:03}", n), labels=labels) for n in sizes]
        return unplaceable_member(make_state(make_node("a", 64), *members), members[0])

    few = blocked(2)
    assert few is not None
    assert few.name == "m100"
    assert blocked(40) is None


def test_memory_that_no_node_has_is_called_memory() -> None:
    pod = make_pod("new", spec=PodSpec((Container("main", (("nvidia.com/gpu", "1"), ("memory", "4Ti"))),)))
    (way,) = verdict(pod, make_node("a")).ways
    assert way.startswith("request at most ")
    assert " GiB of memory per pod: a has no more" in way
