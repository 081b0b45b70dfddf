"""Proximity of nodes: NVLink domains that span nodes, and nodes below one switch."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import NodeArrays

Domains = tuple[str, ...]
"""The domains of a node, the nearest first; "" where it is in none."""
DomainIds = npt.NDArray[np.int32]
"""(levels, rows of the fleet): equal numbers denote the same domain, -1 denotes none."""


class _Fleet(Protocol):
    """The attributes read from a ``Fleet``, which itself has a network."""

    rows: dict[str, int]
    arrays: NodeArrays
    replaced: int


class Network:
    """The domains of all nodes, each with ``levels`` levels. The array is built on the first request after a
    change."""

    def __init__(self, levels: int = 4) -> None:
        self._levels = levels
        self._domains: dict[str, Domains] = {}
        self._changes = 0
        self._made_for: object = None
        self._ids = self._used = np.zeros((levels, 0), np.int32)

    def put(self, node: str, domains: Domains) -> None:
        if self.of(node) != domains:
            self._domains[node] = domains
            self._changes += 1

    def remove(self, node: str) -> None:
        self._changes += self._domains.pop(node, None) is not None

    def of(self, node: str) -> Domains:
        return self._domains.get(node, ("",) * self._levels)

    def ids(self, fleet: _Fleet) -> DomainIds:
        """The domains of the nodes in the rows of the fleet."""
        rows, made_for = fleet.rows, (self._changes, fleet.replaced, fleet.arrays.capacity)
        if self._made_for != made_for:
            ids = np.full((self._levels, fleet.arrays.capacity), -1, np.int32)
            for level in range(self._levels):
                numbers: dict[str, int] = {}
                for node, domains in self._domains.items():
                    if domains[level] and node in rows:
                        ids[level, rows[node]] = numbers.setdefault(domains[level], len(numbers))
            self._made_for, self._ids, self._used = made_for, ids, ids[np.any(ids >= 0, axis=1)]
        return self._ids

    def levels(self, fleet: _Fleet) -> DomainIds:
        """``ids`` without the levels at which no node is in a domain."""
        self.ids(fleet)
        return self._used
