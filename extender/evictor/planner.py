"""Plans for one pending pod at a time, from the present state, in steps short enough not to delay requests.

Pods are evicted for a member of a gang only if the rest of the gang gets room, too. Free room is reserved for
pods that replace interrupted pods: kube-scheduler's queue cannot be reordered, but a nominated pod keeps pods
of equal and lower priority off its node, in kube-scheduler as in Stowage.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor.book import ATTEMPTS, Book, Recommendation, Schedulers
from extender.evictor.decision import UNSCHEDULABLE, best_plan, fits_on, needs_no_plan, nodes_for
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.trial.room_by_moves import MOST_MEMBERS
from extender.verbs.evaluate import evaluate
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from extender.verbs.eviction.promising import promising_nodes
from extender.verbs.gang_fit import gang_may_fit

MOST_HELD = 32
"""Maximum pods with reserved free room at a time."""
_CHECKED = 10
"""Maximum pods per round for which free room is searched. Requests wait during the search."""
_ABOVE = 64
"""Maximum pending pods of higher priority that are checked for a claim to the room. If there are more, none
is reserved."""
_AT_ONCE, _TRIALS = 4, 30
"""Nodes that are searched at once, and evaluations for them where victims are found by trial: some
milliseconds, during which requests wait."""
_RECOMMENDED = 64
"""Maximum earlier recommendations that a plan takes into account."""


@dataclass(slots=True)
class Done:
    """Planned steps that count as done: nodes allocated to pods, by UID, and by node the UIDs of pods to
    evict."""

    places: dict[str, str] = field(default_factory=dict)
    leaving: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, uid: str, node: str, victims: Iterable[Pod]) -> None:
        self.places[uid] = node
        self.leaving[node].update(victim.uid for victim in victims)

    @contextmanager
    def supposed(self, state: State) -> Iterator[None]:
        """Context in which these places are reserved."""
        with state.reservations.supposing() as suppose:
            for uid, node in self.places.items():
                suppose(uid, node)
            yield


def to_check(state: State, book: Book, replacing: Collection[str], waiting: Iterable[Pod]) -> list[Pod]:
    """The replacements for which this round searches free room, the most urgent first. If there are too many,
    those checked longest ago."""
    room = MOST_HELD - sum(hold.was_free for hold in book.holds.values())
    pods = [
        pod
        for pod in waiting
        if pod.uid in replacing
        and pod.unscheduled == UNSCHEDULABLE
        and not (pod.nominated_node or pod.uid in book.holds)
        and book.attempts.get(pod.uid, 0) < ATTEMPTS
    ]
    pods.sort(key=lambda pod: (book.checked.get(pod.uid, 0), -pod.priority, pod.created, pod.key))
    chosen = pods[: max(0, min(room, _CHECKED))]
    latest = max(book.checked.values(), default=0)
    book.checked.update((pod.uid, latest + 1) for pod in chosen)
    return sorted(chosen, key=lambda pod: (-pod.priority, pod.created, pod.key))


def may_take(state: State, pod: Pod, node: str, waiting: Sequence[Pod]) -> bool:
    """Whether free room on a node may be reserved for the pod: no pending pod of higher priority fits there,
    and the pod's gang, if it has one, fits as a whole."""
    above = [
        other
        for other in waiting
        if other.priority > pod.priority and other.unscheduled == UNSCHEDULABLE
        if not is_nominated(state, other)
    ]
    if len(above) > _ABOVE:
        return False
    may_go = (other for other in above if not state.node_filter(other).rejection(state.nodes[node]))
    if any(fits_on(state, other, node) for other in may_go):
        return False
    return gang_may_fit(state, pod, state.request_of(pod))


@dataclass(frozen=True, slots=True)
class Asked:
    """Facts that the evictor learns from the verbs. ``nodes``: the nodes of the last refused filter request
    of the pod with this UID."""

    schedulers: Schedulers
    nodes: Callable[[str], Sequence[str]]


class Planner:
    """Searches eviction plans. ``wall`` returns Unix seconds."""

    def __init__(self, state: State, asked: Asked, wall: Callable[[], float]) -> None:
        self._state, self._asked, self._wall = state, asked, wall

    async def plan(
        self, pod: Pod, recommended: Iterable[Recommendation] = ()
    ) -> tuple[EvictionPlan | None, str]:
        """The best plan for the state at its return, or None and the reason. Other tasks run during the
        search. ``recommended``: evictions for other pods that count as done."""
        done = self._carried_out(pod, recommended)
        reason = self._why_none(pod, done)
        return (None, reason) if reason else await self._best_plan(pod, done)

    def confirmed(
        self, pod: Pod, plan: EvictionPlan, recommended: Iterable[Recommendation]
    ) -> EvictionPlan | None:
        """The best plan now on the node of an earlier plan; None if there is none, or none is needed."""
        done = self._carried_out(pod, recommended)
        return None if self._why_none(pod, done) else self._plan_on([plan.node], pod, done)[0]

    def _why_none(self, pod: Pod, done: Done) -> str:
        """Why the pod needs no plan, "" if it does."""
        with done.supposed(self._state):
            return needs_no_plan(self._state, pod, self.nodes_of(pod)) if self.waits(pod) else "fits"

    def _fitting_node(self, pod: Pod, closed: Collection[str] = ()) -> str:
        """The node that the policy prefers among those where the pod fits now, "" if there is none.
        ``closed``: nodes to exclude."""
        names = NodeNames.of([node for node in self.nodes_of(pod) if node not in closed])
        if (request := self._state.request_or_none(pod)) is None:
            return ""
        evaluation = evaluate(self._state, pod, request, names)
        fits = evaluation.certain.nonzero()[0]
        return names[int(fits[evaluation.keys[fits].argmin()])] if fits.size else ""

    def free_node(self, pod: Pod, waiting: Sequence[Pod]) -> str:
        """The best node where the pod fits now, if the room may be reserved for it; else ""."""
        if not self.waits(pod) or self._why_none(pod, Done()) != "fits":
            return ""
        node = self._fitting_node(pod)
        return node if node and may_take(self._state, pod, node, waiting) else ""

    def needs_room(self, pod: Pod) -> bool:
        """Whether the pod is still pending and fits nowhere."""
        return not self._why_none(pod, Done())

    def waits(self, pod: Pod) -> bool:
        """Whether the pod still exists and has no node."""
        known = self._state.pods.by_uid(pod.uid)
        return known is not None and not (known.deleting or self._state.pods.is_bound(pod.uid))

    def nodes_of(self, pod: Pod) -> list[str]:
        """The nodes that kube-scheduler's own filters accept for the pod."""
        return nodes_for(self._state, pod, self._asked.nodes(pod.uid))

    async def gang_fits(self, pod: Pod, plan: EvictionPlan) -> bool:
        """Whether the required members of the pod's gang would have room after this plan and others. Bound
        and nominated members have theirs, and succeeded members need none. True for a pod without a gang.
        Other tasks run during the search."""
        gang = self._state.gangs.gang_of(pod)
        if gang is None:
            return True

        def has_room(uid: str) -> bool:
            member = self._state.pods.by_uid(uid)
            is_expected = member is not None and is_nominated(self._state, member)
            return self._state.pods.is_bound(uid) or is_expected

        others = self._state.gangs.still_to_start(gang, gang.to_run, has_room, but=pod.key)
        missing, waiting = others.missing - 1, others.free
        if missing > min(len(waiting), MOST_MEMBERS):
            return False
        done, left = Done(), len(waiting)
        done.add(pod.uid, plan.node, plan.victims)
        for member in waiting:
            if not 0 < missing <= left:
                break
            left -= 1
            missing -= await self._place(member, done)
        return missing <= 0

    async def _place(self, pod: Pod, done: Done) -> bool:
        """Find a node for a member of a gang, if need be by evictions, and add it to ``done``."""
        await asyncio.sleep(0)
        with done.supposed(self._state):
            node = self._fitting_node(pod, done.leaving)
        plan = None if node else (await self._best_plan(pod, done))[0]
        if plan or node:
            done.add(pod.uid, plan.node if plan else node, plan.victims if plan else ())
        return bool(plan or node)

    async def _best_plan(self, pod: Pod, done: Done) -> tuple[EvictionPlan | None, str]:
        """Search a few nodes at a time, then the best of each group, until one group is left."""
        await asyncio.sleep(0)
        with done.supposed(self._state):
            found = promising_nodes(
                self._state, pod, self._state.request_of(pod), self.nodes_of(pod), done.leaving
            )
        nodes, why = [node.name for node in found], "no_plan"
        while len(nodes) > _AT_ONCE:
            best = list[str]()
            for first in range(0, len(nodes), _AT_ONCE):
                await asyncio.sleep(0)
                plan, reason = self._plan_on(nodes[first : first + _AT_ONCE], pod, done)
                best += [plan.node] if plan else []
                why = "budget" if reason == "budget" else why
            nodes = best
        await asyncio.sleep(0)
        plan, reason = self._plan_on(nodes, pod, done)
        return plan, reason and ("budget" if reason == "budget" else why)

    def _plan_on(self, nodes: Sequence[str], pod: Pod, done: Done) -> tuple[EvictionPlan | None, str]:
        with done.supposed(self._state):
            plans = plan_evictions(
                self._state,
                pod,
                nodes,
                self._wall(),
                to_equals=True,
                whole_gangs=True,
                required=done.leaving,
                trials=_TRIALS,
            )
        return best_plan(plans)

    def _carried_out(self, pod: Pod, recommended: Iterable[Recommendation]) -> Done:
        """These recommendations as done, except the pod's own and those of lower priority."""
        by_uid, done = self._state.pods.by_uid, Done()
        for recommendation in recommended:
            other = by_uid(recommendation.pod)
            if other is None or other.uid == pod.uid or other.priority < pod.priority:
                continue
            if not is_nominated(self._state, other) and len(done.places) < _RECOMMENDED:
                victims = filter(None, map(by_uid, recommendation.victims))
                done.add(other.uid, recommendation.node, victims)
        return done


def is_nominated(state: State, pod: Pod) -> bool:
    """Whether kube-scheduler or the evictor has reserved a node for the pending pod."""
    return bool(pod.nominated_node) or state.reservations.has(pod.uid, Reserved.EVICTOR)
