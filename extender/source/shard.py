"""The part of a cluster that one of several Stowage instances serves: the nodes of a label selector, and
their pods.

The API server selects nodes by labels, but not pods by the labels of their nodes. So every instance receives
the events of all pods, and this module drops those of other shards before they are stored. It passes:

- the nodes that the selector matches, and the pods of any scheduler that are bound or nominated to them;
- the pods of the shard's own schedulers on any node, to count gangs and the usage of queues correctly.

A node that joins later (a new label, a new machine) may have pods that were dropped, and the scheduler of its
former shard may be binding more. So events of its pods pass immediately, but the node is held back for
``SETTLES`` seconds; then its pods are read from the API server, and both are delivered. That list lacks pods
that are only nominated to the node; they are few, so all of them are remembered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.source.errors import BindError
from extender.source.interface import Apply

SETTLES = 10.0
"""Seconds from a node's arrival until its pods are read. A binding that the former scheduler has begun takes
milliseconds, and that scheduler's watch shows the new label as soon as ours."""
_RETRY = 2.0  # seconds, if the API server does not answer

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Joining:
    """A node that is held back until ``due`` (monotonic seconds). ``gone``: keys of pods removed since."""

    node: Node
    due: float
    gone: set[str] = field(default_factory=set)


class Shard:
    """Filters the events of a cluster. ``pods_on`` reads the pods of a node, and raises ``BindError``.

    Several threads may call it: events are applied in the order in which they passed.
    """

    def __init__(
        self,
        schedulers: Collection[str],
        pods_on: Callable[[str], Sequence[Pod]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedulers, self._pods_on, self._now = frozenset(schedulers), pods_on, now
        self._lock = threading.Lock()
        self._nodes: set[str] = set()
        self._joining: dict[str, _Joining] = {}
        self._node_of: dict[str, str] = {}  # of each pod that has passed; "" for pods that pass on any node
        self._nominated: dict[str, Pod] = {}  # to any node, and not bound
        self.nodes_listed = threading.Event()
        self._waking = threading.Event()
        self._stopping = False

    def filtered(self, apply: Apply) -> Apply:
        """``apply``, limited to events that pass."""

        def apply_some(events: Sequence[Event]) -> None:
            with self._lock:
                if passed := self.select(events):
                    apply(passed)

        return apply_some

    def select(self, events: Sequence[Event]) -> list[Event]:
        """The events that pass. For a single thread; nodes must be listed before pods."""
        return [passed for event in events for passed in self._passed(event)]

    def joining(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._joining)

    def run(self, apply: Apply) -> None:
        """Let in nodes that have joined, until ``stop``."""
        while not self._stopping:
            with self._lock:
                due = [name for name, held_back in self._joining.items() if held_back.due <= self._now()]
            for name in due:
                self.let_in(name, apply)
            with self._lock:
                next_due = min((held_back.due for held_back in self._joining.values()), default=None)
            self._waking.wait(None if next_due is None else max(0.0, next_due - self._now()))
            self._waking.clear()

    def stop(self) -> None:
        """End ``run``, and waiting for ``nodes_listed``."""
        self._stopping = True
        self.nodes_listed.set()
        self._waking.set()

    def let_in(self, name: str, apply: Apply) -> None:
        """Deliver a node that was held back, and its pods; later if these cannot be read."""
        with self._lock:
            joining = self._joining.get(name)
        if joining is None:
            return
        try:
            pods = self._pods_on(name)
        except BindError as error:
            _log.warning("node %s stays out of the shard: %s", name, error)
            joining.due = self._now() + _RETRY
            return
        with self._lock:
            if self._joining.get(name) is joining and not self._stopping:  # else it has left the shard
                del self._joining[name]
                self._nodes.add(name)
                apply([*self._missing_pods(joining, pods), Upserted(joining.node)])

    def _due(self) -> list[str]:
        with self._lock:
            return [name for name, held_back in self._joining.items() if held_back.due <= self._now()]

    def _missing_pods(self, joining: _Joining, pods: Iterable[Pod]) -> list[Event]:
        """Pods of a node that the watch has not shown; it may be ahead of this list of bound pods."""
        name = joining.node.name
        nominated = [pod for pod in self._nominated.values() if pod.nominated_node == name]
        found = chain(nominated, pods)  # a pod that is in both is bound by now
        new = [pod for pod in found if pod.key not in joining.gone and pod.key not in self._node_of]
        _log.info("node %s joins the shard with %d pods that were dropped", name, len(new))
        return [event for pod in new for event in self._pod_passed(pod)]

    def _passed(self, event: Event) -> Iterable[Event]:
        match event:
            case Upserted(Pod() as pod):
                return self._pod_passed(pod)
            case Deleted("Pod", key):
                self._nominated.pop(key, None)
                for held_back in self._joining.values():
                    held_back.gone.add(key)
                return self._drop([key])
            case Listed("Pod", keys, began=began):
                self._nominated = {key: pod for key, pod in self._nominated.items() if key in keys}
                self._node_of = {key: node for key, node in self._node_of.items() if key in keys}
                return [Listed("Pod", frozenset(self._node_of), began=began)]
            case Upserted(Node() as node):
                return self._node_passed(node, event)
            case Deleted("Node", name):
                return self._leave(name)
            case Listed("Node", keys):
                gone = (self._nodes | self._joining.keys()) - keys
                self.nodes_listed.set()
                return [*chain.from_iterable(map(self._leave, sorted(gone))), event]
        return (event,)

    def _pod_passed(self, pod: Pod) -> list[Event]:
        self._nominated.pop(pod.key, None)
        if pod.nominated_node and not pod.node_name:
            self._nominated[pod.key] = pod
        own = pod.scheduler_name in self._schedulers
        place = pod.node_name or pod.nominated_node
        if not (own or place in self._nodes or place in self._joining):
            return list(self._drop([pod.key]))
        self._node_of[pod.key] = "" if own else place
        return [Upserted(pod)]

    def _drop(self, keys: Iterable[str]) -> Iterator[Event]:
        for key in keys:
            if self._node_of.pop(key, None) is not None:
                yield Deleted("Pod", key)

    def _node_passed(self, node: Node, event: Event) -> list[Event]:
        if not self.nodes_listed.is_set():
            self._nodes.add(node.name)
        if node.name in self._nodes:
            return [event]
        if (known := self._joining.get(node.name)) is not None:
            known.node = node
        else:
            self._joining[node.name] = _Joining(node, self._now() + SETTLES)
            self._waking.set()
        return []

    def _leave(self, name: str) -> list[Event]:
        """Remove a deleted or relabeled node. Pods of other schedulers on it are no longer known."""
        self._joining.pop(name, None)
        left = [Deleted("Node", name)] if name in self._nodes else []
        self._nodes.discard(name)
        theirs = sorted(key for key, node in self._node_of.items() if node == name)
        return [*left, *self._drop(theirs)]
