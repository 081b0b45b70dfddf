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

from extender.cluster.claim_check import Seen, settle_counts, settle_since
from extender.dialects.dialect import Claims
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.node_spec import NodeSpec
from packing.model.request import Request, Shares

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hold:
    """What a pod asked for, and the node it has (or, nominated, is promised).

    ``claims`` is what its annotations say it has of GPUs that are divided, ``reported`` how many counted
    devices of each resource kubelet reports. ``possible`` is set where the request cannot be read: the most
    that it can have been given of GPUs that are divided, by each who divides them (see ``dialects.Held``).
    """

    node: str
    request: Request
    claims: Claims | None = None
    reported: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    possible: tuple[Shares, ...] = ()
    uid: str = ""


class Allocations:
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
        self._seen: dict[str, Seen] = {}
        self._on_node: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._nominated: dict[str, Hold] = {}

    def put_node(self, shape: NodeSpec) -> None:
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

    def hold(self, key: str, hold: Hold, seen: Seen | None = None) -> None:
        """The pod runs on (or is bound to) a node. ``seen`` is what is known of it by another key.

        While it stays there, it holds no less of the GPUs than before, and no others (see ``Seen``).
        """
        before = self._holds.get(key)
        if before == hold:
            return
        if before is None or (before.uid, before.node) != (hold.uid, hold.node):
            self.release(key)
            self._seen[key] = seen or Seen()
        elif (taken := self._taken.pop(key, None)) is not None:
            self._fleet.give_back(taken)
        self._seen[key].note(hold.request, None if hold.possible else hold.claims, hold.reported)
        self._holds[key] = hold
        self._on_node[hold.node][key] = None
        if hold.node in self._fleet.rows:
            self._take(key)
        else:
            self.doubts.pop(key, None)

    def nominate(self, key: str, hold: Hold) -> None:
        """A waiting pod is promised a node: it counts there against equal and lower priority."""
        self.release(key)
        self._nominated[key] = hold

    def release(self, key: str) -> None:
        """The pod holds nothing and is promised nothing any more."""
        self._nominated.pop(key, None)
        self.doubts.pop(key, None)
        self._seen.pop(key, None)
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

    def seen(self, key: str) -> Seen | None:
        """What has been seen of a pod since it was bound."""
        return self._seen.get(key)

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
        return allocation_of(self._fleet, row, hold.request, freest_gpus(self._fleet, row, hold.request))

    def _take(self, key: str) -> None:
        hold = self._holds[key]
        row = self._fleet.rows[hold.node]
        shape = self._fleet.specs[row]
        assert shape is not None
        seen = self._seen[key]
        request, doubt = settle_counts(shape, hold.request, seen.reported)
        settled = settle_since(shape, hold.request, hold.claims, hold.possible, seen)
        self._doubt(key, "; ".join(filter(None, (doubt, settled.doubt))))
        allocation = allocation_of(self._fleet, row, request)
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
