"""The evictor's decisions, from the state of the cluster and what it remembers. No I/O.

``now`` is in monotonic seconds, ``wall`` in Unix seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, TypeAlias

from extender.cluster.other_resources import asked_by, totals_of, wants_devices
from extender.cluster.state import State
from extender.evictor.book import Book, Hold, Schedulers
from extender.k8s.node_filter import other_resources
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.source.evictor_api import Announcement
from extender.verbs.evaluate import evaluate, reason_on
from extender.verbs.eviction.plan import EvictionPlan
from packing.model.reasons import Reason

OWN_GRACE = 3600.0
"""Seconds for a pod to end if its queue sets no grace period. Stowage does not read the pod's own."""

_OVERDUE = 10.0
"""Seconds to wait for a victim after its grace period: kubelet, and controllers that wait for its end, need
a moment."""
UNSCHEDULABLE = "Unschedulable"
"""Reason of the condition PodScheduled."""
_FIT_SOON = (Reason.FITS, Reason.PLUGIN_BUSY)
_STORAGE = "ephemeral-storage"

SKIPPED = (
    "gated", "nominated", "settling", "backing_off", "unreadable", "no_gpu", "fits",
    "no_plan", "budget", "rate", "scale_up", "room_is_coming", "refused", "gang",
)  # fmt: skip
"""Reasons why a round makes no room for a pending pod."""
Skipped: TypeAlias = Counter[str]
Step: TypeAlias = Literal["drop", "clear", "nominate"]


def waiting_pods(state: State, schedulers: Schedulers) -> list[Pod]:
    """The pending pods that a scheduler that uses Stowage could not place."""
    pods = (state.pods[key] for key in state.pods.waiting)
    return [
        pod
        for pod in pods
        if (pod.gates or pod.unscheduled == UNSCHEDULABLE)
        and pod.scheduler_name in schedulers
        and not pod.deleting
        and not state.pods.is_bound(pod.uid)
    ]


def adopt(state: State, book: Book, pod: Pod, now: float, seconds: float, wall: float = 0.0) -> None:
    """If the pending pod is already nominated, wait for the room: by kube-scheduler, another component, or
    the evictor before a restart. These need not be distinguished."""
    node = pod.nominated_node
    if node and pod.uid not in book.holds and book.stale.get(pod.uid) != node:
        leaving = [
            other for other in state.pods.on_node(node) if other.deleting and not _is_stuck(other, wall)
        ]
        with state.fleet.without([held for other in leaving for held in state.pods.allocations_of(other)]):
            if not fits_on(state, pod, node, _FIT_SOON):
                leaving = []  # do not wait for them: a preemptor crashed, or is about to evict more
        uids = frozenset(other.uid for other in leaving)
        ends = now + OWN_GRACE + seconds
        book.holds[pod.uid] = Hold(node, uids, ends, ours=False)


def _is_stuck(pod: Pod | None, wall: float) -> bool:
    """Whether the pod is terminating, and should have ended by now."""
    return pod is not None and pod.deleting and wall - pod.ends >= _OVERDUE


def next_step_of_hold(
    state: State, book: Book, uid: str, now: float, seconds: float, wall: float = 0.0
) -> Step | None:
    """The next step of this pod's hold: forget it, forget it and clear the nomination, renew the nomination,
    or None. ``seconds``: how long room is reserved after the victims have ended."""
    pod, hold = state.pods.by_uid(uid), book.holds[uid]
    if pod is None or pod.node_name or pod.deleting or pod.nominated_node not in ("", hold.node):
        return "drop"
    if not hold.ours and not pod.nominated_node:
        return "drop"
    if hold.gone is None and not any(map(state.pods.by_uid, hold.leaving)):
        hold.gone = now
    if state.pods.is_bound(uid):
        return None  # a binding is under way
    if hold.was_free and not fits_on(state, pod, hold.node, _FIT_SOON):
        return "clear" if pod.nominated_node else "drop"
    waits_in_vain = any(_is_stuck(state.pods.by_uid(leaving_uid), wall) for leaving_uid in hold.leaving)
    if waits_in_vain or now >= hold.ends or (hold.gone is not None and now - hold.gone >= seconds):
        return "clear" if hold.ours and pod.nominated_node else "drop"
    return "nominate" if hold.ours and not pod.nominated_node and book.may_try(uid, now) else None


def candidates(
    book: Book,
    waiting: Iterable[Pod],
    now: float,
    skipped: Skipped,
    replacing: Collection[str] = (),
    urgent: Collection[str] = (),
) -> list[Pod]:
    """The pods to make room for, the most urgent first: highest priority, then members that running gangs
    have lost (``urgent``: UIDs), then replacements of interrupted pods (``replacing``), then oldest."""
    chosen = []
    for pod in waiting:
        hold = book.holds.get(pod.uid)
        if pod.gates:
            skipped["gated"] += 1
        elif hold is not None and not hold.partial:
            skipped["nominated"] += 1
        elif not book.has_settled(pod.uid, now):
            skipped["settling"] += 1
        elif not book.may_try(pod.uid, now):
            skipped["backing_off"] += 1
        else:
            chosen.append(pod)

    def order(pod: Pod) -> tuple[int, bool, bool, float, str]:
        return -pod.priority, pod.uid not in urgent, pod.uid not in replacing, pod.created, pod.key

    return sorted(chosen, key=order)


def nodes_for(state: State, pod: Pod, asked: Sequence[str]) -> list[str]:
    """The nodes that kube-scheduler's own filters accept.

    ``asked``: the nodes of its last refused filter request, empty without one. They are used if Stowage
    cannot compute all of these filters. Of local storage, which many pods request and nodes seldom lack, only
    the node's total is compared.
    """
    other = other_resources(pod)
    if pod.has_other_constraints or other - {_STORAGE}:
        return [name for name in asked if name in state.nodes]
    node_filter, storage = state.node_filter(pod), asked_by(pod).get(_STORAGE, 0)
    return [
        name
        for name, node in state.nodes.items()
        if not node_filter.rejection(node)
        and (not storage or storage <= totals_of(node, [_STORAGE])[_STORAGE])
    ]


def fits_on(
    state: State,
    pod: Pod,
    node: str,
    reasons: Collection[Reason] = (Reason.FITS,),
) -> bool:
    """Whether the pod fits on a node now, or is rejected for one of these reasons."""
    request = state.request_or_none(pod)
    return request is not None and reason_on(state, pod, request, node) in reasons


def needs_no_plan(state: State, pod: Pod, nodes: Sequence[str]) -> str:
    """Why evictions cannot help the pod or are not needed, "" if they might help."""
    if (request := state.request_or_none(pod)) is None:
        return "unreadable"
    if not wants_devices(state, pod, request):
        return "no_gpu"
    evaluation = evaluate(state, pod, request, NodeNames.of(nodes))
    if evaluation.certain.any():
        return "fits"
    busy = (nodes[index] for index in (evaluation.codes == Reason.PLUGIN_BUSY).nonzero()[0])
    idle = (reason_on(state, pod, request, node, idle=True) for node in busy)
    return "fits" if Reason.FITS in idle else ""  # as soon as the device plugin is idle


def best_plan(plans: Sequence[EvictionPlan]) -> tuple[EvictionPlan | None, str]:
    """The cheapest plan that violates no PodDisruptionBudget, or None and the reason."""
    allowed = [plan for plan in plans if not plan.pdb_violations]
    if allowed:
        return min(allowed, key=EvictionPlan.order), ""
    return None, "budget" if plans else "no_plan"


def grace_of(state: State, victim: Pod) -> int | None:
    """Grace period that the victim's queue sets, None for the pod's own."""
    return state.rights.queue_of(victim).grace


def longest_grace(state: State, victims: Iterable[Pod]) -> float:
    """Seconds after which all victims should have ended."""
    graces = (grace_of(state, victim) for victim in victims)
    return max((OWN_GRACE if grace is None else float(grace) for grace in graces), default=OWN_GRACE)


def why_evicted(state: State, plan: EvictionPlan, victim: Pod, preemptor: Pod) -> str:
    """The reason in the victim's Event. It names no pod and no node: victim and preemptor may have different
    owners."""
    if victim.uid in plan.moves_to:
        return "room for its replacement is held on another node"
    if victim in plan.other_nodes:
        return "its gang is evicted as a whole"
    if victim.priority < preemptor.priority:
        return f"its priority {victim.priority} is lower than {preemptor.priority}"
    return f"it ran longer than the maximum duration of queue {state.rights.queues.name_of(victim)}"


def announced_at(events: Iterable[Announcement]) -> float | None:
    """Time of the first announcement of a new node for a pod (Unix seconds), None without one.

    - cluster-autoscaler: ``TriggeredScaleUp`` (kubernetes/autoscaler, ``eventing_scale_up_processor.go`` in
      ``cluster-autoscaler/processors/status/``).
    - Karpenter: ``Nominated`` with the note "Pod should schedule on: nodeclaim/NAME"; it adds ", node/NAME"
      where the node exists already (kubernetes-sigs/karpenter, ``events.go`` in
      ``pkg/controllers/provisioning/scheduling/``). EKS Auto Mode writes the same.

    Pods that consume a ProvisioningRequest are created, or no longer suspended, once it is provisioned.
    """
    announced = (
        event.since
        for event in events
        if event.reason == "TriggeredScaleUp"
        or (event.reason == "Nominated" and "nodeclaim/" in event.note and " node/" not in event.note)
    )
    return min(announced, default=None)
