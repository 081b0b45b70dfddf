"""What Volcano has decided in memory and not yet done: a session, in which it tries places for pods.

Volcano decides about many pods before it binds the first one. It reports each place that it takes (allocate)
and gives up (deallocate), also those of trials, and it reports evictions and the end of trials by the same
calls (``pkg/scheduler/framework/statement.go`` at ed72c7c8). Stowage counts

- a pod that Volcano is about to bind as an assumed pod, until the watch shows it bound;
- a pod that waits for others to leave (pipelined) as nominated to its node;
- an evicted pod as one that leaves: its room counts for pods that wait for it, and for no other.

Nothing here outlives a Volcano that dies: assumed pods expire, nominations end with the session, and evicted
pods count as such for a minute at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from extender.cluster.reservations import TIME_TO_LIVE, Reserved
from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.verbs.evaluate import reason_on
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request

_PRUNED_FROM = 256  # holds or evictions


@dataclass(slots=True)
class Hold:
    """A place that Volcano has taken for a pod. ``waits``: for others to leave. ``of_earlier``: in a session
    that is over; Volcano may have given it up without a call."""

    pod: Pod
    node: str
    waits: bool
    of_earlier: bool = False


class Session:
    """The holds and evictions of Volcano in one cluster state. ``clock`` in monotonic seconds."""

    def __init__(
        self,
        state: State,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state, self.clock = state, clock
        self._holds: dict[str, Hold] = {}
        self._evicted: dict[str, float] = {}
        self._prune_at = _PRUNED_FROM

    def __len__(self) -> int:
        """Pods that are held."""
        return len(self._holds)

    def hold(self, pod: Pod, node: str, *, waits: bool) -> None:
        """Volcano has taken a place for a pod that the watch shows without a node."""
        self.release(pod.uid)
        if waits:
            self.state.reservations.reserve(pod.uid, Reserved.NOMINATING, node)
        else:
            # Volcano says nothing of the outcome. The watch does, or the pod is looked up when it is overdue.
            now = self.clock()
            assumed = self.state.assume(pod, node, {}, now)
            self.state.binding_failed(assumed.pod, now, outcome_unknown=True)
        self._holds[pod.uid] = Hold(pod, node, waits)
        if len(self._holds) >= self._prune_at:
            self._prune()

    def release(self, uid: str) -> None:
        """Volcano has given the place of this pod up."""
        hold = self._holds.pop(uid, None)
        if hold is None:
            return
        if hold.waits:
            self.state.reservations.release(uid, Reserved.NOMINATING)
        elif (known := self.state.pods.by_uid(uid)) is None or not known.node_name:
            self.state.reconcile(hold.pod, None, self.clock())

    def evict(self, uid: str) -> None:
        """Volcano will evict this pod, or tries what is then possible."""
        if self.state.pods.is_bound(uid):
            self._evicted[uid] = self.clock() + TIME_TO_LIVE
        if len(self._evicted) >= self._prune_at:
            self._prune()

    def keep(self, uid: str) -> None:
        """It will not."""
        self._evicted.pop(uid, None)

    def end(self) -> None:
        """A session is over, or the next one begins, which knows nothing of pods that waited for room.

        Places of other pods stay: Volcano is binding them. Where it is not, ``forget_given_up`` finds out.
        """
        for uid in [uid for uid, hold in self._holds.items() if hold.waits]:
            self.release(uid)
        self._prune()
        for hold in self._holds.values():
            hold.of_earlier = True

    def forget_given_up(self, asked: str, node: str, counted: bytes) -> None:
        """Release what an earlier session held on a node and Volcano does not count there any more.

        ``counted``: the node as Volcano sends it with its tasks. ``asked``: the UID of the pod that Volcano
        asks about now, which therefore has no place.
        """
        for uid, hold in list(self._holds.items()):
            if hold.of_earlier and (
                uid == asked or (hold.node == node and b'"%b"' % uid.encode() not in counted)
            ):
                self.release(uid)

    def reason(self, pod: Pod, request: Request, node: str, *, later: bool) -> Reason:
        """Whether the pod fits on the node: now, or ``later``, once all that leave have left."""
        now = reason_on(self.state, pod, request, node)
        if not later or not now.eviction_helps or not (leaving := self.leaving_on(node)):
            return now
        with self.state.fleet.without(leaving):
            return reason_on(self.state, pod, request, node, idle=True)

    def leaving_on(self, node: str) -> list[Allocation]:
        """What pods of a node hold that terminate already, or that Volcano evicts."""
        row = self.state.fleet.rows.get(node)
        if row is None:
            return []
        leaving = [pod for pod in self.state.pods.on_node(node) if self.leaves(pod)]
        return [held for pod in leaving for held in self.state.pods.allocations_of(pod) if held.row == row]

    def leaves(self, pod: Pod) -> bool:
        """Whether the pod terminates already, or Volcano evicts it."""
        return pod.deleting or self._evicted.get(pod.uid, 0.0) > self.clock()

    def _prune(self) -> None:
        """Forget holds that the watch has confirmed or that expired, and evictions that are over."""
        pods, assumed = self.state.pods, self.state.assumed_pods
        self._holds = {
            uid: hold
            for uid, hold in self._holds.items()
            if (hold.waits and pods.by_uid(uid)) or assumed.on_node(uid, hold.node)
        }
        now = self.clock()
        self._evicted = {uid: end for uid, end in self._evicted.items() if end > now and pods.by_uid(uid)}
        self._prune_at = max(_PRUNED_FROM, 2 * len(self._holds), 2 * len(self._evicted))
