"""What it costs that a gang leaves as a whole, wherever its members run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extender.k8s.objects import Pod
from extender.queues.gangs import Gang
from extender.verbs.eviction.candidates import Rules
from extender.verbs.eviction.costs import Prices
from extender.verbs.eviction.node_pods import Bound, Numbers, bound_of, numbers_of
from packing.victims.victim import GangCost


@dataclass(frozen=True, slots=True)
class NodeGang:
    """A gang with candidates on one node: its members on other nodes, and what the search needs."""

    elsewhere: tuple[Pod, ...]
    cost: GangCost


class GangTotals:
    """The gangs of the candidates of one call. A gang with a member that may not be evicted never leaves as a
    whole; one with members on other nodes only if the rules let gangs leave whole."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._state = rules, rules.state
        self._running: dict[str, list[Pod]] = {}
        self._protected: dict[str, bool] = {}

    def gang_of(self, pod: Pod) -> Gang | None:
        return self._state.gangs.gang_of(pod)

    def led_by(self, pod: Pod) -> str:
        """The key of the gang that is useless without this pod, "" for none."""
        gang = self.gang_of(pod)
        return gang.key if gang and pod.key in gang.indispensable else ""

    def _members_elsewhere(self, gang: Gang, here: Sequence[Bound]) -> tuple[Pod, ...]:
        uids = {bound.pod.uid for bound in here}
        return tuple(pod for pod in self._members(gang.key) if pod.uid not in uids)

    def on_node(
        self, gang: Gang, here: Sequence[Bound], costs: Numbers, prices: Prices, *, may_leave: bool
    ) -> NodeGang:
        """``here``: all candidates of the gang on the node, ``costs`` theirs, (len(here), C). ``may_leave``:
        as a whole. With an indispensable member among them it can only do that."""
        elsewhere = self._members_elsewhere(gang, here)
        spare = max(0, len(self._members(gang.key)) - gang.minimum)
        if any(bound.pod.key in gang.indispensable for bound in here):
            spare = 0
        if not may_leave or self._is_protected(gang.key) or (elsewhere and not self._rules.whole_gangs):
            return NodeGang((), GangCost(spare, None))
        others = prices.of_numbers(numbers_of(self._state, [bound_of(self._state, pod) for pod in elsewhere]))
        others[:, 0] = [self._state.budgets.violations((pod,))[0] for pod in elsewhere]
        whole = costs.sum(axis=0) + others.sum(axis=0)
        return NodeGang(elsewhere, GangCost(spare, tuple(whole.tolist())))

    def _members(self, key: str) -> list[Pod]:
        """The members that run and will go on."""
        if key not in self._running:
            members = self._state.gangs.members(key)
            bound = self._state.pods.is_bound
            self._running[key] = [pod for pod in members if not pod.deleting and bound(pod.uid)]
        return self._running[key]

    def _is_protected(self, key: str) -> bool:
        """Whether a member may not be evicted, or says that the gang must keep its minimum."""
        if key not in self._protected:
            must_remain = self._state.rights.gang_must_remain
            members = self._members(key)
            self._protected[key] = any(must_remain(pod) or self._rules.why_not(pod) for pod in members)
        return self._protected[key]
