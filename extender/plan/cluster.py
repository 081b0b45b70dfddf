"""A cluster as the source of plans: every plan starts from the same events as the service would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from extender.cluster.factory import state_of
from extender.cluster.other_resources import wants_devices
from extender.cluster.policy_refresh import plan_now
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Deleted, Event, Node, Pod, Upserted
from extender.replay.cluster_engine import ClusterEngine, as_new
from extender.replay.movable import Stays
from extender.replay.other_room import OtherRoom
from extender.replay.running_pods import RunningPods
from extender.replay.work import Item, Staying, Work, add_staying
from extender.settings import Settings

BUDGET = "a PodDisruptionBudget allows no eviction now"
_ENDS_WITH_NODE = {Stays.PINNED, Stays.TERMINATING}
_GATED = "it has scheduling gates"
_CLAIMS = "it asks for devices of DRA, and kube-scheduler chooses them"


class ClusterSource:
    """The events of a cluster, and the settings that the service would have. ``changes`` are events after
    them: nodes that come or go. ``bare_pods``: pods without a controller may move, too."""

    def __init__(
        self,
        name: str,
        events: Sequence[Event],
        settings: Settings,
        changes: Sequence[Event] = (),
        *,
        bare_pods: bool = False,
        allow_downgrade: bool = False,
    ) -> None:
        self.name, self._settings, self.bare_pods = name, settings, bare_pods
        self._allow_downgrade = allow_downgrade
        self._events, self._changes = events, changes

    def changed(self, changes: Iterable[Event]) -> ClusterSource:
        """The same cluster after more changes."""
        changed = (*self._changes, *changes)
        return ClusterSource(
            self.name,
            self._events,
            self._settings,
            changed,
            bare_pods=self.bare_pods,
            allow_downgrade=self._allow_downgrade,
        )

    def state(self) -> State:
        """A state of its own, whose policy has not planned yet."""
        state = state_of(self._settings)
        state.binds = self._settings.bind
        state.apply(self._events)
        state.apply(self._changes)
        return state

    def fresh(self) -> Work:
        return self.work_of(self.state())

    def work_of(self, state: State) -> Work:
        """The work of a state. Raises ``BadInput`` where no node that takes pods has a GPU."""
        pods = RunningPods(state, self.name, real_moves=not self.bare_pods, without_gpu=True)
        engine, learn = ClusterEngine(state), partial(plan_now, state)
        work = Work(engine, pods.open, OtherRoom.of(state), learn, allow_downgrade=self._allow_downgrade)
        for key, why in pods.staying.items():
            row, held = state.fleet.rows[state.pods[key].node_name], state.allocations.allocation_of(key)
            add_staying(work, key, Staying(row, why, ends_with_node=why in _ENDS_WITH_NODE, held=held))
        for one in pods.movable:
            pod = state.pods[one.key]
            if state.budgets.violations([pod])[0]:
                add_staying(work, one.key, Staying(one.home, BUDGET, held=one.held))
                continue
            work.movable[one.key] = item = Item(one.key, one.request, one.rows, one.home, as_new(pod))
            work.runs(item, one.held)
        for pod in sorted(_waiting(state), key=lambda pod: (-pod.priority, pod.created, pod.key)):
            if why := why_unplanned(pod):
                work.unplanned[pod.key] = why
            else:
                work.waiting.append(Item(pod.key, request_of(pod), pods.rows_that_accept(pod), -1, pod))
        return work

    def nodes(self) -> Mapping[str, Node]:
        found: dict[str, Node] = {}
        for event in (*self._events, *self._changes):
            match event:
                case Upserted(Node() as node):
                    found[node.name] = node
                case Deleted("Node", name):
                    found.pop(name, None)
        return found


def _waiting(state: State) -> list[Pod]:
    """Pods without a node, those that ask for a GPU."""
    pods = [state.pods[key] for key in state.pods.waiting]
    return [pod for pod in pods if not pod.deleting and _asks_for_gpu(state, pod)]


def _asks_for_gpu(state: State, pod: Pod) -> bool:
    try:
        return wants_devices(state, pod, request_of(pod))
    except RequestError:
        return True


def why_unplanned(pod: Pod) -> str:
    """Why no plan can say where a waiting pod goes, "" if one can."""
    try:
        request = request_of(pod)
    except RequestError as error:
        return f"its request cannot be read: {error}"
    if pod.gates:
        return _GATED
    return _CLAIMS if pod.spec.claims or not request.wants_gpu else ""
