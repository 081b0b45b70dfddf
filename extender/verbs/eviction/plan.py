"""An eviction plan: for a pod that fits nowhere, the pods to evict on a node, and their cost.

docs/preemption.md has the rules. The search is that of ``packing.victims``; as for every other answer,
``evaluate`` determines whether a plan is valid, without the victims.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from extender.cluster.other_resources import PodConflicts, takes_another_pod
from extender.cluster.state import State
from extender.dra.forecast import AllocationSimulator, SearchBudget
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.queues.rights import EvictionRules
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import listed, many
from extender.verbs.evaluate import Evaluation, evaluate
from extender.verbs.eviction.node_pods import Bound, NodeCandidates, candidates_on, work_lost
from extender.verbs.eviction.node_victims import NodeVictims, VictimChooser
from extender.verbs.eviction.promising import MOST_NODES_WITH_CLAIMS, PromisingNode, promising_nodes
from packing.model.request import Request
from packing.victims.rights import ROOM_SECONDS
from packing.victims.search import VictimSearch, cheapest_by_trial
from packing.victims.victims import Victims, VictimSet

MOST_TRIALS = 100
"""Maximum evaluations for one node where victims are found by trial."""
MOST_TRIALS_OF_A_PLAN = 300
"""The same for all nodes together. One takes about half a millisecond, during which no other request is
answered. Nodes beyond the limit have no plan."""
MOST_THOROUGH = 4
"""Maximum number of nodes that are searched again, thoroughly."""
_MOST_TRIED = 8
"""Maximum number of terminating pods that are checked one by one for whether the plan needs them."""
_SHOWN = 8
"""Maximum number of victims named in one sentence."""


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """The victims on one node, highest priority first, and the members of their gangs on ``other_nodes``
    that are evicted with them.

    ``cost``: see docs/preemption.md; compared lexicographically. ``pdb_violations``: number of victims that
    violate a PodDisruptionBudget. ``room``: the policy's cost of the placement there, in GPUs; part of
    ``cost``. ``moves_to``: by the UID of a victim, the node where resources are held for its replacement.
    ``of_others``: number of victims of other queues than the pod's.
    """

    node: str
    victims: tuple[Pod, ...]
    cost: tuple[float, ...]
    pdb_violations: int = 0
    other_nodes: tuple[Pod, ...] = ()
    room: float = 0.0
    moves_to: Mapping[str, str] = field(default_factory=dict)
    of_others: int = 0

    @property
    def to_evict(self) -> list[Pod]:
        """The pods of the plan that are not terminating, highest priority first."""
        pods = {pod.uid: pod for pod in (*self.victims, *self.other_nodes) if not pod.deleting}
        return sorted(pods.values(), key=lambda pod: -pod.priority)

    @property
    def cost_text(self) -> str:
        return f"cost {', '.join(f'{part:.4g}' for part in self.cost)}"

    def order(self) -> tuple[bool, tuple[float, ...], int, str]:
        """A sort key, smallest for the best plan. No pod is evicted for a better placement if terminating
        pods are sufficient. At equal cost, a queue loses its own pods."""
        return bool(self.to_evict), self.cost, self.of_others, self.node


def plan_evictions(
    state: State,
    pod: Pod,
    nodes: Sequence[str],
    now: float,
    *,
    to_equals: bool = False,
    whole_gangs: bool = False,
    required: Mapping[str, Collection[str]] | None = None,
    proposed: Mapping[str, Collection[str]] | None = None,
    only: Collection[str] | None = None,
    trials: int | None = None,
) -> list[EvictionPlan]:
    """The plans of all nodes on which evictions make the pod fit, the best first.

    ``to_equals``: pods of equal priority beyond their maximum duration may also be evicted. ``whole_gangs``:
    gangs with members on other nodes may be evicted as a whole (kube-scheduler only evicts on one node).
    ``required``: by node, UIDs of pods that are evicted in any case; ``proposed``: those of a set chosen by
    another component, and no plan violates more budgets; ``only``: UIDs of the only pods that may be evicted.
    Of many nodes, those with the least shortfall are searched (``MOST_NODES``), with at most this many
    ``trials`` (default ``MOST_TRIALS_OF_A_PLAN``). ``now`` in Unix seconds.
    """
    if (request := state.request_or_none(pod)) is None:
        return []
    required, conflicts = dict(required or {}), PodConflicts(state, pod)
    for name in nodes:  # no plan leaves a pod whose anti-affinity excludes this one
        if name in state.nodes and (excluding := conflicts.on(state.nodes[name])):
            required[name] = [*{*required.get(name, ()), *(other.uid for other in excluding)}]
    promising = promising_nodes(state, pod, request, nodes, required)
    if not promising:
        return []
    rules = state.rules_for(pod, now, to_equals=to_equals)
    names = [node.name for node in promising]
    candidates = dict(zip(names, candidates_on(state, rules, names, only), strict=True))
    chooser = VictimChooser(state, rules, [*candidates.values()], proposed or {}, whole_gangs=whole_gangs)
    claims = _FreedClaims(state, pod) if any(node.by_claims for node in promising) else None
    most = MOST_TRIALS_OF_A_PLAN if trials is None else trials
    planner = _Planner(state, rules, request, required, candidates, chooser, claims, most)
    return sorted(planner.plans(promising), key=EvictionPlan.order)


@dataclass(slots=True)
class _Planner:
    _state: State
    _rules: EvictionRules
    _request: Request
    _required: Mapping[str, Collection[str]]
    _candidates: Mapping[str, NodeCandidates]
    _chooser: VictimChooser
    _claims: _FreedClaims | None
    _trials_left: int

    def plans(self, promising: Sequence[PromisingNode]) -> list[EvictionPlan]:
        """Not sorted."""
        plans, failed = self._verified(
            self._search_counted([node for node in promising if not node.by_claims])
        )
        failed.sort(key=lambda victims: victims.cost)
        rest = [victims.node for victims in failed[:MOST_NODES_WITH_CLAIMS]]
        rest += [node.name for node in promising if node.by_claims]
        more, _ = self._verified([found for node in rest if (found := self._by_trial(node)) is not None])
        return plans + more

    def _search_counted(self, nodes: Sequence[PromisingNode]) -> list[NodeVictims]:
        """The cheapest victims where the fleet's arrays are sufficient: roughly on all nodes, then thoroughly
        on the cheapest. Terminating pods are excluded."""
        on_nodes = [self._candidates[node.name] for node in nodes]
        leaving = [held for of_node in on_nodes for bound in of_node.leaving for held in bound.held]
        rows = [candidates.pods.row for candidates in on_nodes]
        with (
            self._state.fleet.without(leaving, idle=rows),
            self._state.fleet_view_for(self._rules.preemptor) as fleet,
        ):
            forms = {form for node in nodes for form in node.forms}
            searches = {form: VictimSearch(fleet, form) for form in forms}
            found = [
                (rough, node) for node in nodes if (rough := self._on_node(node, searches, roughly=True))
            ]
            found.sort(key=lambda on_node: on_node[0].cost)
            best = [self._on_node(node, searches) or rough for rough, node in found[:MOST_THOROUGH]]
        victims = best + [rough for rough, _ in found[MOST_THOROUGH:]]
        return [self._without_useless_leaving(node_victims) for node_victims in victims]

    def _on_node(
        self, node: PromisingNode, searches: Mapping[Request, VictimSearch], *, roughly: bool = False
    ) -> NodeVictims | None:
        """The cheapest victims for any form of the request, unconfirmed: ``_verified`` evaluates them."""
        candidates, required = self._candidates[node.name], self._required.get(node.name, ())
        pods, by_form = candidates.pods, []
        for form in node.forms:
            holdings = pods.holdings_in(self._state.fleet)
            among = partial(searches[form].among, pods.row, holdings, roughly=roughly)
            by_form.append(self._chooser.cheapest(candidates, required, among))
        return min(filter(None, by_form), key=lambda victims: victims.cost, default=None)

    def _by_trial(self, node: str) -> NodeVictims | None:
        """Victims on a node where only an evaluation shows whether the pod fits: for claims, or if a
        nominated pod uses other GPUs without the victims."""
        candidates, required, claims = self._candidates[node], self._required.get(node, ()), self._claims
        running = [bound.pod for bound in candidates.pods.running]
        uses = [claims is not None and (claims.used_by(pod) or pod.uid in required) for pod in running]
        users = candidates.may_leave & np.array(uses, np.bool_)
        for may_leave in (users, candidates.may_leave):  # mostly the claims are sufficient
            if not may_leave.any():
                continue
            tried = replace(candidates, may_leave=may_leave)
            found = self._chooser.cheapest(tried, required, partial(self._search_by_trial, tried))
            if found is not None:
                return self._without_useless_leaving(found) if found.pods else None
        return None

    def _search_by_trial(self, candidates: NodeCandidates, victims: Victims) -> VictimSet | None:
        def fits(chosen: frozenset[int]) -> bool:
            evicted = [candidates.pods.running[number] for number in chosen]
            return self._fits_without(candidates.node, [*evicted, *candidates.leaving])

        return cheapest_by_trial(victims, fits, min(MOST_TRIALS, self._trials_left))

    def _without_useless_leaving(self, found: NodeVictims) -> NodeVictims:
        """The victims without terminating pods that the plan does not need."""
        if not found.leaving or len(found.leaving) > min(_MOST_TRIED, self._trials_left):
            return found
        required, kept = self._required.get(found.node, ()), list(found.leaving)
        for bound in found.leaving:
            rest = [other for other in kept if other is not bound]
            if bound.pod.uid not in required and self._fits_without(found.node, [*found.chosen, *rest]):
                kept = rest
        return replace(found, leaving=tuple(kept))

    def _fits_without(self, node: str, evicted: Sequence[Bound]) -> bool:
        self._trials_left -= 1
        return bool(self._evaluate([node], evicted).certain[0])

    def _evaluate(self, nodes: Sequence[str], evicted: Sequence[Bound]) -> Evaluation:
        state, names = self._state, NodeNames.of(nodes)
        simulator = self._claims.simulator([bound.pod for bound in evicted]) if self._claims else None
        with state.fleet.without([held for bound in evicted for held in bound.held], idle=state.rows(names)):
            return evaluate(state, self._rules.preemptor, self._request, names, simulator=simulator)

    def _verified(self, found: Sequence[NodeVictims]) -> tuple[list[EvictionPlan], list[NodeVictims]]:
        """The valid plans, with the cost of the placement, and the choices that do not make the pod fit. A
        plan is invalid if the node cannot run one more pod, or a queue would lose too many at once."""
        plans, failed = [], []
        if not found:
            return [], []
        evicted = [bound for victims in found for bound in (*victims.chosen, *victims.leaving)]
        evaluation = self._evaluate([victims.node for victims in found], evicted)
        for victims, fits, room in zip(found, evaluation.certain, self._room(evaluation), strict=True):
            if not fits:
                failed.append(victims)
            elif (
                victims.pods
                and takes_another_pod(self._state, victims.node, leaving=len(victims.pods))
                and not self._rules.exceeds_hourly_bound([*victims.pods, *victims.elsewhere])
            ):
                others = self._rules.of_other_queues([*victims.pods, *victims.elsewhere])
                in_order = sorted(victims.pods, key=lambda pod: (-pod.priority, pod.started, pod.key))
                cost = *victims.cost[:-1], victims.cost[-1] + ROOM_SECONDS * room
                of_node = victims.node, tuple(in_order), cost, int(cost[0]), victims.elsewhere, room
                plans.append(EvictionPlan(*of_node, of_others=others))
        return plans, failed

    def _room(self, evaluation: Evaluation) -> list[float]:
        """The costs of the placements, in GPUs. Without ``device``, which prefers fractions of GPUs to whole
        ones at any cost: it decides between free nodes, but does not justify the loss of work."""
        policy, fleet, rows = self._state.policy, self._state.fleet, evaluation.rows.tolist()
        devices = (policy.terms(fleet, self._request, row).get("device", 0.0) for row in rows)
        return [cost - device for cost, device in zip(evaluation.cost.tolist(), devices, strict=True)]


class _FreedClaims:
    """The allocated ResourceClaims at one time, by the pods that use them. A claim is deallocated when its
    last consumer has ended, unless the pod to be placed uses it, too."""

    def __init__(self, state: State, pod: Pod) -> None:
        self._state, self._users = state, dict[str, frozenset[str]]()
        self._budget = SearchBudget(2 * state.simulator.at_once)
        self._by_user: defaultdict[str, list[str]] = defaultdict(list)
        generated = dict(pod.claims)
        names = (reference.claim or generated.get(reference.name, "") for reference in pod.spec.claims)
        own = {f"{pod.namespace}/{name}" for name in names}
        for claim in state.devices.claims.values():
            if not claim.allocation or claim.problem or claim.reserved_for_others or claim.key in own:
                continue
            if claim.reserved_for:
                users = frozenset(f"{claim.namespace}/{user}" for user in claim.reserved_for)
                self._users[claim.key] = users
                for user in users:
                    self._by_user[user].append(claim.key)

    def used_by(self, pod: Pod) -> bool:
        """Whether the pod uses a claim that may be deallocated."""
        return pod.key in self._by_user

    def simulator(self, pods: Collection[Pod]) -> AllocationSimulator:
        """Forecasts as if these pods had ended, and their claims were deallocated; all within one budget."""
        gone = {pod.key for pod in pods}
        touched = {claim for key in gone for claim in self._by_user.get(key, ())}
        freed = frozenset(claim for claim in touched if self._users[claim] <= gone)
        return AllocationSimulator(self._state.devices.without_claims(freed), self._budget)


def losses(state: State, plan: EvictionPlan, now: float) -> str:
    """The loss of each queue: "2 pods of queue backfill lose 3.2 GPU-hours". Terminating pods lose nothing
    more."""
    pods, seconds = Counter[str](), defaultdict[str, float](float)
    for pod in plan.to_evict:
        queue = state.rights.queues.name_of(pod)
        pods[queue] += 1
        seconds[queue] += work_lost(state, pod, now)
    texts = []
    for queue, count in pods.items():
        who = f"{many(count, 'pod')} {f'of queue {queue}' if queue else 'without a queue'}"
        texts.append(f"{who} {'loses' if count == 1 else 'lose'} {seconds[queue] / 3600:.3g} GPU-hours")
    leaving = len(plan.victims) + len(plan.other_nodes) - pods.total()
    texts += [f"{many(leaving, 'pod')} already terminating"] if leaving else []
    if plan.pdb_violations:
        texts.append(f"{plan.pdb_violations} against a PodDisruptionBudget")
    return "; ".join(texts)


def gpu_hours(state: State, plan: EvictionPlan, now: float) -> float:
    """The lost work in GPU-hours."""
    return sum(work_lost(state, pod, now) for pod in plan.to_evict) / 3600


def named(pods: Iterable[Pod]) -> str:
    """The keys of the first of these pods, and the number of the others."""
    return listed([shorten(pod.key, KEY) for pod in pods], _SHOWN)


def in_one_line(state: State, plan: EvictionPlan, now: float) -> str:
    """Node, victims, their losses, and the cost."""
    elsewhere = f", and on other nodes {named(plan.other_nodes)}" if plan.other_nodes else ""
    cost = ", ".join(f"{part:.6g}" for part in plan.cost)
    return f"{plan.node}: {named(plan.victims)}{elsewhere}: {losses(state, plan, now)} (cost {cost})"
