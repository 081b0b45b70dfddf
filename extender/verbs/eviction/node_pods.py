"""What decides over the eviction of the pods of one node, kept until these pods change.

A plan looks at thousands of pods. So what depends neither on the moment nor on the pod that waits is found
once, as numbers: one row for each of the names below, one column for each pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.queues.checkpoints import progress_of
from extender.queues.disruptions import job_of
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.mig_instances import every_slice
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE
from packing.victims.holdings import Holdings

Numbers: TypeAlias = npt.NDArray[np.float64]

PRIORITY, GPUS, STARTED, SAVED, INTERVAL, RESTARTS = range(6)
# As ``Rights.summary`` says it, and 1 where only ``Rules.why_not`` knows (gangs, pods that are assumed).
GUARANTEED, TOLERATES_BELOW, TOLERATES_UNTIL, FORBIDDEN, SPECIAL = range(6, 11)
_ROWS = 11

MOST_KEPT = 1024
"""Nodes whose pods are kept, about 30 KB for 60 pods each. A plan searches 100 nodes."""


class Bound(NamedTuple):
    """A pod that is bound to a node, and what it holds there."""

    pod: Pod
    held: tuple[Allocation, ...]


@dataclass(slots=True)
class NodePods:
    """The pods of a node: those that run, in the order of the columns of ``numbers``, with what each holds,
    and those that terminate already. ``covered``: columns of pods that a PodDisruptionBudget may select."""

    row: int
    spec: NodeSpec | None
    running: tuple[Bound, ...]
    held: tuple[tuple[Allocation, ...], ...]
    leaving: tuple[Bound, ...]
    numbers: Numbers
    queues: tuple[str, ...]
    jobs: tuple[str, ...]
    special: tuple[int, ...]
    revision: object
    disruptions: tuple[int, int]
    covered: tuple[int, ...] = ()
    budgets: tuple[int, int] = (0, 0)
    holdings: Holdings | None = None

    def holdings_in(self, fleet: Fleet) -> Holdings:
        """The holdings of all running pods."""
        if self.holdings is None or not self.holdings.is_for(fleet, self.row, self.held):
            self.holdings = Holdings.of(fleet, self.row, self.held)
        return self.holdings


def node_pods(state: State, node: str) -> NodePods:
    """The pods of a known node. ``State`` drops what is kept when the pods of the node change."""
    row = state.fleet.rows[node]
    known = state.kept_by_node.get(node)
    if not (
        isinstance(known, NodePods)
        and known.row == row
        and known.spec is state.fleet.specs[row]
        and known.revision is state.rights.queues.classes.revision
    ):
        known = _read(state, node, row)
        if len(state.kept_by_node) >= MOST_KEPT:
            state.kept_by_node.pop(next(iter(state.kept_by_node)))
        state.kept_by_node[node] = known
    _update(state, known)
    return known


def _read(state: State, node: str, row: int) -> NodePods:
    bounds = [bound_of(state, pod, row) for pod in state.pods.on_node(node)]
    running = tuple(bound for bound in bounds if not bound.pod.deleting)
    pods = [bound.pod for bound in running]
    numbers = numbers_of(state, running)
    return NodePods(
        row=row,
        spec=state.fleet.specs[row],
        running=running,
        held=tuple(bound.held for bound in running),
        leaving=tuple(bound for bound in bounds if bound.pod.deleting),
        numbers=numbers,
        queues=tuple(map(state.rights.queue_name, pods)),
        jobs=tuple(map(job_of, pods)),
        special=tuple(np.flatnonzero(numbers[SPECIAL]).tolist()),
        revision=state.rights.queues.classes.revision,
        disruptions=(0, 0),
    )


def _update(state: State, known: NodePods) -> None:
    """Read again what depends on other objects, if these have changed."""
    log, budgets = state.disruptions, state.budgets
    if known.disruptions != (id(log), log.changes):
        known.disruptions = id(log), log.changes
        known.numbers[RESTARTS] = _restarts(state, [bound.pod for bound in known.running])
    if known.budgets != (id(budgets), budgets.changes):
        known.budgets = id(budgets), budgets.changes
        covered = (i for i, bound in enumerate(known.running) if budgets.may_select(bound.pod))
        known.covered = tuple(covered)


def bound_of(state: State, pod: Pod, row: int | None = None) -> Bound:
    """A pod with what it holds of one node, or of all."""
    held = state.pods.allocations_of(pod)
    return Bound(pod, tuple(one for one in held if row is None or one.row == row))


def numbers_of(state: State, bounds: Sequence[Bound]) -> Numbers:
    """(11, V) numbers of these pods."""
    rows: list[tuple[float, ...]] = []
    fleet, rights, pods, gangs = state.fleet, state.rights, state.pods, state.gangs
    for pod, held in bounds:
        summary, progress = rights.summary(pod), progress_of(pod, rights.queue_of(pod))
        special = summary.keeps_minimum or pods.get(pod.key) is not pod or not gangs.is_single(pod)
        rows.append((pod.priority, gpus_held(fleet, held), *progress, 0, *summary[:4], special))
    numbers = np.array(rows, np.float64).reshape(len(rows), _ROWS).T.copy()
    if bounds:
        numbers[RESTARTS] = _restarts(state, [bound.pod for bound in bounds])
    return numbers


def _restarts(state: State, pods: Sequence[Pod]) -> list[int]:
    log = state.disruptions
    return [log.restarts(pod) if log.knows(pod) else 0 for pod in pods]


def gpus_held(fleet: Fleet, held: Iterable[Allocation]) -> float:
    """GPUs of these allocations: the mean of the parts of compute and memory, and for MIG instances that are
    made on demand the part of the GPU's slices."""
    arrays, total = fleet.arrays, 0.0
    for one in held:
        row, slices, spec = one.row, dict(one.slices), fleet.specs[one.row]
        for resource, count in one.devices:
            total += count * float(arrays.device_gpu[resource, row])
        for gpu, milli, mib in one.shares:
            if spec and gpu in slices:
                every = every_slice(spec.gpus[gpu].instances)
                total += (slices[gpu] & every).bit_count() / max(every.bit_count(), 1)
            else:
                total += (milli / WHOLE + mib / max(float(arrays.memory_capacity[gpu, row]), 1.0)) / 2
    return total
