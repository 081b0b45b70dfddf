"""Which pods of a node may be evicted for a pod, and why the others may not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.cluster.state import State
from extender.k8s.objects import Pod
from packing.fleet.node_usage import Allocation

SHIELDED = "its job lost a pod a short time ago"
HOURLY_BOUND = "its queue has lost as many pods within an hour as it may"
SAME_GANG = "belongs to the gang of the pod itself"


class Bound(NamedTuple):
    """A pod that is bound to a node, and what it holds there."""

    pod: Pod
    held: tuple[Allocation, ...]


@dataclass(slots=True)
class NodeCandidates:
    """The pods of one node that may be evicted, and those that terminate already."""

    node: str
    row: int
    evictable: list[Bound] = field(default_factory=list)
    leaving: list[Bound] = field(default_factory=list)


class Rules:
    """Who may be evicted for one pod at one moment: its rights, the shield of jobs that lost a pod lately,
    the bound of evictions per hour, and its own gang."""

    def __init__(
        self, state: State, preemptor: Pod, now: float, *, to_equals: bool = False, whole_gangs: bool = False
    ) -> None:
        self.state, self.preemptor, self.now, self.whole_gangs = state, preemptor, now, whole_gangs
        self._to_equals = to_equals
        gang = state.gangs.gang_of(preemptor)
        self._own_gang = gang.key if gang else None
        self._left: dict[str, float] = {}

    def why_not(self, victim: Pod) -> str:
        """Why a bound pod may not be evicted, "" if it may. A text of a small closed set."""
        state = self.state
        if why := state.rights.why_not(self.preemptor, victim, self.now, to_equals=self._to_equals):
            return why
        if self._own_gang is not None and self._own_gang == self._gang_key(victim):
            return SAME_GANG
        if state.disruptions.shielded(victim, self.now):
            return SHIELDED
        return HOURLY_BOUND if self._evictions_left(state.rights.queues.name_of(victim)) < 1 else ""

    def exceeds_hourly_bound(self, victims: Iterable[Pod]) -> bool:
        """Whether these are more pods of a queue than may be evicted within this hour."""
        names = Counter(self.state.rights.queues.name_of(pod) for pod in victims if not pod.deleting)
        return any(count > self._evictions_left(name) for name, count in names.items())

    def on_node(self, node: str) -> NodeCandidates:
        """The candidates of a known node."""
        pods, row, preemptor = self.state.pods, self.state.fleet.rows[node], self.preemptor
        found, highest = NodeCandidates(node, row), preemptor.priority + self._to_equals
        for pod in pods.on_node(node):
            if pod.uid == preemptor.uid:
                continue
            if pod.deleting:
                found.leaving.append(Bound(pod, self._held(pod, row)))
            elif pod.priority < highest and not self.why_not(pod):
                found.evictable.append(Bound(pod, self._held(pod, row)))
        return found

    def protected(self, node: str) -> Iterator[str]:
        """Why the pods of a node that may not be evicted may not, each with one text."""
        for pod in self.state.pods.on_node(node):
            if pod.uid != self.preemptor.uid and not pod.deleting and (why := self.why_not(pod)):
                yield why

    def _held(self, pod: Pod, row: int) -> tuple[Allocation, ...]:
        return tuple(held for held in self.state.pods.allocations_of(pod) if held.row == row)

    def _gang_key(self, pod: Pod) -> str | None:
        gang = self.state.gangs.gang_of(pod)
        return gang.key if gang else None

    def _evictions_left(self, queue: str) -> float:
        if queue not in self._left:
            known = self.state.rights.queues.by_name.get(queue)
            bound = known.evictions_per_hour if known else None
            evicted = self.state.disruptions.evictions_last_hour(queue, self.now) if bound is not None else 0
            self._left[queue] = math.inf if bound is None else bound - evicted
        return self._left[queue]
