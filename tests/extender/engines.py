"""An engine with what the tests ask it: filter and preempt, as kube-scheduler asks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from extender.k8s.objects import REQUIRED_KINDS, Kind, Listed
from extender.server.engine import Engine
from extender.server.metrics import Metrics
from extender.settings import Settings
from extender.source.interface import Interruption, WatchStatus
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.source.watched_kinds import WATCHED_KINDS

DEVICES = [Listed(kind, frozenset()) for kind in WATCHED_KINDS.keys() - REQUIRED_KINDS]
SYNCED = [Listed("Node", frozenset("ab")), Listed("Pod", frozenset()), *DEVICES]


def make_engine(**settings: object) -> Engine:
    source = SnapshotSource(Snapshot(), "test")
    return Engine(source, Settings.model_validate(settings), Metrics(list))


class LiveSource(SnapshotSource):
    """A snapshot that may change."""

    def watches(self) -> Mapping[Kind, WatchStatus]:
        return {"Node": WatchStatus("nodes"), "Pod": WatchStatus("pods")}


class BrokenSource(LiveSource):
    """One whose watch breaks."""

    broken: Interruption | None = None
    behind = False

    async def caught_up(self, recent: float = 0.0) -> bool:
        return not self.behind

    def interruption(self) -> Interruption | None:
        return self.broken


async def nodes_for(
    engine: Engine, name: str, *, gpus: int = 8, priority: int = 0, names: Sequence[str] = ("a",)
) -> tuple[list[str] | None, str]:
    """The nodes that filter answers for a pod, and its error."""
    container = {"resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    pod = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [container], "priority": priority},
    }
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": [*names]}).encode()
    reply = json.loads((await engine.verbs["filter"](body))[0])
    return reply["NodeNames"], reply["Error"]


async def victims_for(
    engine: Engine, name: str = "v", *, gpus: int, nodes: Mapping[str, str] = {"a": "running"}
) -> dict[str, list[str]]:
    """The victims by node; ``nodes``: each candidate with the name of a victim."""
    container = {"resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    pod = {"metadata": meta, "spec": {"containers": [container], "priority": 10}}
    candidates = {
        node: {"Pods": [{"UID": f"uid-{victim}"}], "NumPDBViolations": 0} for node, victim in nodes.items()
    }
    body = json.dumps({"Pod": pod, "NodeNameToMetaVictims": candidates}).encode()
    reply, _ = await engine.verbs["preempt"](body)
    found = json.loads(reply)["NodeNameToMetaVictims"]
    return {node: [victim["UID"] for victim in one["Pods"]] for node, one in found.items()}
