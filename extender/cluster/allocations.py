"""Allocations: the resources that each bound pod holds on its node.

The GPUs of a pod on a node that shares GPUs are determined here, once both pod and node are known;
contradictions are recorded as problems. Pods are stored by the *name* of their node: a pod may be observed
before its node, and a node may be removed and return. Nothing else changes the free resources of the fleet.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from extender.cluster.claim_check import ClaimHistory, reconcile_counts, reconcile_since_bound
from extender.dialects.dialect import Claims
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.node_spec import NodeSpec
from packing.model.request import Request, Shares

log = logging.getLogger(__name__)


class Problems(dict[str, str]):
    """Unreadable or contradictory data, by the name of a node or the key of a pod or another object."""

    def report(self, subject: str, problem: str, consequence: str = "") -> bool:
        """Record a problem; "" removes it. A new one is logged. Returns whether it is new."""
        if not problem:
            self.pop(subject, None)
        elif self.get(subject) != problem:
            log.warning("%s: %s%s", subject, problem, consequence)
            self[subject] = problem
            return True
        return False


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a node: its request, and the node that it is bound or nominated to.

    ``claims``: its shared GPUs according to its annotations. ``reported``: the number of counted devices of
    each resource that kubelet reports. ``possible`` is set if the request is unreadable: the largest share
    that each sharing system can have allocated to it (see ``BoundRequest``).
    """

    node: str
    request: Request
    claims: Claims | None = None
    reported: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    possible: tuple[Shares, ...] = ()
    uid: str = ""


class Allocations:
    """The placement of each pod by its key, and the fleet whose resources the pods hold.

    ``problems``: by the same keys, contradictions between a pod's claims and its request or node;
    ``contradictions`` counts all of them since the start. ``changes`` counts additions, removals and changes.
    ``deferred``: nothing is allocated in the fleet before ``settle``, so that the first lists allocate all
    pods of a node in one step.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.problems = Problems()
        self.contradictions = self.changes = 0
        self.deferred = False
        self._placements: dict[str, Placement] = {}
        self._allocated: dict[str, Allocation] = {}
        self._histories: dict[str, ClaimHistory] = {}
        self._on_node: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def put_node(self, spec: NodeSpec) -> None:
        """Add or replace a node, and reallocate the resources of its pods. Raises TooMany, as
        ``Fleet.put``."""
        self.changes += 1
        if spec.name in self._fleet.rows:
            self._forget_allocated(spec.name)
        self._fleet.put(spec)
        if not self.deferred:
            self._allocate(spec.name, self._on_node.get(spec.name, ()))

    def settle(self) -> bool:
        """Make the ``deferred`` allocations. Returns whether they were deferred."""
        if not self.deferred:
            return False
        self.deferred = False
        self.changes += 1
        for node, keys in self._on_node.items():
            if node not in self._fleet.rows:
                continue
            try:
                self._allocate(node, keys)
            except Exception:  # caused by one pod; the others must still count
                log.exception("%s: allocating its pods together failed; they are allocated one by one", node)
                self._allocate_each(node, keys)
        return True

    def remove_node(self, name: str) -> None:
        """Remove a node. Its pods remain known until they are removed too; without it, they have no
        contradictions."""
        self.changes += 1
        for key in self._on_node.get(name, ()):
            self.problems.pop(key, None)
        if name in self._fleet.rows:
            self._forget_allocated(name)
            self._fleet.remove(name)

    def allocate(self, key: str, placement: Placement, history: ClaimHistory | None = None) -> None:
        """Allocate the resources of a pod that is bound to a node. ``history``: its claims observed under
        another key.

        While it is bound there, it keeps its GPUs, with shares that do not shrink (see ``ClaimHistory``).
        """
        before = self._placements.get(key)
        if before == placement:
            return
        self.changes += 1
        if before is None or (before.uid, before.node) != (placement.uid, placement.node):
            self.release(key)
            self._histories[key] = history or ClaimHistory()
        elif (allocation := self._allocated.pop(key, None)) is not None:
            self._fleet.give_back(allocation)
        claims = None if placement.possible else placement.claims
        self._histories[key].note(placement.request, claims, placement.reported)
        self._placements[key] = placement
        self._on_node[placement.node][key] = None
        if placement.node not in self._fleet.rows:
            self.problems.pop(key, None)
        elif not self.deferred:
            self._allocate(placement.node, [key])

    def release(self, key: str) -> None:
        self.problems.pop(key, None)
        self._histories.pop(key, None)
        placement = self._placements.pop(key, None)
        if placement is None:
            return
        self.changes += 1
        on_node = self._on_node[placement.node]
        del on_node[key]
        if not on_node:
            del self._on_node[placement.node]
        if (allocation := self._allocated.pop(key, None)) is not None:
            self._fleet.give_back(allocation)

    def allocation_of(self, key: str) -> Allocation | None:
        """The pod's allocation in the fleet; None if it is not bound to a known node."""
        return self._allocated.get(key)

    def history_of(self, key: str) -> ClaimHistory | None:
        """Claims in the pod's annotations since it was bound."""
        return self._histories.get(key)

    def pods_on(self, node: str) -> list[str]:
        """Keys of the pods that are bound to a node, in order of arrival."""
        return list(self._on_node.get(node, ()))

    def allocation_if_bound(self, placement: Placement) -> Allocation:
        """Allocation of a pending pod if it were bound to its node now. The node must be known."""
        row = self._fleet.rows[placement.node]
        gpus = freest_gpus(self._fleet, row, placement.request)
        return allocation_of(self._fleet, row, placement.request, gpus)

    def _allocate(self, node: str, keys: Iterable[str]) -> None:
        row = self._fleet.rows[node]
        spec = self._fleet.specs[row]
        assert spec is not None
        held = {key: self._allocation(spec, row, key) for key in keys}
        if held:
            self._allocated |= held
            self._fleet.take_all(row, [*held.values()])

    def _allocate_each(self, node: str, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._allocate(node, [key])
            except Exception:
                log.exception("the allocation of a pod on %s could not be computed", node)

    def _allocation(self, spec: NodeSpec, row: int, key: str) -> Allocation:
        placement, history = self._placements[key], self._histories[key]
        request, problem = reconcile_counts(spec, placement.request, history.reported)
        reconciled = reconcile_since_bound(
            spec, placement.request, placement.claims, placement.possible, history
        )
        problems = "; ".join(filter(None, (problem, reconciled.problem)))
        self.contradictions += self.problems.report(key, problems, "; the larger use counts")
        allocation = allocation_of(self._fleet, row, request)
        if reconciled.parts:
            parts, slices, further = reconciled.parts, reconciled.slices, reconciled.further
            if len(history.modes) > 1:  # with a second slot in turns, nobody else shares the GPU
                slots = Counter(dict(further)) + Counter(gpu for gpu, *_ in parts)
                further = tuple(sorted(slots.items()))
            allocation = replace(allocation, shares=parts, slices=slices, further=further)
        return replace(allocation, concurrent=True in history.modes) if True in history.modes else allocation

    def _forget_allocated(self, node: str) -> None:
        for key in self._on_node.get(node, ()):
            self._allocated.pop(key, None)
