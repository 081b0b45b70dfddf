"""The verbs of Volcano's extender plugin, and Volcano's decisions in memory that are not yet done: a session.

Volcano decides about many pods before it binds the first one. It reports each allocation (allocate) and
release (deallocate), also those of trials, and it reports evictions and the end of trials by the same calls
(``pkg/scheduler/framework/statement.go`` at ed72c7c8). Stowage counts

- a pod that Volcano is about to bind as an assumed pod, until the watch shows it bound;
- a pod that waits for others to end (pipelined) as nominated to its node;
- an evicted pod as terminating: its resources count for pods that wait for it, and for no other.

Nothing here outlives a crashed Volcano: assumed pods expire, nominations end with the session, and evicted
pods count as such for at most a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from extender.cluster.reservations import TIME_TO_LIVE, Reserved
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import Bytes, NodeNames
from extender.protocol.volcano import Code, Task, TaskStatus, Vote
from extender.untrusted.limits import VOLCANO_NODES, shorten
from extender.verbs.evaluate import MAX_SCORE, Evaluation, reason_on
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from extender.verbs.prioritize import prioritize
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request

UNKNOWN_POD = "Stowage has not observed this pod yet"
POINTS = 2000.0
"""Points per level of a score (of ten), as in scheduler-config/ (weight 200): Volcano has no weights for
extenders. Its own scores for nodes (nodeorder) total 1,200 by default, so packing decides."""
_ELSEWHERE = "pod is bound to another node"
_PRUNED_FROM = 256  # holds or evictions


@dataclass(slots=True)
class _Hold:
    """An allocation of Volcano for a pod. ``waits``: for others to end. ``of_earlier``: from a session that
    is over; Volcano may have released it without a call."""

    pod: Pod
    node: str
    waits: bool
    of_earlier: bool = False


class VolcanoSession:
    """The holds and evictions of Volcano in one cluster state. ``clock`` in monotonic seconds."""

    def __init__(
        self,
        state: State,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state, self.clock = state, clock
        self._holds: dict[str, _Hold] = {}
        self._evicted_until: dict[str, float] = {}  # by UID, in seconds of the clock
        self._prune_at = _PRUNED_FROM

    def __len__(self) -> int:
        """Number of held pods."""
        return len(self._holds)

    def hold(self, pod: Pod, node: str, *, waits: bool) -> None:
        """Hold Volcano's allocation for a pod that the watch shows without a node."""
        self.release(pod.uid)
        if waits:
            self.state.reservations.reserve(pod.uid, Reserved.NOMINATING, node)
        else:
            # Volcano does not report the outcome. The watch does, or the pod is looked up when it is overdue.
            now = self.clock()
            assumed = self.state.assume(pod, node, {}, now)
            self.state.binding_failed(assumed.pod, now, outcome_unknown=True)
        self._holds[pod.uid] = _Hold(pod, node, waits)
        if len(self._holds) >= self._prune_at:
            self._prune()

    def release(self, uid: str) -> None:
        """Release the allocation of this pod, as Volcano has done."""
        hold = self._holds.pop(uid, None)
        if hold is None:
            return
        if hold.waits:
            self.state.reservations.release(uid, Reserved.NOMINATING)
        elif (known := self.state.pods.by_uid(uid)) is None or not known.node_name:
            self.state.reconcile(hold.pod, None, self.clock())

    def evict(self, uid: str) -> None:
        """Note that Volcano will evict this pod, or is trying its eviction."""
        if self.state.pods.is_bound(uid):
            self._evicted_until[uid] = self.clock() + TIME_TO_LIVE
        if len(self._evicted_until) >= self._prune_at:
            self._prune()

    def keep_running(self, uid: str) -> None:
        """Note that Volcano will not evict it."""
        self._evicted_until.pop(uid, None)

    def end(self) -> None:
        """End the session; the next one does not know of pods that waited for resources.

        Allocations of other pods are kept: Volcano is binding them, or ``forget_given_up`` notices that it is
        not.
        """
        for uid in [uid for uid, hold in self._holds.items() if hold.waits]:
            self.release(uid)
        self._prune()
        for hold in self._holds.values():
            hold.of_earlier = True

    def forget_given_up(self, asked: str, node: str, counted: bytes) -> None:
        """Release allocations of earlier sessions on a node that Volcano no longer counts there.

        ``counted``: Volcano's node with its tasks. ``asked``: the UID of the pod of the present call, which
        therefore has no allocation.
        """
        for uid, hold in list(self._holds.items()):
            if hold.of_earlier and (
                uid == asked or (hold.node == node and b'"%b"' % uid.encode() not in counted)
            ):
                self.release(uid)

    def reason(self, pod: Pod, request: Request, node: str, *, later: bool) -> Reason:
        """Whether the pod fits on the node now, or ``later``, after the end of all terminating pods."""
        now = reason_on(self.state, pod, request, node)
        if not later or not now.eviction_helps or not (leaving := self.leaving_on(node)):
            return now
        return reason_on(self.state, pod, request, node, idle=True, without=leaving)

    def leaving_on(self, node: str) -> list[Allocation]:
        """The allocations of a node's pods that are about to end, or that Volcano evicts."""
        row = self.state.fleet.rows.get(node)
        if row is None:
            return []
        leaving = [pod for pod in self.state.pods.on_node(node) if self.leaves(pod)]
        return [held for pod in leaving for held in self.state.pods.allocations_of(pod) if held.row == row]

    def leaves(self, pod: Pod) -> bool:
        """Whether the pod is about to end, or Volcano evicts it."""
        return pod.is_about_to_go(time.time()) or self._evicted_until.get(pod.uid, 0.0) > self.clock()

    def _prune(self) -> None:
        """Forget holds that the watch has confirmed or that expired, and evictions that are over."""
        pods, assumed = self.state.pods, self.state.assumed_pods
        self._holds = {
            uid: hold
            for uid, hold in self._holds.items()
            if (hold.waits and pods.by_uid(uid)) or assumed.on_node(uid, hold.node)
        }
        now = self.clock()
        self._evicted_until = {
            uid: end for uid, end in self._evicted_until.items() if end > now and pods.by_uid(uid)
        }
        self._prune_at = max(_PRUNED_FROM, 2 * len(self._holds), 2 * len(self._evicted_until))


def predicate(session: VolcanoSession, pod: Pod, node: str, counted: bytes) -> tuple[str, Code]:
    """Why the pod does not fit on the node, "" if it does, and whether evictions could help. ``counted``: see
    ``forget_given_up``.

    Volcano calls this once for each node, and counts CPU, memory and whole devices itself. If these are idle,
    it uses the node immediately, and otherwise waits there for terminating pods. So a pod also fits where it
    fits after their end: allocate reports whether it must wait.
    """
    try:
        request = session.state.request_of(pod)
    except RequestError as error:
        return shorten(str(error)), Code.UNRESOLVABLE
    if not request.wants_gpu:
        return "", Code.SUCCESS
    session.forget_given_up(pod.uid, node, counted)
    reason = session.reason(pod, request, node, later=True)
    if reason is Reason.FITS:
        return "", Code.SUCCESS
    return reason.text, Code.UNSCHEDULABLE if reason.eviction_helps else Code.UNRESOLVABLE


def prioritize_nodes(session: VolcanoSession, pod: Pod, nodes: Sequence[str]) -> dict[str, float]:
    """Points by node; none for a pod that requests no GPU.

    Volcano also calls this before it looks for victims: then no node fits, and the best one is that of the
    cheapest eviction plan, because Volcano tries the nodes in the order of their scores.
    """
    args = FilterArgs(pod, NodeNames.of(nodes))
    scores, evaluation = prioritize(session.state, args)
    if evaluation is None:
        return {}
    if not _any_fits(evaluation):
        scores = _scores_once_others_left(session, args, nodes)
    return {node: POINTS * score for node, score in zip(nodes, scores.tolist(), strict=True)}


def _scores_once_others_left(session: VolcanoSession, args: FilterArgs, nodes: Sequence[str]) -> Bytes:
    """Scores of the nodes where the pod fits after the end of terminating pods, else by cost of evictions."""
    state = session.state
    leaving = [held for node in nodes for held in session.leaving_on(node)]
    with state.fleet.without(leaving):
        scores, evaluation = prioritize(state, args)
        if evaluation is None or _any_fits(evaluation):
            return scores
        return _scores_of_plans(state, args.pod, nodes, session)


def _scores_of_plans(state: State, pod: Pod, nodes: Sequence[str], session: VolcanoSession) -> Bytes:
    scores = np.zeros(len(nodes), np.uint8)
    plans = plan_evictions(state, pod, nodes, time.time())
    rank = {plan.node: place for place, plan in enumerate(plans)}
    for index, node in enumerate(nodes):
        if node in rank:
            scores[index] = max(MAX_SCORE - rank[node], 1)
    return scores


def _any_fits(evaluation: Evaluation) -> bool:
    return bool((evaluation.codes == Reason.FITS).any())


@dataclass(frozen=True, slots=True)
class VolcanoVictims:
    """The vote, the UIDs of the pods that may be evicted, and the plans behind it."""

    vote: Vote
    uids: frozenset[str] = frozenset()
    plans: tuple[EvictionPlan, ...] = ()


def victims(session: VolcanoSession, pod: Pod, candidates: Sequence[Task]) -> VolcanoVictims:
    """preemptable and reclaimable: the candidates to evict for the pod.

    Volcano proposes pods (preemptable: of the same queue, reclaimable: of other queues), selects those on
    which all plugins of a tier agree, and evicts them one by one, the lowest priority first, until the pod
    fits. So the answer is the cheapest plan with these pods.

    If the pod fits without evictions, Volcano evicts for a reason unknown to Stowage, such as the limits of a
    queue: then the answer is all pods that may be evicted. For a pod without GPUs, it abstains.
    """
    if (request := session.state.request_or_none(pod)) is None:
        return VolcanoVictims(Vote.REJECT)
    if not request.wants_gpu:
        return VolcanoVictims(Vote.ABSTAIN)
    uids: set[str] = set()
    plans: list[EvictionPlan] = []
    for node, proposed in _by_node(candidates).items():
        on_node = session.state.pods.on_node(node) if node in session.state.nodes else ()
        known = {bound.uid: bound for bound in on_node if bound.uid in proposed and not session.leaves(bound)}
        if session.reason(pod, request, node, later=True) is Reason.FITS:
            reasons = session.state.rules_for(pod, time.time()).why_not([*known.values()])
            uids |= {uid for uid, why in zip(known, reasons, strict=True) if not why}
        elif known:
            with session.state.fleet.without(session.leaving_on(node)):
                plans += plan_evictions(session.state, pod, [node], time.time(), only=known.keys())
    uids |= {victim.uid for plan in plans for victim in plan.victims if not session.leaves(victim)}
    return VolcanoVictims(Vote.PERMIT if uids else Vote.REJECT, frozenset(uids), tuple(plans))


def _by_node(candidates: Sequence[Task]) -> dict[str, set[str]]:
    by_node: dict[str, set[str]] = {}
    for candidate in candidates:
        if candidate.NodeName in by_node or len(by_node) < VOLCANO_NODES:
            by_node.setdefault(candidate.NodeName, set()).add(candidate.UID)
    return by_node


def allocate(session: VolcanoSession, task: Task, pod: Pod | None) -> str:
    """Hold the task's allocation; "" means success. An error undoes the allocation, and Volcano retries the
    pod in its next session. ``pod``: from the watch, None if unknown.

    An immediate allocation must be free now, as far as is known: terminating pods still hold theirs. So
    Volcano's bindings never over-commit a node, whatever happened before.
    """
    if task.Status not in (TaskStatus.ALLOCATED, TaskStatus.PIPELINED):
        session.keep_running(task.UID)  # a running pod whose eviction was only tried, or failed
        return ""
    if pod is None:
        return UNKNOWN_POD
    if pod.node_name:
        return "" if pod.node_name == task.NodeName else _ELSEWHERE
    try:
        request = session.state.request_of(pod)
    except RequestError as error:
        return shorten(str(error))
    if not request.wants_gpu:
        return ""
    waits = task.Status == TaskStatus.PIPELINED
    reason = session.reason(pod, request, task.NodeName, later=waits)
    if reason is not Reason.FITS:
        return reason.text
    session.hold(pod, task.NodeName, waits=waits)
    return ""


def deallocate(session: VolcanoSession, task: Task) -> None:
    """Release the task's allocation, or count the pod as leaving. Volcano ignores the answer."""
    if task.Status == TaskStatus.RELEASING:
        session.evict(task.UID)
    else:
        session.release(task.UID)
