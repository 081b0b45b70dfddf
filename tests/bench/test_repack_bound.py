"""How many whole GPUs any placement could free, and how many nodes any drain keeps."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.packing.repack_bound import fewest_kept, most_whole_gpus_free
from extender.plan.drain import plan_drain
from extender.replay.repack import SnapshotReplay
from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.plan.clusters import node as whole
from tests.extender.plan.clusters import pod, source_of
from tests.extender.plan.test_drain import SLICED
from tests.extender.plan.test_property import clusters, quiet
from tests.extender.replay.test_repack import node, share


def replayed(*items: Any, policy: str = "best-fit") -> tuple[int, int, int]:
    """The bound, and GPUs whole and free today and under the policy."""
    replay = SnapshotReplay(source_of(*items).state(), "", allow_downgrade=False)
    today = replay.row("today")["whole_gpus_free"]
    row = replay.repacked(policy, POLICIES[policy], lambda part: None)
    return most_whole_gpus_free(replay), today, row["whole_gpus_free"]


pods_of_a_node = st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0]), max_size=4)


@settings(max_examples=examples(30))
@example([[0.1, 0.3], [0.3, 0.7, 0.7, 0.3]], "best-fit")
@example([[], [1.0], [0.1, 0.1]], "best-fit")  # nothing is free of the GPU that one pod has
@given(st.lists(pods_of_a_node, min_size=1, max_size=4), st.sampled_from(sorted(POLICIES)))
def test_no_policy_frees_more_gpus_than_the_bound(parts: list[list[float]], policy: str) -> None:
    """Two GPUs a node; each pod has a GPU with room for it. Every third pod is pinned."""
    labels = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.memory": "40960"}
    items: list[Any] = []
    for n, on_node in enumerate(parts):
        items.append(node(f"n{n}", 2, labels=labels))
        used = [0.0, 0.0]
        for i, part in enumerate(on_node):
            if fitting := [gpu for gpu in (0, 1) if used[gpu] + part <= 1.001]:
                used[fitting[-1]] += part
                one = share(f"p{n}-{i}", f"n{n}", f"{part:.0%}", fitting[-1])
                one["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet" if i % 3 else "DaemonSet"
                items.append(one)
    bound, today, then = replayed(*items, policy=policy)
    assert max(today, then) <= bound <= 2 * len(parts)


def test_the_bound_counts_what_pods_need_beyond_gpus_in_use() -> None:
    labels = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.memory": "40960"}
    halves = [share(f"half-{i}", "n1", "50%", i) for i in range(2)]
    bound, _, then = replayed(node("n1", labels=labels), *halves)
    assert bound == then == 3
    halves[0]["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"  # half of its GPU is left for another
    assert replayed(node("n1", labels=labels), *halves)[0] == 3


@settings(max_examples=examples(30))
@given(clusters())
def test_no_drain_keeps_fewer_nodes_than_the_bound(items: list[dict[str, Any]]) -> None:
    trial = source_of(*items, bind=True).trial()
    trial.place_waiting()
    bound = fewest_kept(trial)
    assert bound is None or bound <= plan_drain(trial, quiet, keep_room=False).kept


def test_a_pod_may_stay_where_its_rules_would_not_let_it_go() -> None:
    """The bound does not move it to a node that they allow."""
    items = [whole("a", 1, labels={"zone": "a"}), whole("b", 2, labels={"zone": "b"}), pod("x", "b", 1)]
    items.append(pod("y", "b", 1, nodeSelector={"zone": "a"}))
    assert fewest_kept(source_of(*items).trial()) == 1


def test_equal_pods_may_have_different_devices() -> None:
    """The first pod may not leave its H100; the others ask for the same and share a node with time slices."""
    sliced = [whole(f"l40s-{n}", 16, labels=SLICED) for n in (1, 2)]
    items = [whole("h100", 1), *sliced, pod("a", "h100"), pod("b", "l40s-1"), pod("c", "l40s-2")]
    assert fewest_kept(source_of(*items).trial()) == 2
