"""Plans for one waiting pod at a time, from the state as it is now. Nothing changes while one is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor.book import Recommendation, Schedulers
from extender.evictor.decision import best_node, best_plan, needs_no_plan, nodes_for
from extender.evictor.gang_room import Required, gang_fits
from extender.evictor.replacements import may_take
from extender.k8s.objects import Pod
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions

_RECOMMENDED = 64
"""Earlier recommendations that a plan takes into account."""


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
            if not self._waits(pod):
                return None, "fits"
            if reason := needs_no_plan(self._state, pod, self._nodes(pod)):
                return None, reason
            return self._best_plan(pod, leaving)

    def _fitting_node(self, pod: Pod, closed: Collection[str] = ()) -> str:
        """The best node for the pod as it is, "" if it fits nowhere. ``closed``: nodes not to consider."""
        return best_node(self._state, pod, self._nodes(pod), closed)

    def free_node(self, pod: Pod, waiting: Sequence[Pod]) -> str:
        """The best node for the pod as it is, if its room may be held for the pod; else ""."""
        reason = needs_no_plan(self._state, pod, self._nodes(pod))
        if reason != "fits" or not self._waits(pod):
            return ""
        node = self._fitting_node(pod)
        return node if node and may_take(self._state, pod, node, waiting) else ""

    def gang_fits(self, pod: Pod, plan: EvictionPlan) -> bool:
        """See ``gang_room``."""
        return gang_fits(self._state, pod, plan, self._place)

    def needs_room(self, pod: Pod) -> bool:
        """Whether the pod still waits and fits nowhere."""
        return self._waits(pod) and not needs_no_plan(self._state, pod, self._nodes(pod))

    def _waits(self, pod: Pod) -> bool:
        known = self._state.pods.by_uid(pod.uid)
        return known is not None and not (known.deleting or self._state.pods.is_bound(pod.uid))

    def _nodes(self, pod: Pod) -> list[str]:
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
            self._nodes(pod),
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
