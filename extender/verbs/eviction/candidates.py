"""Which pods of a node may be evicted for a pod, and why the others may not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.queues.disruptions import job_of
from extender.queues.gangs import is_running
from extender.verbs.eviction.node_pods import (
    FORBIDDEN,
    GUARANTEED,
    PRIORITY,
    RESTARTS,
    SPECIAL,
    TOLERATES_BELOW,
    TOLERATES_UNTIL,
    Bound,
    NodePods,
    Numbers,
    node_pods,
)

SHIELDED = "its job lost a pod a short time ago"
HOURLY_BOUND = "its queue has lost as many pods within an hour as it may"

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NodeCandidates:
    """The pods of one node, and for those that run whether they may be evicted: (V,)."""

    node: str
    pods: NodePods
    may_leave: Flags

    @property
    def row(self) -> int:
        return self.pods.row

    @property
    def leaving(self) -> tuple[Bound, ...]:
        """The pods that terminate already."""
        return self.pods.leaving


class Rules:
    """Who may be evicted for one pod at one moment: its rights, the shield of jobs that lost a pod lately,
    the bound of evictions per hour, and its own gang."""

    def __init__(
        self,
        state: State,
        preemptor: Pod,
        now: float,
        *,
        to_equals: bool = False,
        whole_gangs: bool = False,
        only: Collection[str] | None = None,
    ) -> None:
        """``only``: the UIDs of the pods that may be evicted, if the rules allow it; None for all."""
        self.state, self.preemptor, self.now, self.whole_gangs = state, preemptor, now, whole_gangs
        self._to_equals, self._only = to_equals, only
        gang = state.gangs.gang_of(preemptor)
        self._own_gang = gang.key if gang else None
        self._left: dict[str, float] = {}
        self._gang_starts: dict[str, float] = {}

    def why_not(self, victim: Pod) -> str:
        """Why a bound pod may not be evicted, "" if it may. A text of a small closed set."""
        state = self.state
        if why := self.no_right(victim):
            return why
        if state.disruptions.shielded(victim, self.now):
            return SHIELDED
        return HOURLY_BOUND if self._evictions_left(state.rights.queue_name(victim)) < 1 else ""

    def no_right(self, victim: Pod) -> str:
        """The same, whatever the victim's job and queue have lost lately. A member of a gang that must keep
        its minimum may be one of those beyond it: the search sees to that."""
        gang = self.state.gangs.gang_of(victim)
        return self.state.rights.why_not(
            self.preemptor,
            victim,
            self.now,
            to_equals=self._to_equals,
            same_gang=gang is not None and gang.key == self._own_gang,
            keeps_minimum=gang is not None,
            gang_started=self._gang_start(gang.key) if gang else math.inf,
            rounds=self._rounds(victim),
        )

    def exceeds_hourly_bound(self, victims: Iterable[Pod]) -> bool:
        """Whether these are more pods of a queue than may be evicted within this hour."""
        names = Counter(self.state.rights.queue_name(pod) for pod in victims if not pod.deleting)
        return any(count > self._evictions_left(name) for name, count in names.items())

    def on_nodes(self, nodes: Sequence[str]) -> list[NodeCandidates]:
        """The candidates of known nodes. What ``why_not`` says, for all pods at once where it depends on
        numbers only."""
        known = [node_pods(self.state, node) for node in nodes]
        if not known:
            return []
        numbers = np.concatenate([pods.numbers for pods in known], axis=1)
        queues = [queue for pods in known for queue in pods.queues]
        may_leave, ask = self._by_numbers(numbers, queues)
        if self.preemptor.owner:
            own = job_of(self.preemptor)
            ask |= np.array([job == own for pods in known for job in pods.jobs], np.bool_)
        bounds = [bound for pods in known for bound in pods.running] if ask.any() else []
        for number in np.flatnonzero(ask).tolist():
            pod = bounds[number].pod
            may_leave[number] = pod.uid != self.preemptor.uid and not self.why_not(pod)
        if self._only is not None:
            may_leave &= np.array([b.pod.uid in self._only for pods in known for b in pods.running], np.bool_)
        ends = np.cumsum([len(one.running) for one in known])[:-1]
        parts = np.split(may_leave, ends)
        return [NodeCandidates(*one) for one in zip(nodes, known, parts, strict=True)]

    def _by_numbers(self, numbers: Numbers, queues: Sequence[str]) -> tuple[Flags, Flags]:
        """Which pods may leave, and which of these answers are to be found by ``why_not``."""
        now, priority, rights = self.now, self.preemptor.priority, self.state.rights
        lower = numbers[PRIORITY] < priority
        evicting = rights.queue_name(self.preemptor)
        open_queues = {
            name: rights.queues.permits(evicting, name) and self._evictions_left(name) >= 1
            for name in set(queues)
        }
        may_leave = lower & (now >= numbers[GUARANTEED]) & (now >= numbers[FORBIDDEN])
        may_leave &= (priority >= numbers[TOLERATES_BELOW]) | (now >= numbers[TOLERATES_UNTIL])
        may_leave &= np.array([open_queues[name] for name in queues], np.bool_)
        may_leave &= not self.preemptor.never_preempts
        unclear = (numbers[SPECIAL] > 0) | (numbers[RESTARTS] > 0) | bool(self.preemptor.pod_group)
        ask = lower & unclear
        if self._to_equals:
            ask |= numbers[PRIORITY] == priority
        return may_leave, ask

    def protected(self, node: str) -> Iterator[str]:
        """Why the pods of a node that may not be evicted may not, each with one text."""
        for pod in self.state.pods.on_node(node):
            if pod.uid != self.preemptor.uid and not pod.deleting and (why := self.why_not(pod)):
                yield why

    def _rounds(self, victim: Pod) -> int:
        if not self._to_equals or victim.priority != self.preemptor.priority:
            return 0
        longest = self.state.rights.queue_of(victim).max_duration
        return self.state.disruptions.rounds(victim, longest) if longest else 0

    def _gang_start(self, key: str) -> float:
        """When the first member started that still runs."""
        if key not in self._gang_starts:
            starts = (pod.started for pod in self.state.gangs.members(key) if pod.started and is_running(pod))
            self._gang_starts[key] = min(starts, default=math.inf)
        return self._gang_starts[key]

    def _evictions_left(self, queue: str) -> float:
        if queue not in self._left:
            known = self.state.rights.queues.by_name.get(queue)
            bound = known.evictions_per_hour if known else None
            evicted = self.state.disruptions.evictions_last_hour(queue, self.now) if bound is not None else 0
            self._left[queue] = math.inf if bound is None else bound - evicted
        return self._left[queue]
