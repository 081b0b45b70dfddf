"""``stowage replay`` of a cluster: places its running GPU pods on the same nodes again.

The movable pods are removed from their nodes and placed one by one, in the order of their start, by the
answers of ``filter`` and ``prioritize``; the policy learns and updates its prices as in the service. Pods
that do not fit are kept on their nodes, and the others are placed again: in every row, every pod that runs
today has a node.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from extender.cluster.census import CensusTaker
from extender.cluster.factory import prior_of, state_of
from extender.cluster.state import State
from extender.dialects.pod_request import as_whole
from extender.k8s.node_filter import node_requirement
from extender.replay.steps import Step, carry_out
from extender.settings import Settings
from extender.source.errors import BadInput
from extender.source.interface import Source
from extender.trial.cluster_pods import trial_of
from extender.trial.trial import Item
from packing.fleet.downgrade import device_on
from packing.fleet.stranded import whole_gpus, whole_nodes
from packing.policies.interface import Policy
from packing.policies.registry import POLICIES
from packing.policies.upkeep import Arrivals

Progress = Callable[[str, float], None]
TODAY = "today"
JOBS = (8, 4, 2)
"""GPUs of the jobs for which a row has the number that could still start."""
_ROUNDS = 8
"""Maximum rounds in which pods do not fit; after that, all pods stay on their nodes."""


def replay_cluster(
    source: Source,
    name: str,
    policies: Sequence[str],
    settings: Settings,
    progress: Progress,
    *,
    allow_downgrade: bool = False,
) -> Iterator[dict[str, Any]]:
    """Rows named ``name``: one for the present cluster, with the ``totals`` of its census, and one per policy
    with free whole GPUs and whole nodes, the number of pods that moved, and the pods left on their nodes
    because the policy found no other; ``on_parts``: pods with unspecified needs that have fractions of GPUs
    while whole ones are free. Without ``allow_downgrade``, no pod is allocated a weaker device than now.

    Raises ``BadInput``, ``Unavailable`` and ``SettingsError``.
    """
    state = state_of(settings)
    for events in source.list_once():
        state.apply(events)
    totals = asyncio.run(CensusTaker(state).take()).totals
    replay = SnapshotReplay(state, name, allow_downgrade=allow_downgrade)
    if not replay.has_gpus:
        raise BadInput(f"{source.describe()}: no node that accepts pods has a GPU")
    today = replay.row(TODAY)
    yield today | {"totals": asdict(totals)}
    prior, minimum = prior_of(settings.demand), settings.minimum_slice_milli
    for policy in policies:
        new_policy = partial(POLICIES[policy], prior=prior, minimum_milli=minimum, filling=True)
        yield replay.repacked(policy, new_policy, partial(progress, f"{name} {policy}"))


class SnapshotReplay:
    """The pods of a cluster to place again. Between calls all of them are on their present nodes. ``gpus``
    (G, N): GPUs of nodes that accept pods."""

    def __init__(self, state: State, name: str, *, allow_downgrade: bool) -> None:
        self._name, self._state = name, state
        self.trial = trial = trial_of(state, allow_downgrade=allow_downgrade)
        self.gpus = (trial.fleet.arrays.compute_capacity > 0) & trial.offered()
        self._today = trial.savepoint()

    @property
    def has_gpus(self) -> bool:
        """Whether any node that accepts pods has GPUs."""
        return bool(self.gpus.any() or self.trial.only_for_claims)

    def repacked(
        self, policy: str, new_policy: Callable[[], Policy], report: Callable[[float], None]
    ) -> dict[str, Any]:
        """Place all pods under a policy, and return its row."""
        started = time.perf_counter()
        kept = dict[str, str]()
        for _ in range(_ROUNDS):
            no_place = self._place_all(new_policy(), kept, report)
            if not no_place:
                break
            self.trial.undo_to(self._today)
            kept |= no_place
        else:
            kept = {key: kept.get(key, "other pods did not fit") for key in self.trial.movable}
        row = self.row(policy, kept) | {"seconds": round(time.perf_counter() - started, 3)}
        self.trial.undo_to(self._today)
        return row

    def _place_all(
        self, policy: Policy, kept: Mapping[str, str], report: Callable[[float], None]
    ) -> dict[str, str]:
        """Place all pods except the ``kept`` ones again, in turn; by key, why pods fit nowhere."""
        trial = self.trial
        self._state.policy = policy
        arrivals = Arrivals(trial.fleet, policy)
        moving = [key for key in trial.movable if key not in kept]
        number = {key: number for number, key in enumerate(trial.movable)}

        def arrive(item: Item) -> None:
            report(number[item.key] / len(number))
            arrivals.arrive(replace(item.request, node_set=node_requirement(item.pod)))

        steps = [*(Step("evict", key) for key in moving), *(Step("place", key) for key in moving)]
        no_place = carry_out(trial, steps, arrive).unplaced
        report(1.0)
        return no_place

    def row(self, policy: str, kept: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The figures of the fleet in its current state."""
        trial, arrays, kept = self.trial, self.trial.fleet.arrays, kept or {}
        whole = whole_gpus(arrays) & self.gpus
        on_node, nodes = whole.sum(axis=0), whole_nodes(arrays, whole)
        for node_row, hidden in trial.only_for_claims.items():
            on_node[node_row], nodes[node_row] = hidden.whole, 0 < hidden.gpus == hidden.whole
        free = np.where(self.gpus, trial.fleet.arrays.free_parts(), 0).clip(min=0)
        pinned = Counter(staying.why for staying in trial.staying.values())
        return {
            "trace": self._name,
            "policy": policy,
            "whole_gpus_free": int(on_node.sum()),
            "whole_nodes_free": int(nodes.sum()),
            "could_start": {str(size): int((on_node // size).sum()) for size in JOBS},
            "whole_by_model": self._by_model(on_node),
            "nodes_by_model": self._by_model(nodes),
            "free_worth": round(float((free * arrays.gpu_value).sum()), 1),
            "pods": len(trial.movable),
            "moved_pods": sum(trial.movable[key].home != held.row for key, held in trial.held.items()),
            "placed": {key: trial.node_of(key) for key in sorted(trial.held)},
            "kept_pods": len(kept),
            "kept": dict(kept),
            "held_back": len(trial.held_back) if policy != TODAY else 0,
            "on_parts": sum(map(self._gets_a_part, trial.held)) if on_node.any() else 0,
            "pinned_pods": len(trial.staying),
            "pinned": dict(sorted(pinned.items(), key=lambda counted: (-counted[1], counted[0]))),
            "seconds": 0.0,
        }

    def _gets_a_part(self, pod: str) -> bool:
        """Whether the pod has a fraction of a GPU without having declared that this is sufficient."""
        request, trial = self.trial.movable[pod].request, self.trial
        gets = device_on(trial.fleet, trial.held[pod].row, request) if as_whole(request) != request else None
        return gets is not None and not gets.whole

    def _by_model(self, figures: npt.NDArray[Any]) -> dict[str, int]:
        """The sum of a figure (N,) over the nodes of each GPU model, without models whose sum is 0."""
        found: Counter[str] = Counter()
        for row, spec in enumerate(self.trial.fleet.specs):
            if spec and figures[row]:
                found[spec.model or spec.product or "unknown"] += int(figures[row])
        return dict(sorted(found.items()))
