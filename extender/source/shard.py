"""The part of a cluster that one Stowage of several serves: the nodes of a label selector, and their pods.

The API server selects nodes by labels, but not pods by the labels of their nodes. So every Stowage receives
the events of all pods, and this drops those of other shards before anything keeps them. What passes:

- the nodes that the selector names, and the pods that are bound or nominated to them, of any scheduler;
- the pods of the shard's own schedulers, wherever they are: a gang, or what a queue uses, would be counted
  wrongly without them.

A node that joins later (a new label, a new machine) may have pods that were dropped, and the scheduler of its
former shard may be binding more. So it is held back for ``SETTLES`` seconds, then its pods are read from the
API server, and only then it is delivered. That list has no pods that are only nominated to the node; they are
few, so all of them are remembered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.source.interface import Apply, BindError

SETTLES = 10.0
"""Seconds from a node's arrival until its pods are read. A binding that the former scheduler has begun takes
milliseconds, and its watch shows the new label as quickly as ours."""
_RETRY = 2.0  # seconds, if the API server does not answer

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Joining:
    """A node that is held back until ``due`` (monotonic seconds)."""

    node: Node
    due: float


class Shard:
    """Filters the events of a cluster. ``pods_on`` reads the pods of a node, and raises ``BindError``.

    Several threads may call it: what passes is applied in the order in which it passed.
    """

    def __init__(
        self,
        schedulers: Collection[str],
        pods_on: Callable[[str], Sequence[Pod]],
        settles: float = SETTLES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedulers, self._pods_on = frozenset(schedulers), pods_on
        self._settles, self._now = settles, now
        self._lock = threading.Lock()
        self._nodes: set[str] = set()
        self._joining: dict[str, _Joining] = {}
        self._reading: dict[str, set[str]] = {}  # by node, the keys of pods that went while its pods are read
        self._node_of: dict[str, str] = {}  # of each pod that has passed; "" for one that would pass anywhere
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)
        self._nominated: dict[str, Pod] = {}  # to any node, and not bound
        self.nodes_listed = threading.Event()
        self._waking = threading.Event()
        self._stopping = False

    def filtered(self, apply: Apply) -> Apply:
        """``apply``, but only for what passes."""

        def apply_some(events: Sequence[Event]) -> None:
            with self._lock:
                if passed := self._passed(events):
                    apply(passed)

        return apply_some

    def select(self, events: Sequence[Event]) -> list[Event]:
        """What passes of a list, nodes before pods."""
        return self._passed(events)

    def joining(self) -> frozenset[str]:
        """The nodes that are held back."""
        with self._lock:
            return frozenset(self._joining)

    def run(self, apply: Apply) -> None:
        """Let nodes in that have joined, until ``stop``."""
        while not self._stopping:
            for name in self._due():
                self.let_in(name, apply)
            self._waking.wait(self._pause())
            self._waking.clear()

    def stop(self) -> None:
        """End ``run``, and waiting for ``nodes_listed``."""
        self._stopping = True
        self.nodes_listed.set()
        self._waking.set()

    def let_in(self, name: str, apply: Apply) -> None:
        """Deliver a node that was held back, with its pods, unless they cannot be read: then later."""
        with self._lock:
            if (joining := self._joining.get(name)) is None:
                return
            self._reading[name] = set()  # from here on the watch's events of its pods pass
        try:
            pods: Sequence[Pod] | None = self._pods_on(name)
        except BindError as error:
            _log.warning("node %s stays out of the shard: %s", name, error)
            pods = None
        with self._lock:
            gone = self._reading.pop(name)
            if self._joining.get(name) is not joining:
                events = self._drop_others(name)  # it has left meanwhile, and may have come back
            elif pods is None:
                joining.due, events = self._now() + _RETRY, []
            else:
                del self._joining[name]
                self._nodes.add(name)
                events = self._join(joining.node, pods, gone)
            if events and not self._stopping:
                apply(events)

    def _due(self) -> list[str]:
        with self._lock:
            return [name for name, one in self._joining.items() if one.due <= self._now()]

    def _pause(self) -> float | None:
        with self._lock:
            next_due = min((one.due for one in self._joining.values()), default=None)
        return None if next_due is None else max(0.0, next_due - self._now())

    def _join(self, node: Node, pods: Iterable[Pod], gone: set[str]) -> list[Event]:
        """A node and its pods, without those that the watch shows: it may be ahead of the list."""
        nominated = [pod for pod in self._nominated.values() if pod.nominated_node == node.name]
        found = chain(nominated, pods)  # a pod that is in both is bound by now
        new = [pod for pod in found if pod.key not in gone and pod.key not in self._node_of]
        events = [event for pod in new for event in self._pod(pod)]
        _log.info("node %s joins the shard with %d pods", node.name, len(self._on_node.get(node.name, ())))
        return [*events, Upserted(node)]

    def _passed(self, events: Iterable[Event]) -> list[Event]:
        return [passed for event in events for passed in self._one(event)]

    def _one(self, event: Event) -> Iterable[Event]:
        match event:
            case Upserted(Pod() as pod):
                self._nominated.pop(pod.key, None)
                if pod.nominated_node and not pod.node_name:
                    self._nominated[pod.key] = pod
                return self._pod(pod)
            case Deleted("Pod", key):
                return self._pod_gone(key)
            case Listed("Pod", keys, began=began):
                for key in self._node_of.keys() - keys:
                    self._forget(key)
                for key in self._nominated.keys() - keys:
                    del self._nominated[key]
                return [Listed("Pod", frozenset(self._node_of), began=began)]
            case Upserted(Node() as node):
                return self._node(node, event)
            case Deleted("Node", name):
                return self._leave(name)
            case Listed("Node", keys):
                return self._nodes_listed(keys, event)
        return (event,)

    def _pod(self, pod: Pod) -> list[Event]:
        own = pod.scheduler_name in self._schedulers
        place = pod.node_name or pod.nominated_node
        if not (own or place in self._nodes or place in self._reading):
            return list(self._drop(pod.key))
        self._forget(pod.key)
        self._node_of[pod.key] = "" if own else place
        if not own:
            self._on_node[place].add(pod.key)
        return [Upserted(pod)]

    def _pod_gone(self, key: str) -> list[Event]:
        self._nominated.pop(key, None)
        for gone in self._reading.values():
            gone.add(key)
        return list(self._drop(key))

    def _drop(self, key: str) -> Iterator[Event]:
        if key in self._node_of:
            self._forget(key)
            yield Deleted("Pod", key)

    def _forget(self, key: str) -> None:
        if node := self._node_of.pop(key, ""):
            self._on_node[node].discard(key)
            if not self._on_node[node]:
                del self._on_node[node]

    def _node(self, node: Node, event: Event) -> list[Event]:
        if node.name in self._nodes:
            return [event]
        if not self.nodes_listed.is_set():
            self._nodes.add(node.name)
            return [event]
        if (known := self._joining.get(node.name)) is not None:
            known.node = node
        else:
            self._joining[node.name] = _Joining(node, self._now() + self._settles)
            self._waking.set()
        return []

    def _leave(self, name: str) -> list[Event]:
        """The node is deleted, or has another label now. What others have there is not known any more."""
        self._joining.pop(name, None)
        known = name in self._nodes
        self._nodes.discard(name)
        return [*([Deleted("Node", name)] if known else []), *self._drop_others(name)]

    def _drop_others(self, name: str) -> list[Event]:
        """Drop the pods of other schedulers on a node."""
        return [event for key in sorted(self._on_node.get(name, ())) for event in self._drop(key)]

    def _nodes_listed(self, keys: frozenset[str], event: Event) -> list[Event]:
        gone = (self._nodes | self._joining.keys()) - keys
        events = [left for name in sorted(gone) for left in self._leave(name)]
        self.nodes_listed.set()
        return [*events, event]
