"""The pods of a node: which may be evicted, and at what cost. docs/preemption.md has the formula.

A plan considers thousands of pods. So figures that depend neither on the time nor on the pending pod are
computed once, and kept until the pods of the node change.

A cost is a vector: the number of violated PodDisruptionBudgets, then GPU-seconds for each priority level, the
highest priority first. So violations come first, and a pod of higher priority is never evicted to spare any
number of pods of lower priority.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.queues.disruptions import DisruptionLog, lost_by_each, lost_seconds, progress_of
from extender.queues.rights import EvictionRules, Standings, standings_of
from packing.fleet.arrays import Doubles, Flags
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.mig_instances import every_slice
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE
from packing.victims.amounts import Holdings
from packing.victims.rights import EvictionVerdict, gpu_seconds

MOST_KEPT = 1024
"""Maximum number of nodes whose pods are kept, about 30 KB each for 60 pods. A plan searches 100 nodes."""
MOST_LEVELS = 16
"""Maximum number of distinct priority levels; all below the sixteenth count as one. Clusters have a few."""
_GRAIN = 1024
"""Costs are multiples of 1/1024 GPU-seconds, so that sums do not depend on their order."""
_EACH_VICTIM = 2
"""Added to each victim's cost, in 1/1024 GPU-seconds: more than rounding down removes, so of sets with equal
costs, the one with fewer pods is evicted."""


class Bound(NamedTuple):
    """A pod that is bound to a node, and its allocations there."""

    pod: Pod
    held: tuple[Allocation, ...]


class Work(NamedTuple):
    """V pods with the work that they would lose: ``numbers`` (4, V) are the GPUs that each holds and its
    ``Progress``."""

    standings: Standings
    numbers: Doubles


@dataclass(slots=True)
class NodePods:
    """The pods of a node with their allocations: running pods, and terminating pods, ending soon or later."""

    row: int
    spec: NodeSpec | None
    running: tuple[Bound, ...]
    leaving: tuple[Bound, ...]
    work: Work
    revision: object
    _holdings: Holdings | None = None
    _covered: tuple[tuple[int, int], list[int]] = (0, 0), []

    def holdings_in(self, fleet: Fleet) -> Holdings:
        """The holdings of all running pods."""
        if self._holdings is None or not self._holdings.is_of(fleet, self.row):
            self._holdings = Holdings.of(fleet, self.row, [bound.held for bound in self.running])
        return self._holdings

    def covered(self, state: State) -> list[int]:
        """The columns of running pods that a PodDisruptionBudget may select."""
        budgets = state.budgets
        if self._covered[0] != (now := (id(budgets), budgets.changes)):
            found = [i for i, bound in enumerate(self.running) if budgets.may_select(bound.pod)]
            self._covered = now, found
        return self._covered[1]


@dataclass(frozen=True, slots=True)
class NodeCandidates:
    """The pods of one node: whether each running pod may be evicted (V,), and the pods that are about to
    end."""

    node: str
    pods: NodePods
    may_leave: Flags
    leaving: tuple[Bound, ...]


def candidates_on(
    state: State, rules: EvictionRules, nodes: Sequence[str], only: Collection[str] | None = None
) -> list[NodeCandidates]:
    """The candidates of known nodes. ``only``: the UIDs of the only pods that may be evicted."""
    known = [_node_pods(state, node) for node in nodes]
    if not known:
        return []
    found = rules.verdicts(joined([on_node.work for on_node in known]).standings) == EvictionVerdict.MAY_LEAVE
    if only is not None:
        found &= np.array([bound.pod.uid in only for on_node in known for bound in on_node.running], np.bool_)
    parts = np.split(found, np.cumsum([len(on_node.running) for on_node in known])[:-1])
    going = [
        tuple([bound for bound in pods.leaving if bound.pod.is_about_to_go(rules.now)]) for pods in known
    ]
    return [NodeCandidates(*fields) for fields in zip(nodes, known, parts, going, strict=True)]


def _node_pods(state: State, node: str) -> NodePods:
    """The pods of a known node. ``State`` drops the cached result when the pods of the node change."""
    row, revision = state.fleet.rows[node], state.rights.queues.classes.revision
    known = state.kept_by_node.get(node)
    if (
        isinstance(known, NodePods)
        and (known.row, known.spec) == (row, state.fleet.specs[row])
        and known.revision is revision
    ):
        return known
    bounds = [bound_of(state, pod, row) for pod in state.pods.on_node(node)]
    running = tuple(bound for bound in bounds if not bound.pod.deleting)
    leaving = tuple(bound for bound in bounds if bound.pod.deleting)
    if len(state.kept_by_node) >= MOST_KEPT:
        state.kept_by_node.pop(next(iter(state.kept_by_node)))
    kept = NodePods(row, state.fleet.specs[row], running, leaving, work_of(state, running), revision)
    state.kept_by_node[node] = kept
    return kept


def bound_of(state: State, pod: Pod, row: int | None = None) -> Bound:
    """A pod with its allocations on one node, or on all."""
    held = state.pods.allocations_of(pod)
    return Bound(pod, tuple(allocation for allocation in held if row is None or allocation.row == row))


def work_of(state: State, bounds: Sequence[Bound]) -> Work:
    """The work that these pods would lose."""
    queue_of = state.rights.queue_of
    rows = [(gpus_held(state.fleet, held), *progress_of(pod, queue_of(pod))) for pod, held in bounds]
    standings = standings_of(state.rights, state.gangs, [bound.pod for bound in bounds])
    return Work(standings, np.array(rows, np.float64).reshape(len(rows), 4).T)


def joined(parts: Sequence[Work]) -> Work:
    """All these pods, in this order."""
    each = [part.standings for part in parts]
    starts = np.cumsum([0, *(len(of_part.pods) for of_part in each)]).tolist()
    in_gangs = [
        start + column for start, of_part in zip(starts, each, strict=False) for column in of_part.in_gangs
    ]
    standings = Standings(
        [*chain.from_iterable(of_part.pods for of_part in each)],
        np.concatenate([of_part.numbers for of_part in each], axis=1),
        [*chain.from_iterable(of_part.queues for of_part in each)],
        [*chain.from_iterable(of_part.jobs for of_part in each)],
        in_gangs,
    )
    return Work(standings, np.concatenate([part.numbers for part in parts], axis=1))


class Prices:
    """Costs of pods at one time. All have the same length: the priorities determine the levels."""

    def __init__(self, disruptions: DisruptionLog, now: float, priorities: Iterable[float]) -> None:
        self._disruptions, self._now = disruptions, now
        self._levels = np.array(sorted(set(priorities))[-MOST_LEVELS:] or [0], np.float64)

    def costs(self, work: Work) -> Doubles:
        """(V, C) costs of running pods, without violations."""
        (gpus, started, saved, interval), levels = work.numbers, self._levels.size
        level = np.clip(np.searchsorted(self._levels, work.standings.numbers[0]), 0, levels - 1)
        lost, restarts = lost_by_each(started, saved, interval, self._now), np.zeros(gpus.size)
        jobs = self._disruptions.jobs
        for column in [i for i, job in enumerate(work.standings.jobs) if job in jobs] if jobs else ():
            restarts[column] = self._disruptions.restarts(work.standings.pods[column])
        grains = np.floor(gpu_seconds(gpus, lost, restarts) * _GRAIN) + _EACH_VICTIM
        costs = np.zeros((gpus.size, 1 + levels))
        costs[np.arange(gpus.size), levels - level] = grains / _GRAIN
        return costs


def work_lost(state: State, pod: Pod, now: float) -> float:
    """GPU-seconds of work that the pod loses if it is evicted now, without the cost of its restart."""
    held = state.pods.allocations_of(pod)
    return gpus_held(state.fleet, held) * lost_seconds(pod, state.rights.queue_of(pod), now)


def gpus_held(fleet: Fleet, held: Iterable[Allocation]) -> float:
    """GPUs of these allocations: the mean of the fractions of compute and memory, and for MIG instances that
    are created on demand the fraction of the GPU's slices."""
    arrays, total = fleet.arrays, 0.0
    for allocation in held:
        row, slices, spec = allocation.row, dict(allocation.slices), fleet.specs[allocation.row]
        for resource, count in allocation.devices:
            total += count * float(arrays.device_gpu[resource, row])
        for gpu, milli, mib in allocation.shares:
            if spec and gpu in slices:
                every = every_slice(spec.gpus[gpu].instances)
                total += (slices[gpu] & every).bit_count() / max(every.bit_count(), 1)
            else:
                total += (milli / WHOLE + mib / max(float(arrays.memory_capacity[gpu, row]), 1.0)) / 2
    return total
