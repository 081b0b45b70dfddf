"""The cheapest pods to evict on one node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from extender.k8s.objects import Pod
from extender.queues.gangs import Gang
from extender.verbs.eviction.candidates import NodeCandidates, Rules
from extender.verbs.eviction.costs import Prices
from extender.verbs.eviction.gang_costs import GangTotals, NodeGang
from extender.verbs.eviction.node_pods import Bound, Numbers
from packing.victims.victim import Cost, GangCost, Victims, VictimSet

Search: TypeAlias = Callable[[Victims, Sequence[GangCost], Collection[int]], VictimSet | None]
"""Victims, gangs and required victims to the cheapest set."""


@dataclass(frozen=True, slots=True)
class NodeVictims:
    """What the search chose on one node. ``leaving`` pods terminate already, ``elsewhere`` are members of
    gangs that leave as a whole. ``cost`` counts the budgets that are really violated."""

    node: str
    row: int
    chosen: tuple[Bound, ...]
    leaving: tuple[Bound, ...]
    elsewhere: tuple[Pod, ...]
    cost: Cost
    exact: bool

    @property
    def pods(self) -> list[Pod]:
        return [bound.pod for bound in (*self.chosen, *self.leaving)]


class VictimChooser:
    """Searches these nodes one by one. All costs are comparable."""

    def __init__(
        self, rules: Rules, gangs: GangTotals, prices: Prices, nodes: Sequence[NodeCandidates]
    ) -> None:
        self._rules, self._gangs, self._prices = rules, gangs, prices
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
        led = self._led_by(candidates)
        if not led:
            return self._fewest_violations(candidates, required, search, frozenset())
        may_leave = candidates.may_leave.copy()
        may_leave[list(led)] = False
        without = replace(candidates, may_leave=may_leave)
        found = self._fewest_violations(without, required, search, frozenset(led.values()))
        found = found or self._fewest_violations(candidates, required, search, frozenset())
        return found and replace(found, exact=False)

    def _led_by(self, candidates: NodeCandidates) -> dict[int, str]:
        """The candidates without whom their gangs are useless, and the keys of these gangs."""
        running, may_leave = candidates.pods.running, candidates.may_leave
        leaders = ((i, self._gangs.led_by(running[i].pod)) for i in candidates.pods.special if may_leave[i])
        return {number: gang for number, gang in leaders if gang}

    def _fewest_violations(
        self, candidates: NodeCandidates, required: Collection[str], search: Search, staying: frozenset[str]
    ) -> NodeVictims | None:
        """The cheapest set; gangs that are ``staying`` do not leave as a whole.

        How many budgets a set violates is not a sum over its pods. So the search first counts a pod that
        violates one on its own, which is too few, and then each pod that would if all cheaper ones left
        before it, which is too many; the better set is taken.
        """
        wanted = _numbers_of(candidates, required)
        if wanted is None:
            return None
        costs = self._costs[candidates.node]
        late, alone = self._violating_numbers(candidates, costs)
        find = partial(self._cheapest_by, candidates, wanted, search, staying)
        best = find(_counted(costs, alone))
        if best is not None and late != alone and best.cost[0] > _least(candidates, best, alone):
            other = find(_counted(costs, late))
            better = other if other is not None and other.cost < best.cost else best
            best = replace(better, exact=False)
        return best

    def _violating_numbers(self, candidates: NodeCandidates, costs: Numbers) -> tuple[set[int], set[int]]:
        """The candidates that violate a budget if all cheaper ones leave before them, and those of them that
        violate one on their own."""
        covered = [i for i in candidates.pods.covered if candidates.may_leave[i]]
        if not covered:
            return set(), set()
        pods = [candidates.pods.running[i].pod for i in covered]
        uids = dict(zip((pod.uid for pod in pods), covered, strict=True))
        by_cost = sorted(range(len(covered)), key=lambda n: tuple(costs[covered[n]].tolist()))
        late = {uids[uid] for uid in self._violating([pods[n] for n in by_cost])}
        return late, {i for i in late if self._violating([candidates.pods.running[i].pod])}

    def _cheapest_by(
        self,
        candidates: NodeCandidates,
        required: list[int],
        search: Search,
        staying: frozenset[str],
        costs: Numbers,
    ) -> NodeVictims | None:
        """The cheapest set by these costs; its own cost has the true number of violations."""
        pods = candidates.pods
        numbers, gangs = self._gangs_of(candidates, costs, staying)
        victims = Victims(pods.held(), costs, numbers, ~candidates.may_leave)
        found = search(victims, [gang.cost for gang in gangs], required)
        if found is None:
            return None
        chosen = tuple(pods.running[victim] for victim in found.victims)
        elsewhere = tuple(pod for gang in found.gangs for pod in gangs[gang].elsewhere)
        leave = [*(bound.pod for bound in chosen), *elsewhere]
        violations = len(self._violating(leave)) if elsewhere or pods.covered else 0
        cost = (float(violations), *(found.cost or self._prices.nothing)[1:])
        return NodeVictims(
            candidates.node, pods.row, chosen, candidates.leaving, elsewhere, cost, found.exact
        )

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

    def _violating(self, pods: Sequence[Pod]) -> set[str]:
        flags = self._rules.state.budgets.violations(pods)
        return {pod.uid for pod, violates in zip(pods, flags, strict=True) if violates}


def _numbers_of(candidates: NodeCandidates, required: Collection[str]) -> list[int] | None:
    """The columns of the required pods that do not terminate already; None if one of them must stay."""
    if not required:
        return []
    numbers = {bound.pod.uid: i for i, bound in enumerate(candidates.pods.running) if candidates.may_leave[i]}
    leaving = {bound.pod.uid for bound in candidates.leaving}
    if not leaving.issuperset(set(required) - numbers.keys()):
        return None
    return [numbers[uid] for uid in required if uid in numbers]


def _counted(costs: Numbers, violating: Collection[int]) -> Numbers:
    """The costs if exactly these pods violate a budget."""
    if not violating:
        return costs
    counted = costs.copy()
    counted[list(violating), 0] = 1.0
    return counted


def _least(candidates: NodeCandidates, found: NodeVictims, alone: Collection[int]) -> int:
    """Budgets that the set violates at least."""
    uids = {candidates.pods.running[i].pod.uid for i in alone}
    return sum(bound.pod.uid in uids for bound in found.chosen)
