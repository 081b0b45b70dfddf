"""bind: assigns GPUs to a pod at the last moment, and binds it to the node, if binding is enabled.

1. If another replica may have bound pods to the node, list the node's pods first (``Takeover``).
2. Choose the GPUs, and assume the pod: its devices count as allocated before the Binding is sent, so that two
   bindings in flight never get the same GPU.
3. Send the Binding with annotations that name the GPUs. The API server writes them and the node's name into
   the pod of that UID atomically.
4. Keep the pod assumed until the outcome is known (``extender/cluster/reservations.py``).

If GPUs are only counted, kubelet chooses the device, and no annotation is written.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakValueDictionary

from extender.cluster.reservations import AssumedPod
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.protocol.messages import ExtenderBindingArgs
from extender.settings import Settings
from extender.source.errors import BindConflict, BindError, Unreachable
from extender.source.interface import Source
from extender.untrusted.limits import shorten
from extender.verbs.assignment import annotations_for, renaming_nodes
from extender.verbs.evaluate import form_on, reason_on
from packing.fleet.permitted import permitted_on
from packing.model.node_spec import resolve_on
from packing.model.reasons import Reason

LONGEST_WAIT = 1.0
"""Seconds that a bind may wait for its turn and a busy device plugin, and half of it for a list of the node's
pods. Half of the httpTimeout of scheduler-config/."""
_POLL = 0.02
"""Seconds between checks of whether the device plugin is still busy."""
_IDLE = 1.0
"""Seconds without calls of bind after which another replica may have been called. Losing and regaining the
lead takes longer: a kube-scheduler that loses it exits, and is restarted."""
_IN_FLIGHT = 5.0
"""Seconds after such a pause during which bindings of the previous replica may still happen. A binding takes
at most 3, including its waits (``Timeouts.bind``)."""
_OFF = "binding is off in Stowage (setting bind): remove bindVerb from the scheduler's configuration"
_NOT_LISTED = (
    "the API server did not list the node's pods in time, and another replica may have bound some there"
)
_CHECKS = 5.0
"""Seconds between checks of assumed pods that are overdue."""
_QUEUED = "other pods are being bound to the node"


class BindingRefused(Exception):
    """The pod is not bound; the text is shown in its event."""


class Busy(BindingRefused):
    """The device plugin is busy: the pod may be bound in a moment."""


class Takeover:
    """Tracks the nodes to list before a binding, because another replica may have bound pods there that the
    watch has not shown yet.

    Each replica is called by the kube-scheduler of its own pod, and only by a leading one. So a replica that
    is called after a pause may have taken over. It then lists each node before the next binding there, and
    before every binding while bindings of the previous replica may still happen. Times are seconds of a
    monotonic clock.
    """

    def __init__(self) -> None:
        self._began = self._asked = -math.inf
        self._listed: dict[str, float] = {}

    def asked(self, now: float) -> None:
        """Note that kube-scheduler requests a binding."""
        if now - self._asked > _IDLE:
            self._began = now
            self._listed.clear()
        self._asked = now

    def needs_relist(self, node: str) -> bool:
        """Whether other replicas may have bound pods to this node since it was listed."""
        return self._listed.get(node, -math.inf) < self._began + _IN_FLIGHT

    def relisted(self, node: str, now: float) -> None:
        """Note that the node's pods were listed by a request that began at ``now``."""
        self._listed[node] = now


class Binder:
    """Binds pods, those of one node sequentially, so that each sees the previous one's allocation."""

    def __init__(
        self,
        state: State,
        source: Source,
        settings: Settings,
    ) -> None:
        self._state, self._source, self._settings = state, source, settings
        self._node_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._takeover = Takeover()

    async def bind(self, pod: Pod | None, args: ExtenderBindingArgs) -> str:
        """Bind the pod; "" means success, otherwise the reason. Binding again to the same node succeeds."""
        asked_at = time.monotonic()
        self._takeover.asked(asked_at)
        try:
            if not self._settings.bind:
                raise BindingRefused(_OFF)
            if pod is None or pod.uid != args.uid:
                raise BindingRefused("pod is unknown, or was recreated under its name")
            if not await self._source.caught_up():
                raise BindingRefused(
                    "Stowage lost the connection to the API server, and has not caught up yet"
                )
            within = asked_at + LONGEST_WAIT - time.monotonic()
            assumed = await self._assume_in_turn(pod, args.node, within)
            if not assumed:
                return ""
            sending = asyncio.create_task(self._send_binding(assumed))
            try:
                return await asyncio.shield(sending)
            except asyncio.CancelledError:  # a request that was sent ends, even if the caller is gone
                await sending
                raise
        except (BindingRefused, RequestError) as error:
            return shorten(str(error))

    async def _assume_in_turn(self, pod: Pod, node: str, within: float) -> AssumedPod | None:
        """Assume the pod on the node; None if it is already bound there. Raises BindingRefused, also after
        ``within`` seconds."""
        lock = self._node_locks.setdefault(node, asyncio.Lock())
        refusal = BindingRefused(_QUEUED)
        try:
            async with asyncio.timeout(within), lock:
                while True:
                    try:
                        await self._list_after_takeover(pod, node)
                        if (assignment := self._assignment(pod, node)) is None:
                            return None
                        known = self._state.pods.by_uid(pod.uid) or pod
                        return self._state.assume(known, node, assignment, time.monotonic())
                    except Busy as busy:
                        refusal = busy
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise refusal from None

    async def _list_after_takeover(self, pod: Pod, node: str) -> None:
        """Load pods that others may have bound to the node, if the pod is to be assigned a GPU of it."""
        if not (self._takeover.needs_relist(node) and self._assignment(pod, node)):
            return
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(LONGEST_WAIT / 2):
                bound = await self._source.pods_on(node)
        except (Unreachable, TimeoutError):
            raise BindingRefused(_NOT_LISTED) from None
        for bound_pod in bound:
            self._state.observe_bound(bound_pod, time.monotonic())
        self._takeover.relisted(node, asked_at)

    def _assignment(self, pod: Pod, node: str) -> Mapping[str, str] | None:
        """The annotations that assign the pod GPUs of this node; None if it is already bound there."""
        state = self._state
        known = state.pods.by_uid(pod.uid) or pod
        confirmed = (
            assumed.pod.node_name for assumed in state.assumed_pods.of_pod(pod.uid) if assumed.confirmed
        )
        if bound_to := known.node_name or next(confirmed, ""):
            if bound_to != node:
                raise BindingRefused("pod is bound to another node")
            return None
        # An unanswered binding to this node may still happen: send the same again.
        before = state.assumed_pods.on_node(pod.uid, node)
        return before.assignment if before else assign(state, known, node)

    async def _send_binding(self, assumed: AssumedPod) -> str:
        """Send the Binding; "" means success. Reports the outcome to the state."""
        succeeded, outcome_unknown = False, True  # until there is an answer, also if this is canceled
        try:
            waiting = replace(assumed.pod, node_name="")
            await self._source.bind(waiting, assumed.pod.node_name, assumed.assignment)
            succeeded = True
            return ""
        except BindError as error:
            in_doubt = isinstance(error, BindConflict | Unreachable)
            bound = in_doubt and await self._is_bound(assumed.pod)
            outcome_unknown = isinstance(error, Unreachable)
            return "" if bound else shorten(str(error))
        finally:
            now = time.monotonic()
            if succeeded:
                self._state.binding_succeeded(assumed.pod, now)
            else:
                self._state.binding_failed(assumed.pod, now, outcome_unknown=outcome_unknown)

    async def _is_bound(self, pod: Pod) -> bool:
        """Whether the pod is bound to this node after all, by the API server, whose answer is applied."""
        try:
            truth = await self._source.look_up(pod)
        except Unreachable:
            return False
        self._state.reconcile(pod, truth, time.monotonic())
        return truth is not None and truth.uid == pod.uid and truth.node_name == pod.node_name


def assign(state: State, pod: Pod, node: str) -> dict[str, str]:
    """The annotations that assign the pod its GPUs of a node; none if the node does not share GPUs.

    Raises BindingRefused if the pod does not fit or no component can assign its GPUs, RequestError if its
    request is invalid.
    """
    request = state.request_of(pod)
    if not request.wants_gpu:
        if renaming_nodes(state, pod, [node]):
            raise BindingRefused(Reason.UNREADABLE.text)
        return {}  # kube-scheduler checks whether it fits
    reason = reason_on(state, pod, request, node)
    if reason not in (Reason.FITS, Reason.NO_ASSIGNER):  # ``annotations_for`` has more details of the latter
        raise (Busy if reason is Reason.PLUGIN_BUSY else BindingRefused)(reason.text)
    row = state.fleet.rows[node]
    spec = state.fleet.specs[row]
    assert spec is not None  # the node is known
    resolved = resolve_on(spec, request)
    if not spec.sharing_resource or resolved.shares is None:
        return {}
    with state.fleet_view_for(pod) as fleet:
        gpus = state.policy.choose(fleet, form_on(fleet, row, resolved), row)
        assignment, read_back = annotations_for(fleet, row, pod, request, gpus)
        permitted = permitted_on(fleet, request, row)
        if any(fleet.usage[row].slices(gpu) & mask for gpu, mask in read_back.slices) or not all(
            gpu in permitted
            and fleet.arrays.compute[gpu, row] >= milli
            and fleet.arrays.memory[gpu, row] >= mib
            for gpu, milli, mib in read_back.parts
        ):
            raise BindingRefused(Reason.FRAGMENTED.text)
    return assignment


async def expire_forever(state: State, source: Source) -> None:
    """Call ``expire_assumed`` every 5 s, until canceled. Also ends other expired reservations.

    The watch confirms almost every assumed pod within milliseconds. A pod remains assumed if its binding was
    never answered and did not happen, or if the watch showed its end before Stowage knew of its binding.
    """
    while True:
        await asyncio.sleep(_CHECKS)
        state.reservations.expire()
        await expire_assumed(state, source, time.monotonic())


async def expire_assumed(state: State, source: Source, now: float) -> None:
    """Look up every assumed pod that is overdue at ``now`` (monotonic seconds), and reconcile it."""
    for assumed in state.assumed_pods.overdue(now):
        try:
            current = await source.look_up(assumed.pod)
        except Unreachable:
            return  # the next call retries; the pods remain assumed
        state.reconcile(assumed.pod, current, max(now, time.monotonic()))
