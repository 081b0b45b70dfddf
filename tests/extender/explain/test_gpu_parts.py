"""Which part of which GPU each pod is shown to have."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from extender.explain.fleet_row import FREE, FleetRow, GpuPart, fleet_row, gpu_parts, memory_slices
from extender.k8s.objects import Node, Pod
from tests.extender.builders import make_node, make_pod, make_state

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
SHARING = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.count": "2"}


def mig(profile: str) -> str:
    return f"nvidia.com/mig-{profile}"


def row_of(*objects: Node | Pod) -> FleetRow:
    row = fleet_row(make_state(*objects), "a", None, 0.0)
    assert row is not None
    return row


def parts_of(*objects: Node | Pod) -> list[GpuPart]:
    state = make_state(*objects)
    held = [state.allocations.allocation_of(key) for key in state.allocations.pods_on("a")]
    return gpu_parts(state.fleet, "a", held)


def mig_node(gpus: int, **counts: int) -> Node:
    resources = {mig(name.replace("_", ".").lstrip(".")): str(count) for name, count in counts.items()}
    return make_node("a", 0, labels=A100 | {"nvidia.com/gpu.count": str(gpus)}, **resources)


def test_shares_are_where_the_annotations_say() -> None:
    annotations = {
        "stowage.dev/gpu-compute": "30%",
        "stowage.dev/gpu-memory": "8Gi",
        "stowage.dev/gpu-indices": "1",
    }
    row = row_of(make_node("a", 2, labels=SHARING), make_pod("p", 0, node_name="a", annotations=annotations))
    [(gpu, pod, resource, _, compute_milli, memory_mib, *_)] = row.parts
    assert (gpu, compute_milli, memory_mib, resource) == (1, 300, 8192, -1)
    assert row.pods[pod].exact


def test_mig_instances_lie_where_the_geometry_permits() -> None:
    """All-balanced: a 3g on the upper half, since the lower one has place for the others only without it."""
    node = mig_node(2, _1g_10gb=4, _2g_20gb=2, _3g_40gb=2)
    pod = make_pod("p", 1, resource=mig("3g.40gb"), node_name="a")
    found = parts_of(node, pod)
    for gpu in (0, 1):
        windows = sorted((p.start, p.size) for p in found if p.gpu == gpu)
        assert windows == [(0, 2), (2, 1), (3, 1), (4, 4)]
    assert [(p.gpu, p.start) for p in found if p.pod == 0] == [(0, 4)]
    assert memory_slices(make_state(node).fleet.specs[0], 0) == 8  # type: ignore[arg-type]


def test_instances_that_find_no_place_have_none() -> None:
    """Replicas of MIG instances are more than instances can be."""
    node = make_node(
        "a",
        0,
        labels=A100
        | {
            "nvidia.com/gpu.count": "1",
            "nvidia.com/mig-1g.10gb.replicas": "4",
            "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED",
        },
        **{mig("1g.10gb"): "28"},
    )
    assert {part.size for part in parts_of(node)} == {0}


def test_an_over_committed_node_shows_all_that_pods_have() -> None:
    pods = make_pod("p", 2, node_name="a"), make_pod("q", 1, node_name="a")
    found = parts_of(make_node("a", 2), *pods)
    assert Counter(part.pod for part in found) == {0: 2, 1: 1}


@given(st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]), max_size=8), st.data())
def test_no_two_instances_overlap_and_nothing_is_lost(profiles: list[str], data: st.DataObject) -> None:
    counts = Counter(profiles)
    labels = A100 | {"nvidia.com/gpu.count": "8"}
    node = make_node("a", 0, labels=labels, **{mig(name): str(count) for name, count in counts.items()})
    wanted = {name: data.draw(st.integers(0, count)) for name, count in counts.items()}
    pods = [
        make_pod(f"p-{name}", count, resource=mig(name), node_name="a")
        for name, count in wanted.items()
        if count
    ]
    found = parts_of(node, *pods)
    by_resource: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for part in found:
        by_resource[part.resource] += part.devices
        held[part.resource] += part.devices * (part.pod != FREE)
    assert by_resource == {mig(name): count for name, count in counts.items()}
    assert held == Counter({mig(name): count for name, count in wanted.items()})
    for gpu in {part.gpu for part in found}:
        slices = [s for p in found if p.gpu == gpu for s in range(p.start, p.start + p.size)]
        assert len(slices) == len(set(slices))
