"""The cheapest pods to evict on one node, with the gangs that are evicted as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.queues.disruptions import Selecting
from extender.queues.gangs import Gang
from extender.queues.rights import EvictionRules
from extender.verbs.eviction.node_pods import Bound, NodeCandidates, Prices, bound_of, joined, work_of
from packing.fleet.arrays import Doubles, Flags
from packing.victims.victims import Cost, GangCost, Recount, Victims, VictimSet

Search: TypeAlias = Callable[[Victims], VictimSet | None]
"""Finds the cheapest set of these victims."""


@dataclass(frozen=True, slots=True)
class NodeVictims:
    """The search's choice on one node. ``leaving`` pods are already terminating, ``elsewhere`` are members of
    gangs that are evicted as a whole."""

    node: str
    chosen: tuple[Bound, ...]
    leaving: tuple[Bound, ...]
    elsewhere: tuple[Pod, ...]
    cost: Cost

    @property
    def pods(self) -> list[Pod]:
        return [bound.pod for bound in (*self.chosen, *self.leaving)]


@dataclass(frozen=True, slots=True)
class _NodeGang:
    """A gang with candidates on one node: its members on other nodes, and the input of the search."""

    elsewhere: tuple[Pod, ...]
    cost: GangCost


class VictimChooser:
    """Searches nodes one by one, with costs that are comparable.

    A gang with a member that must not be evicted is never evicted as a whole; a gang with members on other
    nodes only if ``whole_gangs``.
    """

    def __init__(
        self,
        state: State,
        rules: EvictionRules,
        nodes: Sequence[NodeCandidates],
        proposed: Mapping[str, Collection[str]],
        *,
        whole_gangs: bool,
    ) -> None:
        """``proposed``: by node, the UIDs of a set chosen by another component."""
        self._state, self._rules, self._proposed, self._whole_gangs = state, rules, proposed, whole_gangs
        self._selecting: dict[str, Selecting] = {}
        self._members: dict[str, list[Pod]] = {}
        self._may_leave_whole: dict[str, bool] = {}
        work = joined([candidates.pods.work for candidates in nodes])
        # All members of a gang have one priority, so those of the candidates are all.
        may_leave = np.concatenate([candidates.may_leave for candidates in nodes])
        priorities = work.standings.numbers[0][may_leave].tolist()
        self._prices = Prices(state.disruptions, rules.now, priorities)
        ends = np.cumsum([len(candidates.pods.running) for candidates in nodes])[:-1]
        parts = np.split(self._prices.costs(work), ends)
        self._costs = {candidates.node: part for candidates, part in zip(nodes, parts, strict=True)}

    def cheapest(
        self, candidates: NodeCandidates, required: Collection[str], search: Search
    ) -> NodeVictims | None:
        """The cheapest set with the pods of these UIDs; None if there is none, or a required pod is neither a
        candidate nor terminating. If gangs have indispensable members, a set without these is searched first,
        and a set with the whole gangs only if there is none."""
        pods, found = candidates.pods.work.standings.pods, None
        leads = {
            i: gang for i, gang in self._gangs_of(candidates).items() if pods[i].key in gang.indispensable
        }
        if leaders := {i: gang.key for i, gang in leads.items() if self._spare(gang) > 0}:
            may_leave = candidates.may_leave.copy()
            may_leave[list(leaders)] = False
            without = replace(candidates, may_leave=may_leave)
            found = self._cheapest(without, required, search, frozenset(leaders.values()))
        return found or self._cheapest(candidates, required, search, frozenset())

    def _gangs_of(self, candidates: NodeCandidates) -> dict[int, Gang]:
        standings, gang_of = candidates.pods.work.standings, self._state.gangs.gang_of
        found = ((i, gang_of(standings.pods[i])) for i in standings.in_gangs if candidates.may_leave[i])
        return {i: gang for i, gang in found if gang is not None}

    def _cheapest(
        self, candidates: NodeCandidates, required: Collection[str], search: Search, staying: frozenset[str]
    ) -> NodeVictims | None:
        """The cheapest set; gangs in ``staying`` are not evicted as a whole."""
        wanted = _columns_of(candidates, required)
        if wanted is None:
            return None
        pods, late = candidates.pods, self._late(candidates)
        costs = self._costs_alone(candidates, late)
        gang_of, gangs = self._node_gangs(candidates, costs, staying)
        uids = self._proposed.get(candidates.node, ())
        may_leave = candidates.may_leave.nonzero()[0].tolist() if uids else ()
        proposed = [i for i in may_leave if pods.running[i].pod.uid in uids]
        recount = self._recount(candidates, gangs, late)
        gang_costs = [gang.cost for gang in gangs]
        victims = Victims(costs, gang_of, ~candidates.may_leave, gang_costs, wanted, proposed, recount)
        if (found := search(victims)) is None:
            return None
        chosen = tuple(pods.running[victim] for victim in found.victims)
        elsewhere = tuple(pod for gang in found.gangs for pod in gangs[gang].elsewhere)
        return NodeVictims(candidates.node, chosen, candidates.leaving, elsewhere, found.cost)

    def _late(self, candidates: NodeCandidates) -> Flags:
        """(2, V) the candidates that violate a budget once all before them are evicted: in ascending and in
        descending order of cost."""
        running, costs = candidates.pods.running, self._costs[candidates.node]
        covered = [i for i in candidates.pods.covered(self._state) if candidates.may_leave[i]]
        late = np.zeros((2, len(running)), np.bool_)
        if not covered:
            return late
        covered.sort(key=lambda i: tuple(costs[i].tolist()))
        for flags, order in zip(late, (covered, covered[::-1]), strict=True):
            flags[order] = self._violations([running[i].pod for i in order])
        return late

    def _costs_alone(self, candidates: NodeCandidates, late: Flags) -> Doubles:
        """(V, C) costs, with the budgets that a pod violates if only it is evicted. A set violates at least
        the sum of these."""
        costs, running = self._costs[candidates.node], candidates.pods.running
        some = late[0].nonzero()[0].tolist()
        alone = [i for i in some if any(self._violations([running[i].pod]))]
        if alone:
            costs = costs.copy()
            costs[alone, 0] = 1.0
        return costs

    def _violations(self, pods: Sequence[Pod]) -> tuple[bool, ...]:
        return self._state.budgets.violations(pods, self._selecting)

    def _recount(self, candidates: NodeCandidates, gangs: Sequence[_NodeGang], late: Flags) -> Recount | None:
        """Counts the budgets that a set violates; None if no set violates any."""
        running, may_select = candidates.pods.running, self._state.budgets.may_select
        if not late.any() and not any(may_select(pod) for gang in gangs for pod in gang.elsewhere):
            return None

        def violated(victims: Sequence[int], whole: Sequence[int]) -> float:
            leave = [running[victim].pod for victim in victims]
            leave += [pod for gang in whole for pod in gangs[gang].elsewhere]
            return float(sum(self._violations(leave)))

        return Recount(violated, late)

    def _node_gangs(
        self, candidates: NodeCandidates, costs: Doubles, staying: frozenset[str]
    ) -> tuple[npt.NDArray[np.int64], list[_NodeGang]]:
        """For each pod the index of its gang, -1 for none and for gangs in ``staying``, and the gangs."""
        gang_of, gangs = np.full(len(costs), -1, np.int64), dict[str, Gang]()
        for column, gang in self._gangs_of(candidates).items():
            gangs.setdefault(gang.key, gang)
            gang_of[column] = list(gangs).index(gang.key)
        found = []
        for number, gang in enumerate(gangs.values()):
            columns = np.flatnonzero(gang_of == number).tolist()
            here = [candidates.pods.running[column].pod for column in columns]
            found.append(self._node_gang(gang, here, costs[columns], may_leave=gang.key not in staying))
        return gang_of, found

    def _node_gang(self, gang: Gang, here: Sequence[Pod], costs: Doubles, *, may_leave: bool) -> _NodeGang:
        """``here``: all candidates of the gang on the node, ``costs`` theirs, (len(here), C). ``may_leave``:
        as a whole, which is the only way with an indispensable member among them."""
        members, uids, state = self._running_members(gang.key), {pod.uid for pod in here}, self._state
        elsewhere = tuple(pod for pod in members if pod.uid not in uids)
        spare = self._spare(gang)
        if any(pod.key in gang.indispensable for pod in here):
            spare = 0
        if gang.key not in self._may_leave_whole:
            self._may_leave_whole[gang.key] = self._rules.may_leave_whole(members)
        if not (may_leave and self._may_leave_whole[gang.key]) or (elsewhere and not self._whole_gangs):
            return _NodeGang((), GangCost(spare, None))
        others = self._prices.costs(work_of(state, [bound_of(state, pod) for pod in elsewhere]))
        others[:, 0] = [state.budgets.violations((pod,))[0] for pod in elsewhere]
        whole = costs.sum(axis=0) + others.sum(axis=0)
        return _NodeGang(elsewhere, GangCost(spare, tuple(whole.tolist())))

    def _spare(self, gang: Gang) -> int:
        return max(0, len(self._running_members(gang.key)) - gang.minimum)

    def _running_members(self, key: str) -> list[Pod]:
        if key not in self._members:
            members, bound = self._state.gangs.members(key), self._state.pods.is_bound
            self._members[key] = [pod for pod in members if not pod.deleting and bound(pod.uid)]
        return self._members[key]


def _columns_of(candidates: NodeCandidates, required: Collection[str]) -> list[int] | None:
    """The columns of the required pods that are not terminating; None if one of them must stay."""
    if not required:
        return []
    columns = {bound.pod.uid: i for i, bound in enumerate(candidates.pods.running) if candidates.may_leave[i]}
    leaving = {bound.pod.uid for bound in candidates.leaving}
    if not leaving.issuperset(set(required) - columns.keys()):
        return None
    return [columns[uid] for uid in required if uid in columns]
