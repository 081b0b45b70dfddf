"""Whether the rest of a gang would get room, too, before anybody is evicted for one of its members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.verbs.eviction.plan import EvictionPlan

MOST_MEMBERS = 16
"""Members that may lack room together. Requests wait while all of them are planned."""

Required = Mapping[str, Collection[str]]
"""UIDs by node of the pods that leave in any case."""


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
