"""How many whole GPUs any placement could free."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.replay.snapshots import replay_snapshot
from tests.extender.replay.test_repack import NO_SETTINGS, node, quiet, share


def replayed(folder: Path, *items: Any, policy: str = "best-fit") -> list[dict[str, Any]]:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return list(replay_snapshot([path], [policy], NO_SETTINGS, 0, quiet))


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
    with TemporaryDirectory() as folder:
        today, row = replayed(Path(folder), *items, policy=policy)
    assert row["whole_gpus_free"] <= row["most_whole_gpus_free"]
    assert today["whole_gpus_free"] <= today["most_whole_gpus_free"] <= today["totals"]["gpus"]


def test_the_bound_counts_what_pods_need_beyond_gpus_in_use(tmp_path: Path) -> None:
    labels = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.memory": "40960"}
    halves = [share(f"half-{i}", "n1", "50%", i) for i in range(2)]
    rows = replayed(tmp_path, node("n1", labels=labels), *halves)
    assert rows[0]["most_whole_gpus_free"] == rows[1]["whole_gpus_free"] == 3
    halves[0]["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"  # half of its GPU is left for another
    rows = replayed(tmp_path, node("n1", labels=labels), *halves)
    assert rows[0]["most_whole_gpus_free"] == 3
