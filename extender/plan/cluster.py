"""A cluster as the source of plans: every plan starts from the same events as the service would.

A plan is carried out through the same events, too: a pod that is placed is evaluated like one that
kube-scheduler asks about, and then shown to the state as the watch would show it, with the annotations that
``bind`` writes where Stowage writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from extender.cluster.factory import state_of
from extender.cluster.policy_refresh import plan_now
from extender.cluster.state import State
from extender.dialects.pod_request import ASSIGNMENT_ANNOTATIONS, WRITERS, request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Deleted, Event, Node, Pod, Upserted
from extender.plan.source import Outcome, Step
from extender.plan.work import Codes, Item, Staying, Work, add_staying, free_nodes
from extender.protocol.node_names import NodeNames
from extender.replay.movable import Stays
from extender.replay.running_pods import RunningPods
from extender.settings import Settings
from extender.verbs.assignment import annotations_for
from extender.verbs.evaluate import codes_for, evaluate
from extender.verbs.eviction.node_pods import takes_another_pod
from packing.fleet.stranded import Beside, fragmentation, on_offer
from packing.model.reasons import Reason

BUDGET = "a PodDisruptionBudget allows no eviction now"
_ENDS_WITH_NODE = {Stays.PINNED, Stays.TERMINATING}
_GATED = "it has scheduling gates"
_CLAIMS = "it has ResourceClaims, and kube-scheduler chooses their devices"


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
    ) -> None:
        self.name, self._settings, self.bare_pods = name, settings, bare_pods
        self._events, self._changes = events, changes

    def changed(self, changes: Iterable[Event]) -> ClusterSource:
        """The same cluster after more changes."""
        changed = (*self._changes, *changes)
        return ClusterSource(self.name, self._events, self._settings, changed, bare_pods=self.bare_pods)

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
        work = Work(
            state.fleet,
            state.policy,
            pods.open,
            _pods_left(state),
            partial(_codes, state),
            partial(plan_now, state),
        )
        for key, why in pods.staying.items():
            row, held = state.fleet.rows[state.pods[key].node_name], state.allocations.allocation_of(key)
            add_staying(work, key, Staying(row, why, ends_with_node=why in _ENDS_WITH_NODE, held=held))
        for one in pods.movable:
            pod = state.pods[one.key]
            if state.budgets.violations([pod])[0]:
                add_staying(work, one.key, Staying(one.home, BUDGET, held=one.held))
                continue
            work.movable[one.key] = item = Item(one.key, one.request, one.rows, one.home, pod)
            work.runs(item, one.held)
        for pod in sorted(_waiting(state), key=lambda pod: (-pod.priority, pod.created, pod.key)):
            if why := why_unplanned(pod):
                work.unplanned[pod.key] = why
            else:
                work.waiting.append(Item(pod.key, request_of(pod), pods.allowed_rows(pod), -1, pod))
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

    def carry_out(self, steps: Sequence[Step]) -> Outcome:
        state = self.state()
        plan_now(state)
        return _Execution(state).run(steps)


def _waiting(state: State) -> list[Pod]:
    """Pods without a node, those that ask for a GPU."""
    pods = [state.pods[key] for key in state.pods.waiting]
    return [pod for pod in pods if not pod.deleting and _asks_for_gpu(pod)]


def _asks_for_gpu(pod: Pod) -> bool:
    try:
        return request_of(pod).wants_gpu or bool(pod.spec.claims)
    except RequestError:
        return True


def why_unplanned(pod: Pod) -> str:
    """Why no plan can say where a waiting pod goes, "" if one can."""
    try:
        request_of(pod)
    except RequestError as error:
        return f"its request cannot be read: {error}"
    if pod.gates:
        return _GATED
    return _CLAIMS if pod.spec.claims else ""


def _codes(state: State, item: Item) -> Codes:
    assert item.pod is not None  # of a cluster
    rows = np.arange(state.fleet.arrays.capacity)
    return codes_for(state, state.fleet, item.pod, item.request, rows)


def _pods_left(state: State) -> npt.NDArray[np.int64]:
    """(N,) how many more pods each node takes, by its allocatable ``pods``."""
    left = np.full(state.fleet.arrays.capacity, 1 << 30, np.int64)
    for node in state.nodes.values():
        most = node.allocatable.get("pods", "")
        if most.isdecimal():
            left[state.fleet.rows[node.name]] = int(most[:9]) - len(state.allocations.pods_on(node.name))
    return left


class _Execution:
    """A state on which the steps of a plan are carried out."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._gone: dict[str, Pod] = {}  # evicted, and not placed yet
        self._problems: list[str] = []
        self._placed: dict[str, str] = {}
        self._removed: list[str] = []
        self._overcommitted = set(state.overcommitted)

    def run(self, steps: Sequence[Step]) -> Outcome:
        for step in steps:
            match step.what:
                case "cordon":
                    self._cordon(step.node)
                case "evict":
                    self._evict(step.pod)
                case "place":
                    self._place(step.pod, step.node)
                case "remove":
                    self._remove(step.node)
        self._audit()
        fleet = self._state.fleet
        closed = [fleet.rows[node.name] for node in self._state.nodes.values() if node.unschedulable]
        offered = on_offer(fleet, closed)
        figures, free = fragmentation(fleet, offered, Beside())[0], free_nodes(fleet, offered)
        return Outcome(self._placed, tuple(self._problems), tuple(self._removed), figures, free)

    def _cordon(self, name: str) -> None:
        node = self._state.nodes[name]
        self._state.apply([Upserted(replace(node, unschedulable=True))])

    def _evict(self, key: str) -> None:
        pod = self._state.pods[key]
        self._state.apply([Deleted("Pod", key)])
        self._gone[key] = as_new(pod)

    def _place(self, key: str, node: str) -> None:
        pod = self._gone.get(key) or self._state.pods[key]
        names = [node] if node else [one.name for one in self._state.nodes.values()]
        names = self._accepting(pod, names)
        request = request_of(pod)
        evaluation = evaluate(self._state, pod, request, NodeNames.of(names))
        fitting = np.flatnonzero(evaluation.codes == Reason.FITS)
        if not fitting.size:
            self._problems.append(f"{key} finds no place{' on ' + node if node else ''}")
            return
        best = int(fitting[np.argmin(evaluation.keys[fitting])])
        try:
            annotations = self._annotations(pod, names[best])
        except RequestError as error:
            self._problems.append(f"{key} cannot be assigned its GPUs on {names[best]}: {error}")
            return
        bound = replace(pod, node_name=names[best], annotations=annotations, phase="Running")
        self._state.apply([Upserted(bound)])
        self._gone.pop(key, None)
        self._placed[key] = names[best]

    def _accepting(self, pod: Pod, names: Sequence[str]) -> list[str]:
        """The nodes that kube-scheduler's own filters accept."""
        node_filter, nodes = NodeFilter(pod), self._state.nodes
        return [
            name
            for name in names
            if not nodes[name].unschedulable
            and not node_filter.rejection(nodes[name])
            and takes_another_pod(self._state, name)
        ]

    def _annotations(self, pod: Pod, node: str) -> Mapping[str, str]:
        """The pod's annotations with those that say which GPUs it has, where Stowage writes them."""
        fleet, request = self._state.fleet, request_of(pod)
        row = fleet.rows[node]
        spec = fleet.specs[row]
        gpus = self._state.policy.choose(fleet, request, row)
        if spec is None or not gpus or spec.sharing_resource not in WRITERS:
            return pod.annotations
        assignment, _ = annotations_for(fleet, row, pod, request, gpus)
        return {**pod.annotations, **assignment}

    def _remove(self, name: str) -> None:
        """Remove a node. Pods that are still there and belong to another controller are a problem."""
        left = [pod for pod in self._state.pods.on_node(name) if not _belongs_to_node(pod)]
        for pod in left:
            self._problems.append(f"{pod.key} is still on {name}")
        if not left:
            self._state.apply([Deleted("Node", name)])
            self._removed.append(name)

    def _audit(self) -> None:
        """No pod is lost, and no GPU is handed out twice."""
        self._problems += [f"{key} was evicted and has no node" for key in self._gone]
        worse = sorted(self._state.overcommitted - self._overcommitted)
        self._problems += [f"{name} is over-committed" for name in worse]


def _belongs_to_node(pod: Pod) -> bool:
    return pod.scheduling_constraints.pinned_to_node or pod.deleting


def as_new(pod: Pod) -> Pod:
    """The pod as its controller creates it again: without a node, devices, and assignments."""
    kept = {name: text for name, text in pod.annotations.items() if name not in ASSIGNMENT_ANNOTATIONS}
    return replace(
        pod, node_name="", phase="Pending", nominated_node="", started=0.0, devices=(), annotations=kept
    )
