"""Plans for one waiting pod at a time, from the state as it is now. Nothing changes while one is made.

Before anybody is evicted for a member of a gang, the rest of the gang must get room, too. Pods that replace
interrupted ones get free room held: kube-scheduler's queue cannot be reordered, but a nominated pod keeps its
node from pods of equal and lower priority, in kube-scheduler as in Stowage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.evictor.book import ATTEMPTS, Book, Recommendation, Schedulers
from extender.evictor.decision import UNSCHEDULABLE, best_node, best_plan, fits_on, needs_no_plan, nodes_for
from extender.k8s.objects import Pod
from extender.plan.room_by_moves import MOST_MEMBERS
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from extender.verbs.gang_fit import gang_may_fit

Required = Mapping[str, Collection[str]]
"""UIDs by node of the pods that leave in any case."""
MOST_HELD = 32
"""Pods that free room is held for at a time."""
_CHECKED = 10
"""Pods that a round looks for free room for. Requests wait meanwhile."""
_ABOVE = 64
"""Waiting pods of higher priority that are asked whether they need the room. If there are more, none is
held."""
_RECOMMENDED = 64
"""Earlier recommendations that a plan takes into account."""


def gang_fits(
    state: State,
    pod: Pod,
    plan: EvictionPlan,
    place: Callable[[Pod, Required], tuple[str, Collection[Pod]] | None],
) -> bool:
    """Whether as many members of the pod's gang as must run would have room after this plan and others.

    ``place`` returns the node that a member would get, and whom to evict for it there, None if there is none.
    While it is called, those before it count as nominated to their nodes. Bound and nominated members have
    their room, and those that have succeeded need none. True for a pod without a gang.
    """
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return True
    members = [one for one in state.gangs.members(gang.key) if one.uid != pod.uid and not one.deleting]
    waiting = [one for one in members if not _has_room(state, one)]
    missing = gang.minimum - gang.succeeded - 1 - (len(members) - len(waiting))
    waiting = [one for one in waiting if not one.gates]
    if missing <= 0:
        return True
    if missing > min(len(waiting), MOST_MEMBERS):
        return False
    leaving: defaultdict[str, set[str]] = defaultdict(set)
    leaving[plan.node].update(victim.uid for victim in plan.victims)
    with state.reservations.supposing() as suppose:
        suppose(pod.uid, plan.node)
        for member in waiting:
            if (placed := place(member, leaving)) is not None:
                node, victims = placed
                leaving[node].update(victim.uid for victim in victims)
                suppose(member.uid, node)
                missing -= 1
            if not missing:
                return True
    return False


def _has_room(state: State, pod: Pod) -> bool:
    reserved = bool(pod.nominated_node) or state.reservations.has(pod.uid, Reserved.EVICTOR)
    return reserved or state.pods.is_bound(pod.uid)


def replacements(state: State, waiting: Iterable[Pod], wall: float) -> frozenset[str]:
    """UIDs of the waiting pods that replace interrupted ones. ``wall`` in Unix seconds."""
    replaces = state.disruptions.replaces_interrupted
    return frozenset(pod.uid for pod in waiting if replaces(pod, wall))


def to_check(state: State, book: Book, replacing: Collection[str], waiting: Iterable[Pod]) -> list[Pod]:
    """The replacements to look for free room for in this round, the most urgent first. If there are many,
    those that were looked at longest ago."""
    room = MOST_HELD - sum(hold.was_free for hold in book.holds.values())
    pods = [pod for pod in waiting if pod.uid in replacing and _may_be_held_for(book, pod)]
    pods.sort(key=lambda pod: (book.checked.get(pod.uid, 0), -pod.priority, pod.created, pod.key))
    chosen = pods[: max(0, min(room, _CHECKED))]
    latest = max(book.checked.values(), default=0)
    book.checked.update((pod.uid, latest + 1) for pod in chosen)
    return sorted(chosen, key=lambda pod: (-pod.priority, pod.created, pod.key))


def _may_be_held_for(book: Book, pod: Pod) -> bool:
    return (
        pod.unscheduled == UNSCHEDULABLE
        and not pod.nominated_node
        and pod.uid not in book.holds
        and book.attempts.get(pod.uid, 0) < ATTEMPTS
    )


def may_take(state: State, pod: Pod, node: str, waiting: Sequence[Pod]) -> bool:
    """Whether free room on a node may be held for the pod: no waiting pod of higher priority fits there, and
    the pod's gang, if it has one, fits as a whole."""
    above = [one for one in waiting if one.priority > pod.priority and _needs_room(state, one)]
    if len(above) > _ABOVE or any(_could_use(state, one, node) for one in above):
        return False
    return gang_may_fit(state, pod, request_of(pod))


def _needs_room(state: State, pod: Pod) -> bool:
    reserved = pod.nominated_node or state.reservations.has(pod.uid, Reserved.EVICTOR)
    return pod.unscheduled == UNSCHEDULABLE and not reserved


def _could_use(state: State, pod: Pod, node: str) -> bool:
    rejected = state.node_filter(pod).rejection(state.nodes[node])
    return not rejected and fits_on(state, pod, node)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the evictor learns from the verbs. ``nodes``: the nodes of the last refused filter request of the
    pod of this UID."""

    schedulers: Schedulers
    nodes: Callable[[str], Sequence[str]]


class Planner:
    """``wall`` returns Unix seconds."""

    def __init__(self, state: State, asked: Asked, wall: Callable[[], float]) -> None:
        self._state, self._asked, self._wall = state, asked, wall

    def plan(self, pod: Pod, recommended: Iterable[Recommendation] = ()) -> tuple[EvictionPlan | None, str]:
        """The best plan, else None and why. ``recommended``: evictions for other pods that count as done."""
        with self._carried_out(pod, recommended) as leaving:
            if not self.waits(pod):
                return None, "fits"
            if reason := needs_no_plan(self._state, pod, self.nodes_of(pod)):
                return None, reason
            return self._best_plan(pod, leaving)

    def _fitting_node(self, pod: Pod, closed: Collection[str] = ()) -> str:
        """The best node for the pod as it is, "" if it fits nowhere. ``closed``: nodes not to consider."""
        return best_node(self._state, pod, self.nodes_of(pod), closed)

    def free_node(self, pod: Pod, waiting: Sequence[Pod]) -> str:
        """The best node for the pod as it is, if its room may be held for the pod; else ""."""
        reason = needs_no_plan(self._state, pod, self.nodes_of(pod))
        if reason != "fits" or not self.waits(pod):
            return ""
        node = self._fitting_node(pod)
        return node if node and may_take(self._state, pod, node, waiting) else ""

    def gang_fits(self, pod: Pod, plan: EvictionPlan) -> bool:
        """See ``gang_fits``."""
        return gang_fits(self._state, pod, plan, self._place)

    def needs_room(self, pod: Pod) -> bool:
        """Whether the pod still waits and fits nowhere."""
        return self.waits(pod) and not needs_no_plan(self._state, pod, self.nodes_of(pod))

    def waits(self, pod: Pod) -> bool:
        """Whether the pod is still there, and has no node."""
        known = self._state.pods.by_uid(pod.uid)
        return known is not None and not (known.deleting or self._state.pods.is_bound(pod.uid))

    def nodes_of(self, pod: Pod) -> list[str]:
        """The nodes that kube-scheduler's own filters accept for the pod."""
        return nodes_for(self._state, pod, self._asked.nodes(pod.uid))

    def _place(self, pod: Pod, leaving: Required) -> tuple[str, Collection[Pod]] | None:
        """See ``gang_fits``."""
        if node := self._fitting_node(pod, leaving):
            return node, ()
        plan, _ = self._best_plan(pod, leaving)
        return (plan.node, plan.victims) if plan else None

    def _best_plan(self, pod: Pod, leaving: Required) -> tuple[EvictionPlan | None, str]:
        plans = plan_evictions(
            self._state,
            pod,
            self.nodes_of(pod),
            self._wall(),
            to_equals=True,
            whole_gangs=True,
            required=leaving,
        )
        return best_plan(plans)

    @contextmanager
    def _carried_out(self, pod: Pod, recommended: Iterable[Recommendation]) -> Iterator[Required]:
        """With these recommendations carried out, but for the pod's own and those of lower priority: UIDs by
        node of the pods that leave."""
        pods, reservations = self._state.pods, self._state.reservations
        leaving, supposed = dict[str, set[str]](), 0
        with reservations.supposing() as suppose:
            for one in recommended:
                other = pods.by_uid(one.pod)
                if other is None or other.uid == pod.uid or other.priority < pod.priority:
                    continue
                if other.nominated_node or reservations.has(other.uid, Reserved.EVICTOR):
                    continue
                if (supposed := supposed + 1) > _RECOMMENDED:
                    break
                leaving.setdefault(one.node, set()).update(filter(pods.by_uid, one.victims))
                suppose(other.uid, one.node)
            yield leaving
