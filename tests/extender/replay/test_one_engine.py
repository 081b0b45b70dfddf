"""``replay --snapshot`` places each pod where ``filter`` and ``prioritize`` would send it, node by node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.cluster.factory import state_of
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.trial.cluster_pods import as_new
from extender.verbs.filter import filter_nodes
from extender.verbs.prioritize import scores_of
from tests.extender.replay.snapshots import replay_snapshot
from tests.extender.replay.test_repack import node, pod, quiet

GPU = "nvidia.com/gpu"
SPOT = "cloud.google.com/gke-spot"
GANG = "scheduling.x-k8s.io/pod-group"
TOLERATES = [{"key": SPOT, "operator": "Exists"}]


def gfd(product: str, gpus: int, mib: int, replicas: int = 1, **more: str) -> dict[str, str]:
    labels = {"product": product, "count": str(gpus), "memory": str(mib), "replicas": str(replicas)}
    return {f"{GPU}.{name}": text for name, text in labels.items()} | more


NODES = [
    *(node(f"h100-{n}", 8, cpu="192", labels=gfd("NVIDIA-H100-80GB-HBM3", 8, 81559)) for n in range(3)),
    *(node(f"l40s-{n}", 16, cpu="96", labels=gfd("NVIDIA-L40S-SHARED", 4, 46068, 4)) for n in range(2)),
    node("t4", 1, labels=gfd("Tesla-T4", 1, 15360)),
    node("spot", 8, cpu="96", labels=gfd("NVIDIA-A100-SXM4-80GB", 8, 81920, **{SPOT: "true"})),
]


def labelled(one: dict[str, Any], **labels: str) -> dict[str, Any]:
    one["metadata"]["labels"] = labels
    return one


PODS = [
    *(pod(f"small-{n}", "h100-0", 1, second=n) for n in range(6)),
    *(pod(f"pair-{n}", "h100-1", 2, second=10 + n) for n in range(3)),
    *(
        labelled(
            pod(f"sweep-{n}", "h100-2", 1, second=20 + n, tolerations=TOLERATES),
            **{"stowage.dev/queue": "backfill"},
        )
        for n in range(4)
    ),
    *(labelled(pod(f"gang-{n}", f"h100-{n}", 2, second=30 + n), **{GANG: "train"}) for n in (0, 2)),
    pod("names-h100", "h100-1", 1, second=40, nodeSelector={f"{GPU}.product": "NVIDIA-H100-80GB-HBM3"}),
]


def by_the_verbs(items: list[dict[str, Any]], settings: Settings) -> dict[str, str]:
    """Each pod is asked about by the verbs, as kube-scheduler does, and bound to the node with score 10."""
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": items}), "")
    state = state_of(settings)
    for events in SnapshotSource(snapshot, "").list_once():
        state.apply(events)
    waiting = sorted(state.pods.values(), key=lambda one: (one.started, one.key))
    state.apply([Deleted("Pod", one.key) for one in waiting])
    found = {}
    for one in map(as_new, waiting):
        found[one.key] = node_for(state, one, settings)
        state.apply([Upserted(replace(one, node_name=found[one.key], phase="Running"))])
    return found


def node_for(state, one: Pod, settings: Settings) -> str:
    accepts = NodeFilter(one)
    names = [name for name, known in state.nodes.items() if not accepts.rejection(known)]
    result, evaluation = filter_nodes(state, FilterArgs(one, NodeNames.of(names)), settings)
    assert evaluation is not None
    scores = np.frombuffer(bytes(scores_of(evaluation)), np.uint8)
    assert result.names is not None
    return names[int(scores.argmax())]


@pytest.mark.parametrize("policy", ["best-fit", "least-allocated", "most-allocated"])
def test_the_verbs_and_the_replay_agree_on_every_pod(tmp_path: Path, policy: str) -> None:
    """Policies that learn nothing, so that both know the same."""
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": NODES + PODS}))
    settings = Settings(policy=policy, shortlist=0, gang_check=False)
    _, row = replay_snapshot([path], [policy], settings, quiet, allow_downgrade=True)
    assert row["kept"] == {}
    assert row["placed"] == by_the_verbs(NODES + PODS, settings)


def test_a_backfill_job_stays_on_spot(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    sweep = labelled(pod("sweep", "spot", 8, tolerations=TOLERATES), **{"stowage.dev/queue": "backfill"})
    path.write_text(json.dumps({"kind": "List", "items": [*NODES, sweep]}))
    _, row = replay_snapshot([path], ["inventory"], Settings(), quiet, allow_downgrade=True)
    assert row["placed"] == {"ml/sweep": "spot"}
