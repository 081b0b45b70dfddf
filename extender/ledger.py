"""The books: which pod holds what on which node, and which pods are promised a node.

Holds are kept by node *name*, so that a pod that is seen before its node, or a node that vanishes and comes
back, ends in the same books. The ledger is the only writer of the fleet.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from packing.fleet import Allocation, Fleet, NodeShape
from packing.request import Request


@dataclass(frozen=True, slots=True)
class Hold:
    """What a pod asked for, and the node it has (or, nominated, is promised)."""

    node: str
    request: Request
    gpus: tuple[int, ...] = ()
    priority: int = 0


class Ledger:
    """Holds by pod key, and the fleet that they are taken from."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._holds: dict[str, Hold] = {}
        self._taken: dict[str, Allocation] = {}
        self._on_node: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._nominated: dict[str, Hold] = {}

    def put_node(self, shape: NodeShape) -> None:
        """Add or replace a node; what its pods hold is taken again."""
        if shape.name in self._fleet.rows:
            self._forget_taken(shape.name)
        self._fleet.put(shape)
        for key in self._on_node.get(shape.name, ()):
            self._take(key)

    def remove_node(self, name: str) -> None:
        """Remove a node. Its pods are remembered until they go, too."""
        if name in self._fleet.rows:
            self._forget_taken(name)
            self._fleet.remove(name)

    def hold(self, key: str, hold: Hold) -> None:
        """The pod runs on (or is bound to) a node."""
        if self._holds.get(key) == hold:
            return
        self.release(key)
        self._holds[key] = hold
        self._on_node[hold.node][key] = None
        if hold.node in self._fleet.rows:
            self._take(key)

    def nominate(self, key: str, hold: Hold) -> None:
        """A waiting pod is promised a node: it counts there against equal and lower priority."""
        self.release(key)
        self._nominated[key] = hold

    def release(self, key: str) -> None:
        """The pod holds nothing and is promised nothing any more."""
        self._nominated.pop(key, None)
        hold = self._holds.pop(key, None)
        if hold is None:
            return
        on_node = self._on_node[hold.node]
        del on_node[key]
        if not on_node:
            del self._on_node[hold.node]
        if (taken := self._taken.pop(key, None)) is not None:
            self._fleet.give_back(taken)

    def taken(self, key: str) -> Allocation | None:
        """What the pod has in the fleet; None for a pod without a known node."""
        return self._taken.get(key)

    def hold_of(self, key: str) -> Hold | None:
        """The pod's hold, nominations left out."""
        return self._holds.get(key)

    def holders(self, node: str) -> list[str]:
        """Keys of the pods that hold something on a node, in the order they came."""
        return list(self._on_node.get(node, ()))

    def promised(self, key: str, priority: int) -> list[Allocation]:
        """What pods of at least this priority are promised, those of ``key`` left out."""
        return [
            self._allocation(hold)
            for other, hold in self._nominated.items()
            if other != key and hold.priority >= priority and hold.node in self._fleet.rows
        ]

    def _allocation(self, hold: Hold) -> Allocation:
        return self._fleet.allocation(self._fleet.rows[hold.node], hold.request, hold.gpus)

    def _take(self, key: str) -> None:
        allocation = self._taken[key] = self._allocation(self._holds[key])
        self._fleet.take(allocation)

    def _forget_taken(self, node: str) -> None:
        for key in self._on_node.get(node, ()):
            self._taken.pop(key, None)
