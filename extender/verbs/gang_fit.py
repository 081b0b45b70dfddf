"""Whether the whole gang of a pod fits, checked before its first member is placed or evictions are made.

A member with scheduling gates cannot be placed, so it does not count toward the minimum
(kubernetes-sigs/scheduler-plugins, ``PreFilter`` in ``pkg/coscheduling/core/core.go``; NVIDIA/KAI-Scheduler,
``IsReadyForScheduling`` in ``pkg/scheduler/api/podgroup_info/subgroup_info/podset.go``). Members that have
succeeded need no resources (``queues/gangs.py``).

For Kubernetes's own gangs, kube-scheduler calls filter for all members in one cycle, before it binds any of
them (``podGroupCycle`` in ``pkg/scheduler/schedule_one_podgroup.go``, v1.37.2). If not all fit, it removes
all pods of lower priority from its snapshot, calls filter for the members again, and then restores the most
important pods as far as its own filters allow (``selectVictimsOnDomain`` in
``pkg/scheduler/framework/preemption/podgrouppreemption.go``). It never calls ``preempt``, and no message
identifies the snapshot. But it counts devices, CPU and memory itself and sends no node that lacks them. So if
it sends a node that is full in Stowage's state, pods were removed from its snapshot. It never evicts for
resources that it does not count, such as shares of a GPU: that is left to the evictor.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from extender.cluster.gang_placement import WaitingMembers, waiting_members
from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.queues.gangs import Gang, Start
from extender.untrusted.limits import GANG_READ, KEY, shorten
from extender.verbs.evaluate import Evaluation, evaluate, rank_keys
from extender.verbs.eviction.plan import plan_evictions
from extender.verbs.gang_room import may_fit, wants_dra
from packing.fleet.arrays import Flags
from packing.fleet.feasibility import fits_when_empty
from packing.model.reasons import Reason
from packing.model.request import Request

_NEXT_COMES_WITHIN = 5.0
"""Seconds from one pod of a gang to the next: controllers create them one by one, at a limited rate."""
_KINDS = 4
"""Different members of a gang of which it is compared where they may run."""


def with_gang_check(state: State, evaluation: Evaluation) -> Evaluation:
    """The evaluation with ``GANG_DOES_NOT_FIT`` where the pod fits, but its gang does not fit anywhere. Only
    for members with GPUs: ``filter`` refuses no node to the others."""
    pod, request = evaluation.pod, evaluation.request
    if not request.wants_gpu or not evaluation.fitting or gang_may_fit(state, pod, request):
        return evaluation
    codes = evaluation.codes.copy()
    codes[codes == Reason.FITS] = Reason.GANG_DOES_NOT_FIT
    return replace(evaluation, codes=codes)


def gang_may_fit(state: State, pod: Pod, request: Request) -> bool:
    """False if the members that must run together do not all fit, even without all pods that they may evict.
    For ``filter``, ``preempt``, and the free resources that the evictor holds.

    True for a pod without such a gang, if the check is off, and for a gang with a member that is already
    bound, or was assigned a node in this cycle. Resources freed for a member are available to its gang.
    """
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang is None or gang.to_place < 2 or _has_a_node(state, pod, gang):
        return True
    now = time.time()  # permissions to evict may change without an event
    is_like_others = pod.key in state.pods and not (pod.gates or state.reservations.node_of(pod.uid))
    own = "" if is_like_others else pod.key
    kind = request, pod.spec.node_selector, pod.scheduling_constraints
    # If all members must be placed, it does not matter which of them asks.
    needs_all = len(state.gangs.members(gang.key)) == gang.to_place
    asked = gang.key, own, None if needs_all else kind, int(now) // 10
    if state.gang_answers[0] != (version := state.room_version):
        state.gang_answers = version, {}
    answers = state.gang_answers[1]  # shared by all members
    if asked not in answers:
        asking = WaitingMembers(pod, request, domains=state.gangs.domains_of(pod))
        answers[asked] = may_fit(state, gang, asking, now) is not None
    return answers[asked]


def must_wait(state: State, pod: Pod, *, remember: bool = False) -> str:
    """Why a member of a gang that has not started must be evaluated again later, "" for none: its job, which
    declares how many start together, is not observed yet, or another gang that may need the same nodes starts
    first (``GangStarts``). Names no gang of another namespace. ``remember``: kube-scheduler gets this answer
    about a pod that fits, so its gang starts or waits."""
    if not pod.pod_group and state.gangs.gang_of(pod) is None:
        return ""  # as for most pods
    if state.gang_check and (awaited := state.gangs.awaited_job(pod, time.time())):
        return f"waits until Stowage sees {awaited}, which declares how many pods start together"
    if problem := state.gangs.never_tried(pod):
        return problem
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang is None or gang.to_place < 2 or state.gangs.running(gang.key) >= gang.to_place:
        return ""
    if leader := _last_places_for(state, gang, pod):
        return f"waits for {leader.key}, without which its job is useless"
    starts = state.reservations.starts
    others = starts.before(gang.key, pod.priority)
    rows = _rows_of(state, gang, pod) if others else np.zeros(0, np.bool_)
    first = next((other for other in others if _may_compete(state, other, rows)), None)
    if first is None:
        if remember and not pod.pod_group:  # kube-scheduler starts Kubernetes's own gangs one at a time
            starts.answered(gang.key, pod)
        return ""
    if remember:
        starts.refused(gang.key, pod, first.namespace)
    is_own = first.namespace == pod.namespace
    return f"{shorten(first.gang, KEY) if is_own else 'a gang of another namespace'} starts first"


def _last_places_for(state: State, gang: Gang, pod: Pod) -> Pod | None:
    """A pending member without which the others are useless, if the last places that must be taken together
    are for such members, and the pod is none of them."""
    if pod.key in gang.indispensable or not gang.indispensable:
        return None
    start = state.gangs.still_to_start(gang, gang.to_place, state.pods.is_bound, but=pod.key)
    leaders = [member for member in (*start.free, *start.gated) if member.key in gang.indispensable]
    return leaders[0] if leaders and start.missing <= len(leaders) else None


def _may_compete(state: State, start: Start, rows: Flags) -> bool:
    """Whether this gang has not started, may start, and may use one of these rows. Members with another
    scheduler or with scheduling gates do not start."""
    first = state.gangs.gang(start.gang)
    if first is None or state.gangs.running(first.key) >= first.to_place:
        return False
    room, free, gated, _ = state.gangs.still_to_start(first, first.to_place, state.pods.is_bound)
    newest = max((member.created for member in (*room, *free, *gated)), default=0.0)
    to_start = len(room) + sum(member.scheduler_name == start.scheduler for member in free)
    if not newest or time.time() < newest + _NEXT_COMES_WITHIN:
        to_start += max(first.to_place - len(room) - len(free) - len(gated), 0)
    return to_start >= first.to_place and bool((rows & _rows_of(state, first)).any())


def _rows_of(state: State, gang: Gang, *pods: Pod) -> Flags:
    """(N,) the rows that would fit ``pods`` or another member with GPUs if they were empty: by its request,
    node selector, required node affinity and tolerations. All rows if that is not known, or not soon."""
    known = state.gangs.members(gang.key)
    unseen = (gang.templates or gang.words.others_unlike) and len(known) < gang.to_place
    is_unknown = bool(unseen) or len(known) > GANG_READ
    members = [] if is_unknown else waiting_members((*pods, *known), 2 * GANG_READ, state.request_of)
    is_unknown |= len(members) > _KINDS or any(wants_dra(state, member) for member in members)
    rows = np.full(state.fleet.arrays.capacity, is_unknown)
    for member in () if is_unknown else members:
        pod, request = member.pod, member.request
        asked = request, pod.spec.node_selector, pod.scheduling_constraints, state.nodes.changes
        if (usable := state.usable_rows.get(asked)) is None:
            rejection = state.node_filter(pod).rejection
            usable = fits_when_empty(state.fleet, request)
            usable |= fits_when_empty(state.fleet, request.stacked or request)
            usable &= request.wants_gpu
            for name, row in state.fleet.rows.items():
                usable[row] = usable[row] and not rejection(state.nodes[name])
            state.usable_rows.put(asked, usable, usable.nbytes)
        rows |= usable
    return rows


def _has_a_node(state: State, pod: Pod, gang: Gang) -> bool:
    """Whether another member was assigned a node in this cycle."""
    answered = state.reservations.in_cycle(state.gangs.cycle_of(pod)).keys() - {pod.uid}
    return bool(answered) and any(member.uid in answered for member in state.gangs.members(gang.key))


_COUNTED = (Reason.NO_FREE_GPUS, Reason.NO_FREE_CPU, Reason.NO_FREE_MEMORY)


def evaluate_in_cycle(state: State, pod: Pod, request: Request, names: NodeNames) -> Evaluation:
    """``evaluate``; for a member of such a gang, full nodes also fit if evictions free the resources there.
    They rank below all others, by the cost of the evictions."""
    evaluation = evaluate(state, pod, request, names)
    if not pod.pod_group or pod.never_preempts or not request.devices:
        return evaluation
    full = np.isin(evaluation.codes, _COUNTED)
    if not full.any():
        return evaluation
    at = {name: index for index, name in enumerate(names) if full[index]}
    plans = plan_evictions(state, pod, [*at], time.time(), whole_gangs=True)
    if not plans:
        return evaluation
    codes, cost = evaluation.codes.copy(), evaluation.cost.copy()
    dearest = cost[codes == Reason.FITS].max(initial=0.0)
    for order, plan in enumerate(plans, 1):
        codes[at[plan.node]], cost[at[plan.node]] = Reason.FITS, dearest + order
    keys = rank_keys(cost, state.fleet.arrays.order[evaluation.rows])
    return replace(evaluation, codes=codes, cost=cost, keys=keys)
