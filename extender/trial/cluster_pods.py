"""The pods of a cluster for a trial: movable pods, pods that stay and why, and pending pods.

A pod is placed where its rules allow (``PermittedRows``), or on its own node again.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import partial

from extender.cluster.census import pods_waiting_for_devices
from extender.cluster.other_resources import PodConflicts
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.policy_refresh import choose_node_sets_now, plan_now
from extender.cluster.state import State
from extender.cluster.unoffered import closed_text, unoffered
from extender.dialects import kai
from extender.dialects.pod_request import is_assignment
from extender.dialects.pod_resources import RequestError
from extender.inventory.node_state import must_stay
from extender.k8s.objects import Pod
from extender.queues.rights import WhyNot, declares_consolidation, declares_movable, protection_of
from extender.source.snapshot import moment_of
from extender.trial.trial import FROM_SLICES, Item, Staying, Trial
from packing.fleet.node_usage import Allocation
from packing.model.request import Request

_BUDGET = "a PodDisruptionBudget allows no eviction now, or it has several budgets"


class Stays(StrEnum):
    """Reasons a pod stays on its node, in addition to its own protections (``WhyNot``)."""

    CLOSED_NODE = "its node accepts no pods (cordoned, down, MIG reconfiguration in progress, not readable)"
    TERMINATING = "it is terminating"
    PINNED = "it is a static pod or belongs to a DaemonSet"
    RESERVATION = "it only reserves a GPU (placeholder or reservation pod)"
    CLAIMS = "it has ResourceClaims"
    LOCAL_DATA = "it has data on its node (hostPath or emptyDir)"
    NOT_CONSOLIDATED = "kai.scheduler/safe-to-consolidate forbids it"
    UNREADABLE = "its request cannot be read"
    NO_CONTROLLER = "no controller would recreate it"


_ENDS_WITH_NODE = {Stays.PINNED, Stays.TERMINATING}


def why_it_stays(pod: Pod, now: float, *, must_be_created_again: bool = False) -> Stays | WhyNot | None:
    """Why this pod cannot move to another node at ``now`` (Unix seconds), None if it can. This considers only
    the pod, not its request or its node.

    ``must_be_created_again``: for a real move, which evicts the pod, so pods without a controller stay.
    """
    if pod.scheduling_constraints.pinned_to_node:
        return Stays.PINNED
    if reserves_only(pod):
        return Stays.RESERVATION
    if pod.spec.claims:
        return Stays.CLAIMS
    if pod.deleting:
        return Stays.TERMINATING
    protection = protection_of(pod)
    if protection.reason and now < protection.until:
        return protection.reason
    if not declares_consolidation(pod):
        return Stays.NOT_CONSOLIDATED
    if pod.has_local_data and not declares_movable(pod):
        return Stays.LOCAL_DATA
    return Stays.NO_CONTROLLER if must_be_created_again and pod.owner is None else None


def as_new(pod: Pod) -> Pod:
    """The pod as recreated by its controller: without a node, devices, and assignments."""
    kept = {name: text for name, text in pod.annotations.items() if not is_assignment(name)}
    return replace(
        pod,
        node_name="",
        phase="Pending",
        nominated_node="",
        started=0.0,
        devices=(),
        annotations=kept,
        resized=None,
    )


def reserves_only(pod: Pod) -> bool:
    """Whether the pod does no work and only reserves its GPUs for others.

    Pods with only pause containers reserve headroom for an autoscaler (kubernetes.io/docs, "Overprovision
    Node Capacity For A Cluster"), and KAI reserves a shared GPU with its own pod.
    """
    return pod.only_pauses or kai.is_reservation(pod)


def trial_of(
    state: State,
    *,
    real_moves: bool = False,
    bare_pods: bool = False,
    allow_downgrade: bool = False,
) -> Trial:
    """The pods of a state that only the trial uses: running pods by start time (the largest first within a
    second), pending pods in kube-scheduler's order.

    ``real_moves``: pods, including those without a GPU, are evicted and recreated. Then disruption budgets
    apply, and pods without a controller stay unless ``bare_pods``. Otherwise only running GPU pods are moved,
    hypothetically.
    """
    permitted = PermittedRows(state)
    choose_node_sets_now(state)
    trial = Trial(
        state,
        permitted.open,
        partial(plan_now, state) if real_moves else None,
        allow_downgrade=allow_downgrade,
    )
    if real_moves:
        kept = {state.fleet.rows[name]: must_stay(node) for name, node in state.nodes.items()}
        trial.must_stay = {row: text for row, text in kept.items() if text}
    now = moment_of(state.pods.values())
    moving: list[tuple[Pod, Request, Allocation]] = []
    for pod in state.pods.values():
        held, request = state.allocations.allocation_of(pod.key), state.request_or_none(pod)
        has_gpus = pod.spec.claims or (request.wants_gpu if request else held and held.has_gpus)
        if held is None or not (real_moves or has_gpus):
            continue
        why: str | None = Stays.CLOSED_NODE
        if trial.open[held.row]:
            why = why_it_stays(pod, now, must_be_created_again=real_moves and not bare_pods)
            why = why or trial.must_stay.get(held.row)
        if why is None and request is not None and real_moves and state.budgets.violations([pod])[0]:
            why = _BUDGET
        if why is None and request is not None:
            moving.append((pod, request, held))
        else:
            why = why or Stays.UNREADABLE
            trial.staying_on[held.row][pod.key] = Staying(str(why), why in _ENDS_WITH_NODE, held)
    moving.sort(key=lambda moved: (moved[0].started or moved[0].created, -moved[1].gpus, moved[0].key))
    for pod, request, held in moving:
        rows = permitted.rows_that_accept(pod)
        if not rows[held.row]:
            rows = rows.copy()
            rows[held.row] = True
        trial.movable[pod.key] = item = Item(pod.key, request, rows, as_new(pod), held.row, pod.started)
        trial.runs(item, held)
    _set_apart(trial, state)
    if real_moves:
        _add_waiting(trial, state, permitted)
    return trial


def _set_apart(trial: Trial, state: State) -> None:
    for name, row in sorted(state.fleet.rows.items()):
        spec, hidden = state.fleet.specs[row], unoffered(state, name)
        if hidden or (spec and spec.gpus and not trial.open[row]):
            trial.apart[name] = closed_text(state, name) or (hidden.note if hidden else "")
        if hidden and hidden.claims and trial.open[row]:
            trial.only_for_claims[row] = hidden


def _add_waiting(trial: Trial, state: State, permitted: PermittedRows) -> None:
    for pod in pods_waiting_for_devices(state):
        try:
            request = state.request_of(pod)
        except RequestError as error:
            trial.unplanned[pod.key] = f"its request cannot be read: {error}"
            continue
        if pod.spec.claims or not request.wants_gpu:
            trial.unplanned[pod.key] = FROM_SLICES
        else:
            trial.waiting.append(pending_item(state, pod, request, permitted))


def pending_item(state: State, pod: Pod, request: Request, permitted: PermittedRows) -> Item:
    """A pending pod, with the nodes that its rules allow."""
    rows = permitted.rows_that_accept(pod)
    if pod.scheduling_constraints.affinity:
        rows, far = rows.copy(), PodConflicts(state, pod).far
        rows[[row for name, row in state.fleet.rows.items() if far(state.nodes[name])]] = False
    return Item(pod.key, request, rows, pod)
