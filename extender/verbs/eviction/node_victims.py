"""The cheapest pods to evict on one node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
        self,
        rules: Rules,
        gangs: GangTotals,
        prices: Prices,
        nodes: Sequence[NodeCandidates],
        proposed: Mapping[str, Collection[str]],
    ) -> None:
        """``proposed``: by node, the UIDs of a set that somebody else has chosen."""
        self._proposed = proposed
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
        violates one on its own, which is too few. Then it counts each pod that would if all before it in an
        order left first, which is too many: the cheapest first, then the proposed ones (so no set is found
        that violates more than these), then the dearest. The best set is taken.
        """
        wanted = _numbers_of(candidates, required)
        if wanted is None:
            return None
        costs = self._costs[candidates.node]
        by_cost = _by_cost(candidates, costs)
        late = self._violating_in(candidates, by_cost)
        alone = {i for i in late if self._violating([candidates.pods.running[i].pod])}
        find = partial(self._cheapest_by, candidates, wanted, search, staying)
        best = find(_counted(costs, alone))
        least = _count_of(candidates, best, alone) if best else 0  # no set violates fewer
        for order in (by_cost, self._proposed_first(candidates, by_cost), by_cost[::-1]):
            if best is None or best.cost[0] <= least:
                break
            late = self._violating_in(candidates, order)
            other = find(_counted(costs, late)) if late != alone else None
            best = replace(min(filter(None, (best, other)), key=lambda one: one.cost), exact=False)
        return best

    def _proposed_first(self, candidates: NodeCandidates, order: Sequence[int]) -> Sequence[int]:
        proposed = self._proposed.get(candidates.node, ())
        return sorted(order, key=lambda i: candidates.pods.running[i].pod.uid not in proposed)

    def _violating_in(self, candidates: NodeCandidates, order: Sequence[int]) -> set[int]:
        """The candidates that violate a budget if all before them in this order leave first."""
        pods = [candidates.pods.running[i].pod for i in order]
        uids = dict(zip((pod.uid for pod in pods), order, strict=True))
        return {uids[uid] for uid in self._violating(pods)}

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


def _by_cost(candidates: NodeCandidates, costs: Numbers) -> list[int]:
    """The candidates that a budget may select, the cheapest first."""
    covered = [i for i in candidates.pods.covered if candidates.may_leave[i]]
    return sorted(covered, key=lambda i: tuple(costs[i].tolist()))


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


def _count_of(candidates: NodeCandidates, found: NodeVictims, some: Collection[int]) -> int:
    """How many of some candidates were chosen."""
    uids = {candidates.pods.running[i].pod.uid for i in some}
    return sum(bound.pod.uid in uids for bound in found.chosen)
