"""The cheapest pods to evict on one node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from extender.k8s.objects import Pod
from extender.queues.gangs import Gang
from extender.verbs.eviction.candidates import Bound, NodeCandidates, Rules
from extender.verbs.eviction.costs import Prices
from extender.verbs.eviction.gang_costs import GangTotals, NodeGang
from packing.victims.search import Cost, GangCost, Victim, VictimSet

Search: TypeAlias = Callable[[Sequence[Victim], Sequence[GangCost], Collection[int]], VictimSet | None]
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
    """Searches node by node. All costs are comparable."""

    def __init__(self, rules: Rules, gangs: GangTotals, prices: Prices) -> None:
        self._rules, self._gangs, self._prices = rules, gangs, prices

    def cheapest(
        self, candidates: NodeCandidates, required: Collection[str], search: Search
    ) -> NodeVictims | None:
        """The cheapest set with the pods of these UIDs; None if there is none, or a required pod is neither a
        candidate nor on its way out. Where gangs have members without which they are useless, first a set
        without these is searched, and only if there is none one with the whole gangs."""
        led = {
            bound.pod.uid: gang for bound in candidates.evictable if (gang := self._gangs.led_by(bound.pod))
        }
        if not led:
            return self._fewest_violations(candidates, required, search, frozenset())
        others = [bound for bound in candidates.evictable if bound.pod.uid not in led]
        without = replace(candidates, evictable=others)
        found = self._fewest_violations(without, required, search, frozenset(led.values()))
        found = found or self._fewest_violations(candidates, required, search, frozenset())
        return found and replace(found, exact=False)

    def _fewest_violations(
        self, candidates: NodeCandidates, required: Collection[str], search: Search, staying: frozenset[str]
    ) -> NodeVictims | None:
        """The cheapest set; gangs that are ``staying`` do not leave as a whole.

        How many budgets a set violates is not a sum over its pods. So the search first counts a pod that
        violates one on its own, which is too few, and then each pod that would if all cheaper ones left
        before it, which is too many; the better set is taken.
        """
        pods = [bound.pod for bound in candidates.evictable]
        index = {pod.uid: number for number, pod in enumerate(pods)}
        leaving = {bound.pod.uid for bound in candidates.leaving}
        if not leaving.issuperset(set(required) - index.keys()):
            return None
        costs = [self._prices.of(*bound) for bound in candidates.evictable]
        by_cost = sorted(range(len(pods)), key=costs.__getitem__)
        late = self._violating([pods[number] for number in by_cost])
        alone = {uid for uid in late if self._violating([pods[index[uid]]])}
        wanted = [index[uid] for uid in required if uid in index]
        find = partial(self._with, candidates, wanted, search, staying)
        best = find(self._counted(pods, costs, alone))
        if best is not None and late != alone and best.cost[0] > self._least(best, alone):
            other = find(self._counted(pods, costs, late))
            better = other if other is not None and other.cost < best.cost else best
            best = replace(better, exact=False)
        return best

    def _with(
        self,
        candidates: NodeCandidates,
        required: list[int],
        search: Search,
        staying: frozenset[str],
        costs: Sequence[Cost],
    ) -> NodeVictims | None:
        """The cheapest set by these costs; its own cost has the true number of violations."""
        numbers, gangs = self._gangs_of(candidates.evictable, costs, staying)
        victims = [
            Victim(bound.held, cost, number)
            for bound, cost, number in zip(candidates.evictable, costs, numbers, strict=True)
        ]
        found = search(victims, [gang.cost for gang in gangs], required)
        if found is None:
            return None
        chosen = tuple(candidates.evictable[victim] for victim in found.victims)
        elsewhere = tuple(pod for gang in found.gangs for pod in gangs[gang].elsewhere)
        violations = len(self._violating([*(bound.pod for bound in chosen), *elsewhere]))
        cost = (float(violations), *(found.cost or self._prices.nothing)[1:])
        leaving = tuple(candidates.leaving)
        return NodeVictims(candidates.node, candidates.row, chosen, leaving, elsewhere, cost, found.exact)

    def _gangs_of(
        self, evictable: Sequence[Bound], costs: Sequence[Cost], staying: frozenset[str]
    ) -> tuple[list[int], list[NodeGang]]:
        """For each candidate the index of its gang, -1 for none, and the gangs."""
        members: dict[str, tuple[Gang, list[int]]] = {}
        for number, bound in enumerate(evictable):
            if (gang := self._gangs.gang_of(bound.pod)) is not None:
                members.setdefault(gang.key, (gang, []))[1].append(number)
        numbers, gangs = [-1] * len(evictable), []
        for index, (gang, indices) in enumerate(members.values()):
            here, theirs = [evictable[number] for number in indices], [costs[number] for number in indices]
            may_leave = gang.key not in staying
            gangs.append(self._gangs.on_node(gang, here, theirs, self._prices, may_leave=may_leave))
            for number in indices:
                numbers[number] = index
        return numbers, gangs

    def _violating(self, pods: Sequence[Pod]) -> set[str]:
        flags = self._rules.state.budgets.violations(pods)
        return {pod.uid for pod, violates in zip(pods, flags, strict=True) if violates}

    @staticmethod
    def _counted(pods: Sequence[Pod], costs: Sequence[Cost], violating: Collection[str]) -> list[Cost]:
        """The costs if exactly these pods violate a budget."""
        if not violating:
            return list(costs)
        return [(float(pod.uid in violating), *cost[1:]) for pod, cost in zip(pods, costs, strict=True)]

    @staticmethod
    def _least(found: NodeVictims, alone: Collection[str]) -> int:
        """Budgets that the set violates at least."""
        return sum(bound.pod.uid in alone for bound in found.chosen)
