"""The books: which pod holds what on which node, and which pods are promised a node.

Which GPUs a pod has of a node that divides them is settled here, when pod and node are both known, and what
contradicts is kept as a doubt. Holds are kept by node *name*, so that a pod that is seen before its node,
or a node that vanishes and comes back, ends in the same books. The ledger is the only writer of the fleet.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, replace

from extender.dialects.vocabulary import Claims
from extender.holdings import settle, settle_counts
from packing.fleet import Allocation, Fleet, NodeShape
from packing.request import Request

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hold:
    """What a pod asked for, and the node it has (or, nominated, is promised).

    ``claims`` is what its annotations say it has of GPUs that are divided, ``reported`` how many counted
    devices of each resource kubelet reports.
    """

    node: str
    request: Request
    claims: Claims | None = None
    reported: tuple[tuple[str, int], ...] = ()
    priority: int = 0


class Ledger:
    """Holds by pod key, and the fleet that they are taken from.

    ``doubts`` says, by pod key, what a pod claims against its request or its node; ``contradictions`` counts
    every one that ever came up.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.doubts: dict[str, str] = {}
        self.contradictions = 0
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
        self.doubts.pop(key, None)
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

    def promised(self, but_for: Container[str], priority: int) -> list[Hold]:
        """What pods of at least this priority are promised, those with keys in ``but_for`` left out."""
        return [
            hold
            for other, hold in self._nominated.items()
            if other not in but_for and hold.priority >= priority and hold.node in self._fleet.rows
        ]

    def promise(self, hold: Hold) -> Allocation:
        """What a pod that is promised a node, which is known, would have there."""
        row = self._fleet.rows[hold.node]
        return self._fleet.allocation(row, hold.request, self._fleet.roomiest(row, hold.request))

    def _take(self, key: str) -> None:
        hold = self._holds[key]
        row = self._fleet.rows[hold.node]
        shape = self._fleet.shapes[row]
        assert shape is not None
        request, doubt = settle_counts(shape, hold.request, hold.reported)
        settled = settle(shape, hold.request, hold.claims)
        self._doubt(key, "; ".join(filter(None, (doubt, settled.doubt))))
        allocation = self._fleet.allocation(row, request)
        if settled.parts:
            allocation = replace(allocation, shares=settled.parts, slices=settled.slices)
        self._taken[key] = allocation
        self._fleet.take(allocation)

    def _doubt(self, key: str, text: str) -> None:
        if not text:
            self.doubts.pop(key, None)
        elif self.doubts.get(key) != text:
            self.doubts[key] = text
            self.contradictions += 1
            log.warning("%s: pod %s; the larger use counts", key, text)

    def _forget_taken(self, node: str) -> None:
        for key in self._on_node.get(node, ()):
            self._taken.pop(key, None)
