"""bind: choose the GPU at the last moment, and bind the pod to the chosen node, if binding is switched on.

Which GPU of a node that divides them is written into annotations of the Binding, which the API server merges
into the pod together with the node's name and only for the pod of that UID: all or nothing. The room is taken
in the books before the API server is asked, so that two binds in flight cannot both have it, and stays taken
until it is known what became of the binding (``assumed_pods``). Where another replica may have bound
before, the node's pods are read first (``handover``). Where GPUs are merely counted the device is
kubelet's choice, and nothing is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from extender.cluster.assumed_pods import AssumedPod
from extender.cluster.state import PossiblyBound, State
from extender.dialects.pod_request import RequestError, request_of
from extender.k8s.objects import Pod
from extender.protocol.codec import BindArgs
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.source.interface import BindConflict, BindError, Source, Unreachable
from extender.untrusted.limits import shorten
from extender.verbs.assignment import written
from extender.verbs.evaluate import evaluate
from extender.verbs.handover import Takeover
from packing.model.node_spec import resolve_on
from packing.model.reasons import Reason

PATIENCE = 1.0
"""Seconds for which a bind waits for a busy device plugin, and for the API server's word on the node: half of
the httpTimeout of scheduler-config/."""
_OFF = "binding is off in Stowage (setting bind): remove bindVerb from the scheduler's configuration"
_UNREAD = "the API server does not say in time what the node holds, and another replica may have bound there"
_QUEUED = "other pods are being bound to the node"
_POLL = 0.02  # seconds between looks at whether it still is


class Refusal(Exception):
    """The pod is not bound; the text is fit for its event."""


class Busy(Refusal):
    """Not yet, but that may change in a moment."""


class Binder:
    """Binds pods. Those of one node take turns: what one takes the next one sees.

    ``possibly_bound`` says at any moment which pods may have been bound unseen.
    """

    def __init__(
        self,
        state: State,
        source: Source,
        settings: Settings,
        possibly_bound: Callable[[], PossiblyBound] = lambda: (),
    ) -> None:
        self._state, self._source, self._settings = state, source, settings
        self._possibly_bound = possibly_bound
        self._node_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._handover = Takeover()

    async def bind(self, pod: Pod | None, args: BindArgs) -> str:
        """Bind; "" is success, anything else says why not. Binding again to the same node succeeds."""
        asked_at = time.monotonic()
        self._handover.asked(asked_at)
        try:
            if not self._settings.bind:
                raise Refusal(_OFF)
            if pod is None or pod.uid != args.uid:
                raise Refusal("pod is not known, or was made anew under its name")
            if not await self._source.caught_up():
                raise Refusal("Stowage was cut off from the API server, and has not caught up yet")
            one = await self._in_turn(pod, args.node, asked_at + PATIENCE - time.monotonic())
            return await _shielded(self._ask(one)) if one else ""
        except (Refusal, RequestError) as error:
            return shorten(str(error))

    async def _in_turn(self, pod: Pod, node: str, within: float) -> AssumedPod | None:
        """The pod's room, taken in the books; None where the pod is bound to the node already."""
        turn = self._node_locks.setdefault(node, asyncio.Lock())
        late: Refusal = Refusal(_QUEUED)
        try:
            async with asyncio.timeout(within), turn:
                while True:
                    try:
                        await self._catch_up_with_others(pod, node)
                        return self._assume(pod, node)
                    except Busy as busy:
                        late = busy
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise late from None

    async def _catch_up_with_others(self, pod: Pod, node: str) -> None:
        """Take in what others may have bound to a node, where the pod is about to get some GPU of it."""
        if not (self._handover.needs_relist(node) and self._assignment(pod, node)):
            return
        read_at = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE / 2):
                bound = await self._source.pods_on(node)
        except (Unreachable, TimeoutError):
            raise Refusal(_UNREAD) from None
        for one in bound:
            self._state.observe_bound(one, read_at)
        self._handover.read(node, read_at)

    def _assume(self, pod: Pod, node: str) -> AssumedPod | None:
        if (assignment := self._assignment(pod, node)) is None:
            return None
        known = self._state.pod_by_uid(pod.uid) or pod
        return self._state.assume(known, node, assignment, time.monotonic())

    def _assignment(self, pod: Pod, node: str) -> Mapping[str, str] | None:
        """What the pod is to be told on this node; None where it is bound there already."""
        state = self._state
        known = state.pod_by_uid(pod.uid) or pod
        held = state.assumed_pods.of(pod.uid)
        bound_to = known.node_name or next((one.pod.node_name for one in held if one.confirmed), "")
        if bound_to:
            if bound_to != node:
                raise Refusal("pod is bound to another node")
            return None
        before = state.assumed_pods.on(pod.uid, node)  # asked for already, without an answer: the same again
        return before.assignment if before else assign(state, known, node, self._possibly_bound())

    async def _ask(self, one: AssumedPod) -> str:
        """Ask the API server for the binding, and leave the books as its answer says."""
        taken, outcome_unknown = False, True  # doubtful until there is an answer, also if this is cancelled
        try:
            waiting, node = replace(one.pod, node_name=""), one.pod.node_name
            await self._source.bind(waiting, node, one.assignment)
            taken = True
            return ""
        except BindError as error:
            there = isinstance(error, BindConflict | Unreachable) and await self._is_there(one.pod)
            outcome_unknown = isinstance(error, Unreachable)
            return "" if there else shorten(str(error))
        finally:
            now = time.monotonic()
            if taken:
                self._state.confirm(one.pod, now)
            else:
                self._state.refute(one.pod, now, outcome_unknown=outcome_unknown)

    async def _is_there(self, pod: Pod) -> bool:
        """Whether the API server has the pod bound to this node after all."""
        try:
            truth = await self._source.look_up(pod)
        except Unreachable:
            return False
        self._state.reconcile(pod, truth, time.monotonic())
        return truth is not None and truth.uid == pod.uid and truth.node_name == pod.node_name


async def _shielded(asking: Coroutine[Any, Any, str]) -> str:
    """What was sent is seen to its end, also where nobody waits for the answer any more."""
    task = asyncio.create_task(asking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def assign(state: State, pod: Pod, node: str, possibly_bound: PossiblyBound = ()) -> dict[str, str]:
    """The annotations that give the pod its GPUs of a node; none where the node does not divide them.

    Raises Refusal where the pod does not fit or cannot be told, RequestError where its request is wrong.
    """
    request = request_of(pod)
    if not request.wants_gpu:
        return {}  # kube-scheduler knows better than the books where there is room
    verdict = evaluate(state, pod, request, NodeNames.of([node]), possibly_bound)
    reason = Reason(int(verdict.codes[0]))
    if reason not in (Reason.FITS, Reason.NO_ASSIGNER):  # what is in the way of the latter is said below
        raise (Busy if reason is Reason.PLUGIN_BUSY else Refusal)(reason.text)
    row = int(verdict.rows[0])
    shape = state.fleet.specs[row]
    assert shape is not None  # the node is known
    meant = resolve_on(shape, request)
    if not shape.sharing_resource or meant.shares is None:
        return {}
    with state.fleet_view_for(pod, possibly_bound) as fleet:
        chosen = state.policy.choose(fleet, meant, row)
        assignment, settled = written(fleet, row, pod, request, chosen)
        if any(fleet.usage(row).slices(gpu) & mask for gpu, mask in settled.slices) or not all(
            fleet.arrays.compute[gpu, row] >= milli and fleet.arrays.memory[gpu, row] >= mib
            for gpu, milli, mib in settled.parts
        ):
            raise Refusal(Reason.FRAGMENTED.text)
    return assignment
