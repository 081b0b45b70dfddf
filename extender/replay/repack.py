"""``stowage replay --snapshot``: the running GPU pods of a cluster, placed again on the same nodes.

The pods that can move are taken off their nodes and placed one by one, in the order in which they started, by
what ``filter`` and ``prioritize`` would answer; the policy learns and updates its prices as in the service.
If pods find no place, they are left where they run from the beginning, and the others are placed again: every
row has a place for every pod that runs today.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from extender.cluster.factory import prior_of
from extender.replay.bound import most_whole_gpus
from extender.replay.cluster_engine import ClusterEngine, as_new
from extender.replay.movable import counted
from extender.replay.other_room import OtherRoom
from extender.replay.running_pods import RunningPods
from extender.replay.runs import Progress
from extender.replay.work import Item, Work
from extender.settings import Settings
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import whole_gpus, whole_nodes
from packing.policies.interface import Policy
from packing.policies.placer import Arrivals
from packing.policies.registry import POLICIES

TODAY = "today"
JOBS = (8, 4, 2)
"""GPUs of the jobs of which a row says how many could still start."""
_ROUNDS = 8
"""After so many rounds in which pods found no place, all pods stay where they are."""


def replay_snapshot(
    paths: Sequence[Path],
    policies: Sequence[str],
    settings: Settings,
    sample: int,
    progress: Progress,
    *,
    allow_downgrade: bool = False,
) -> Iterator[dict[str, Any]]:
    """Rows, one for the cluster as it is and one per policy: whole GPUs and whole nodes free, how many pods
    run on another node then, and which were left where they run because the policy found no place for them.
    ``sample`` is the number of fitting nodes that are looked at, 0 for all. Without ``allow_downgrade`` no
    pod gets a weaker device than it has.

    Raises ``BadInput``, ``Unavailable`` and ``SettingsError``.
    """
    replay = SnapshotReplay(RunningPods.of_files(paths, settings), sample, allow_downgrade=allow_downgrade)
    today = replay.row(TODAY)
    bound = replay.most_whole_gpus_free()
    yield today | {"most_whole_gpus_free": bound}
    prior, minimum = prior_of(settings.demand), settings.minimum_slice_milli
    for name in policies:
        new_policy = partial(POLICIES[name], prior=prior, minimum_milli=minimum)
        row = replay.repacked(name, new_policy, partial(progress, f"{replay.pods.name} {name}"))
        yield row | {"most_whole_gpus_free": bound}


class SnapshotReplay:
    """The pods of a cluster that are placed again. Between calls all of them are where they run."""

    def __init__(self, pods: RunningPods, sample: int, *, allow_downgrade: bool) -> None:
        self.pods, self._state = pods, pods.state
        self._work = work = Work(
            ClusterEngine(pods.state),
            pods.open,
            OtherRoom.of(pods.state),
            sample=sample,
            allow_downgrade=allow_downgrade,
        )
        for pod in pods.movable:
            item = Item(pod.key, pod.request, pod.allowed(), pod.home, as_new(pods.state.pods[pod.key]))
            work.movable[pod.key] = item
            work.runs(item, pod.held)

    def repacked(
        self, policy: str, new_policy: Callable[[], Policy], report: Callable[[float], None]
    ) -> dict[str, Any]:
        """The row of a policy."""
        started = time.perf_counter()
        movable, kept = self._work.movable, dict[str, str]()
        homes = self._lifted(movable)
        for _ in range(_ROUNDS):
            self._restored({key: homes[key] for key in kept})
            no_place = self._place_all(new_policy(), kept, report)
            if not no_place:
                break
            self._lifted(self._work.at)
            kept |= no_place
        else:
            self._restored(homes)
            kept = {key: kept.get(key, "others found no place") for key in movable}
        row = self.row(policy, kept) | {"seconds": round(time.perf_counter() - started, 3)}
        self._lifted(self._work.at)
        self._restored(homes)
        return row

    def _place_all(
        self, policy: Policy, kept: dict[str, str], report: Callable[[float], None]
    ) -> dict[str, str]:
        """Place each pod but the ``kept`` ones in turn; by key, why the others fit nowhere."""
        work, no_place = self._work, dict[str, str]()
        self._state.policy = policy
        arrivals = Arrivals(work.fleet, policy)
        work.held_back.clear()
        for number, pod in enumerate(self.pods.movable):
            report(number / len(self.pods.movable))
            if pod.key in kept:
                continue
            arrivals.arrive(pod.demand)
            if not work.place(item := work.movable[pod.key]):
                no_place[pod.key] = work.why_nowhere(item)
        report(1.0)
        return no_place

    def _lifted(self, keys: Iterable[str]) -> dict[str, Allocation]:
        return {key: self._work.lift(self._work.movable[key]) for key in [*keys]}

    def _restored(self, held: Mapping[str, Allocation]) -> None:
        for key, allocation in held.items():
            self._work.restore(self._work.movable[key], allocation)

    def most_whole_gpus_free(self, *, by_node: bool = False) -> int:
        """A bound: no placement of the movable pods leaves more GPUs whole and free (``most_whole_gpus``)."""
        held = self._lifted(self._work.movable)
        bound = most_whole_gpus(self._work, [*self._work.movable.values()], self.pods.gpus, by_node=by_node)
        self._restored(held)
        return bound

    def row(self, policy: str, kept: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The figures of the fleet as it is now."""
        arrays, counted_gpus, kept = self._work.fleet.arrays, self.pods.gpus, kept or {}
        whole = whole_gpus(arrays) & counted_gpus
        on_node, nodes = whole.sum(axis=0), whole_nodes(arrays, whole)
        free = np.where(counted_gpus, self._work.fleet.arrays.free_parts(), 0).clip(min=0)
        homes = self._work.movable
        return {
            "trace": self.pods.name,
            "policy": policy,
            "nodes": int(counted_gpus.any(axis=0).sum()),
            "gpus": int(counted_gpus.sum()),
            "whole_gpus_free": int(whole.sum()),
            "whole_nodes_free": int(nodes.sum()),
            "could_start": {str(size): int((on_node // size).sum()) for size in JOBS},
            "whole_by_model": self._by_model(on_node),
            "nodes_by_model": self._by_model(nodes),
            "free_worth": round(float((free * arrays.gpu_value).sum()), 1),
            "pods": len(homes),
            "moved_pods": sum(homes[key].home != held.row for key, held in self._work.at.items()),
            "placed": {key: self._work.name(held.row) for key, held in sorted(self._work.at.items())},
            "kept_pods": len(kept),
            "kept": dict(kept),
            "held_back": len(self._work.held_back) if policy != TODAY else 0,
            "pinned_pods": len(self.pods.staying),
            "pinned": counted(self.pods.staying.values()),
            "seconds": 0.0,
        }

    def _by_model(self, figures: npt.NDArray[Any]) -> dict[str, int]:
        """The sum of a figure (N,) over the nodes of each GPU model, without models that have none."""
        found: Counter[str] = Counter()
        for row, spec in enumerate(self._work.fleet.specs):
            if spec and figures[row]:
                found[spec.model or spec.product or "unknown"] += int(figures[row])
        return dict(sorted(found.items()))
