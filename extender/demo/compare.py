"""The same pods placed twice on the bundled cluster: with the scores of kube-scheduler's default profile, and
with Stowage's policy. In both cases the engine of the service determines where a pod fits."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from extender.cluster.census import CensusTaker
from extender.cluster.factory import state_of
from extender.cluster.totals import Totals
from extender.data import CLUSTER
from extender.demo.pods import GPU, stream
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.trial.cluster_pods import trial_of
from extender.trial.trial import Item, Trial
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.baselines import Baseline

_LARGE = 8  # GPUs


class DefaultProfile(Baseline):
    """The sum of LeastAllocated and BalancedAllocation of CPU and memory (kubernetes/kubernetes v1.36,
    pkg/scheduler/framework/plugins/noderesources). The other plugins of kube-scheduler's default profile give
    every node the same score here: the pods have no preferences, tolerations, spread constraints or volumes.
    """

    name = "default-profile"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        arrays = fleet.arrays
        total = np.maximum([arrays.total_cpu, arrays.total_memory], 1)
        free = np.array([arrays.free_cpu, arrays.free_memory])
        left = free - [[request.cpu_milli], [request.memory_bytes]]
        least = (100 * left // total).sum(axis=0) // 2
        before, after = (_balance(total - rest, total) for rest in (free, left))
        score: Floats = (least + 50 + (50 + after - before) // 2).astype(np.float32)
        return -score


def _balance(taken: npt.NDArray[np.int64], total: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(N,) balance of the used fractions of CPU and memory (2, N), up to 100."""
    cpu, memory = np.minimum(taken / total, 1)
    found: npt.NDArray[np.int64] = (100 * (1 - abs(cpu - memory) / 2)).astype(np.int64)
    return found


def demo_cluster(seed: int) -> Snapshot:
    """The bundled cluster with the pods of this seed. The last pending pod is created now, and each earlier
    one a second before the next."""
    items = [*json.loads(CLUSTER.read_text(encoding="utf-8"))["items"], *stream(seed)]
    pending = [item for item in items if item["kind"] == "Pod" and item["status"]["phase"] == "Pending"]
    now = datetime.now(UTC)
    for age, item in enumerate(reversed(pending)):
        item["metadata"]["creationTimestamp"] = f"{now - timedelta(seconds=age):%Y-%m-%dT%H:%M:%SZ}"
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": items}), "the example")
    return snapshot


def placed(
    snapshot: Snapshot, settings: Settings, progress: Callable[[float], None], *, by_default: bool = False
) -> Trial:
    """Place the pending pods in order where they fit; ``by_default``: with the default profile."""
    state = state_of(settings)
    for events in SnapshotSource(snapshot, "the example").list_once():
        state.apply(events)
    if by_default:
        state.policy = DefaultProfile()
    trial = trial_of(state, real_moves=True)
    for done, _ in enumerate(trial.starting(), 1):
        progress(done / len(trial.waiting))
    progress(1.0)
    return trial


def totals_of(trial: Trial) -> Totals:
    return asyncio.run(CensusTaker(trial.state).take()).totals


def figures(trial: Trial) -> dict[str, str]:
    pods, totals = trial.waiting, totals_of(trial)
    started = [item for item in pods if item.key in trial.held]
    return {
        "pods placed": f"{len(started)} of {len(pods)}",
        "8-GPU jobs placed": f"{sum(map(_is_large, started))} of {sum(map(_is_large, pods))}",
        "GPUs in use": f"{totals.used:.0f} of {totals.gpus}",
        "nodes with no GPU in use": str(trial.free_nodes()),
    }


def _is_large(item: Item) -> bool:
    return item.request.devices == ((GPU, _LARGE),)


def comparison(default: Trial, stowage: Trial) -> str:
    """The figures of both runs side by side."""
    without, with_stowage = figures(default), figures(stowage)
    rows = [("", "kube-scheduler's", "with"), ("", "default spreading", "Stowage")]
    rows += [(label, cell, with_stowage[label]) for label, cell in without.items()]
    first, second, third = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"  {a:<{first}}   {b:>{second}}   {c:>{third}}" for a, b, c in rows)


def still_pending(trial: Trial) -> str:
    """The unplaced pods, by request and reason."""
    pods = [item for item in trial.waiting if item.key not in trial.held]
    if not pods:
        return "With Stowage no pods remain pending."
    asked = Counter((item.request.devices, trial.why_not(item)) for item in pods)
    lines = ["Pods still pending with Stowage, by request:"]
    for (devices, why), count in asked.most_common():
        lines.append(f"  {count:>3} x {', '.join(f'{name}: {n}' for name, n in devices)} ({why})")
    return "\n".join(lines)
