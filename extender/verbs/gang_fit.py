"""Whether the whole gang of a pod fits, asked before its first member is placed.

Only of gangs whose minimum is to be placed at once. The answer "no" must be right, because it starves the
gang; so everything that Stowage does not know, and all room that evictions can make, counts as fitting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice

from extender.cluster.gang_simulation import WaitingMembers, grouped, place_together, waiting_members
from extender.cluster.state import PossiblyBound, State
from extender.dra.pod_claims import class_resources
from extender.k8s.objects import Pod
from extender.queues.gangs import Gang
from extender.untrusted.limits import GANG_READ, GANG_VICTIMS
from extender.verbs.evaluate import Evaluation
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request


def with_gang_check(state: State, evaluation: Evaluation) -> Evaluation:
    """The evaluation with ``GANG_DOES_NOT_FIT`` where the pod fits, but its gang does not fit anywhere."""
    if not state.gang_check or state.gangs.gang_of(evaluation.pod) is None:
        return evaluation
    fits = evaluation.codes == Reason.FITS
    if not fits.any():
        return evaluation
    if gang_may_fit(state, evaluation.pod, evaluation.request, evaluation.possibly_bound):
        return evaluation
    codes = evaluation.codes.copy()
    codes[fits] = Reason.GANG_DOES_NOT_FIT
    return replace(evaluation, codes=codes)


def gang_may_fit(state: State, pod: Pod, request: Request, possibly_bound: PossiblyBound = ()) -> bool:
    """False if not all members that must run together fit, even if all pods that they may evict were gone.

    True for a pod without such a gang, and for a gang of which a member is bound already, or nominated:
    room has been made for it.
    """
    gang = state.gangs.gang_of(pod)
    if gang is None or gang.together < 2 or pod.nominated_node:
        return True
    now = time.time()  # rights to evict may change without an event
    asked = gang.key, pod.key if pod.key not in state.pods else "", int(now) // 10
    if not possibly_bound and (known := state.gang_answers.get(asked, state.room_version)) is not None:
        return known
    members = _members_to_place(state, gang, pod, request)
    fits = not members or _fits(state, pod, members, now, possibly_bound)
    if not possibly_bound:
        state.gang_answers.put(asked, state.room_version, fits)
    return fits


def _members_to_place(state: State, gang: Gang, pod: Pod, request: Request) -> Sequence[WaitingMembers]:
    """The pod and as many others as must run with it, the smallest first; empty if that is not known."""
    others = [member for member in state.gangs.members(gang.key) if member.key != pod.key]
    if any(member.nominated_node or state.pods.is_bound(member.uid) for member in others):
        return ()
    waiting = islice((other for other in others if not other.deleting), GANG_READ)
    asking = WaitingMembers(pod, request)
    members = grouped([asking, *waiting_members(waiting, gang.together - 1)])
    if any(_wants_dra(state, member) for member in members):
        return ()
    missing = gang.together - sum(member.count for member in members)
    alike = all(member.request == request for member in members)
    if missing > 0 and alike and not gang.words.others_unlike:  # they are still to be created
        members[0] = replace(members[0], count=members[0].count + missing)
    return members


def _wants_dra(state: State, members: WaitingMembers) -> bool:
    """Whether they may get devices that are not in the fleet."""
    resources = state.devices.extended_resources
    named = any(name in resources for name, _ in members.request.devices)
    return bool(named or members.pod.spec.claims or class_resources(members.pod.spec))


def _fits(
    state: State, pod: Pod, members: Sequence[WaitingMembers], now: float, possibly_bound: PossiblyBound
) -> bool:
    with state.fleet_view_for(pod, possibly_bound) as fleet, ExitStack() as without:
        if place_together(fleet, state.policy, state.nodes, members) is not None:
            return True
        evictable = list(islice(_evictable(state, pod, now), GANG_VICTIMS + 1))
        if not evictable or len(evictable) > GANG_VICTIMS:
            return bool(evictable)
        without.enter_context(fleet.without(evictable))
        return place_together(fleet, state.policy, state.nodes, members) is not None


def _evictable(state: State, pod: Pod, now: float) -> Iterator[Allocation]:
    """What those pods have that may be evicted for this one."""
    lower = (other for other in state.pods.values() if other.node_name and other.priority < pod.priority)
    for victim in lower:
        if not state.rights.why_not(pod, victim, now):
            yield from state.pods.allocations_of(victim)
