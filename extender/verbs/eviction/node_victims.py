"""The cheapest pods to evict on one node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from extender.k8s.objects import Pod
from extender.queues.disruption_budgets import Selecting
from extender.queues.gangs import Gang
from extender.verbs.eviction.candidates import Flags, NodeCandidates, Rules
from extender.verbs.eviction.costs import Prices
from extender.verbs.eviction.gang_costs import GangTotals, NodeGang
from extender.verbs.eviction.node_pods import Bound, Numbers
from packing.victims.victim import Cost, Recount, Victims, VictimSet

Search: TypeAlias = Callable[[Victims], VictimSet | None]
"""To the cheapest set of these victims."""


@dataclass(frozen=True, slots=True)
class NodeVictims:
    """What the search chose on one node. ``leaving`` pods terminate already, ``elsewhere`` are members of
    gangs that leave as a whole."""

    node: str
    row: int
    chosen: tuple[Bound, ...]
    leaving: tuple[Bound, ...]
    elsewhere: tuple[Pod, ...]
    cost: Cost

    @property
    def pods(self) -> list[Pod]:
        return [bound.pod for bound in (*self.chosen, *self.leaving)]


class VictimChooser:
    """Searches these nodes one by one. All costs are comparable."""

    def __init__(
        self,
        rules: Rules,
        gangs: GangTotals,
        prices: Prices,
        nodes: Sequence[NodeCandidates],
        proposed: Mapping[str, Collection[str]],
    ) -> None:
        """``proposed``: by node, the UIDs of a set that somebody else has chosen."""
        self._proposed = proposed
        self._budgets, self._gangs, self._prices = rules.state.budgets, gangs, prices
        self._selecting: dict[str, Selecting] = {}
        costs = prices.of_numbers(np.concatenate([one.pods.numbers for one in nodes], axis=1))
        ends = np.cumsum([len(one.pods.running) for one in nodes])[:-1]
        parts = np.split(costs, ends)
        self._costs = {one.node: part for one, part in zip(nodes, parts, strict=True)}

    def cheapest(
        self, candidates: NodeCandidates, required: Collection[str], search: Search
    ) -> NodeVictims | None:
        """The cheapest set with the pods of these UIDs; None if there is none, or a required pod is neither a
        candidate nor on its way out. Where gangs have members without which they are useless, first a set
        without these is searched, and only if there is none one with the whole gangs."""
        led, found = self._led_by(candidates), None
        if led:
            may_leave = candidates.may_leave.copy()
            may_leave[list(led)] = False
            without = replace(candidates, may_leave=may_leave)
            found = self._cheapest(without, required, search, frozenset(led.values()))
        return found or self._cheapest(candidates, required, search, frozenset())

    def _led_by(self, candidates: NodeCandidates) -> dict[int, str]:
        """The candidates without whom their gangs are useless, and the keys of these gangs."""
        running, may_leave = candidates.pods.running, candidates.may_leave
        leaders = ((i, self._gangs.led_by(running[i].pod)) for i in candidates.pods.special if may_leave[i])
        return {number: gang for number, gang in leaders if gang}

    def _cheapest(
        self, candidates: NodeCandidates, required: Collection[str], search: Search, staying: frozenset[str]
    ) -> NodeVictims | None:
        """The cheapest set; gangs that are ``staying`` do not leave as a whole."""
        wanted = _numbers_of(candidates, required)
        if wanted is None:
            return None
        pods, late = candidates.pods, self._late(candidates)
        costs = self._costs_alone(candidates, late)
        numbers, gangs = self._gangs_of(candidates, costs, staying)
        found = search(
            Victims(
                pods.held,
                costs,
                numbers,
                ~candidates.may_leave,
                [gang.cost for gang in gangs],
                wanted,
                self._proposed_on(candidates),
                self._recount(candidates, gangs, late),
            )
        )
        if found is None:
            return None
        chosen = tuple(pods.running[victim] for victim in found.victims)
        elsewhere = tuple(pod for gang in found.gangs for pod in gangs[gang].elsewhere)
        return NodeVictims(candidates.node, pods.row, chosen, candidates.leaving, elsewhere, found.cost)

    def _late(self, candidates: NodeCandidates) -> Flags:
        """(2, V) the candidates that violate a budget if all before them left: the cheapest first, and the
        dearest first."""
        running, costs = candidates.pods.running, self._costs[candidates.node]
        covered = [i for i in candidates.pods.covered if candidates.may_leave[i]]
        late = np.zeros((2, len(running)), np.bool_)
        if not covered:
            return late
        covered.sort(key=lambda i: tuple(costs[i].tolist()))
        for flags, order in zip(late, (covered, covered[::-1]), strict=True):
            flags[order] = self._violations([running[i].pod for i in order])
        return late

    def _costs_alone(self, candidates: NodeCandidates, late: Flags) -> Numbers:
        """(V, C) costs, with the budgets that a pod violates if it alone leaves. A set violates at least the
        sum of these."""
        costs, running = self._costs[candidates.node], candidates.pods.running
        some = late[0].nonzero()[0].tolist()
        alone = [i for i in some if any(self._violations([running[i].pod]))]
        if alone:
            costs = costs.copy()
            costs[alone, 0] = 1.0
        return costs

    def _violations(self, pods: Sequence[Pod]) -> tuple[bool, ...]:
        return self._budgets.violations(pods, self._selecting)

    def _proposed_on(self, candidates: NodeCandidates) -> list[int]:
        """The columns of the proposed pods that may leave."""
        if not (proposed := self._proposed.get(candidates.node)):
            return []
        may_leave = candidates.may_leave.nonzero()[0].tolist()
        return [i for i in may_leave if candidates.pods.running[i].pod.uid in proposed]

    def _recount(self, candidates: NodeCandidates, gangs: Sequence[NodeGang], late: Flags) -> Recount | None:
        """Counts the budgets that a set violates; None if no set violates any."""
        running, may_select = candidates.pods.running, self._budgets.may_select
        if not late.any() and not any(may_select(pod) for gang in gangs for pod in gang.elsewhere):
            return None

        def violated(victims: Sequence[int], whole: Sequence[int]) -> float:
            leave = [running[victim].pod for victim in victims]
            leave += [pod for gang in whole for pod in gangs[gang].elsewhere]
            return float(sum(self._violations(leave)))

        return Recount(violated, late)

    def _gangs_of(
        self, candidates: NodeCandidates, costs: Numbers, staying: frozenset[str]
    ) -> tuple[npt.NDArray[np.int64], list[NodeGang]]:
        """For each pod the index of its gang, -1 for none and for those that stay, and the gangs."""
        members: dict[str, tuple[Gang, list[int]]] = {}
        running = candidates.pods.running
        for number in candidates.pods.special:
            gang = self._gangs.gang_of(running[number].pod) if candidates.may_leave[number] else None
            if gang is not None:
                members.setdefault(gang.key, (gang, []))[1].append(number)
        numbers, gangs = np.full(len(running), -1, np.int64), []
        for index, (gang, indices) in enumerate(members.values()):
            here, may_leave = [running[number] for number in indices], gang.key not in staying
            gangs.append(self._gangs.on_node(gang, here, costs[indices], self._prices, may_leave=may_leave))
            numbers[indices] = index
        return numbers, gangs


def _numbers_of(candidates: NodeCandidates, required: Collection[str]) -> list[int] | None:
    """The columns of the required pods that do not terminate already; None if one of them must stay."""
    if not required:
        return []
    numbers = {bound.pod.uid: i for i, bound in enumerate(candidates.pods.running) if candidates.may_leave[i]}
    leaving = {bound.pod.uid for bound in candidates.leaving}
    if not leaving.issuperset(set(required) - numbers.keys()):
        return None
    return [numbers[uid] for uid in required if uid in numbers]
