"""Which nodes are near each other: the domains of the network that their labels name, as arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from extender.inventory.network_labels import LEVELS, NOWHERE, Domains, domains_of
from packing.fleet.fleet import Fleet

DomainIds = npt.NDArray[np.int32]
"""(levels, rows of the fleet): equal numbers are the same domain, -1 is none."""


class Network:
    """The domains of all nodes. The array is made when it is asked for after a change."""

    def __init__(self) -> None:
        self._domains: dict[str, Domains] = {}
        self._changes = 0
        self._ids: tuple[object, DomainIds] = None, np.zeros((len(LEVELS), 0), np.int32)

    def put(self, node: str, labels: Mapping[str, str]) -> None:
        domains = domains_of(labels)
        if self._domains.get(node, NOWHERE) != domains:
            self._domains[node] = domains
            self._changes += 1

    def remove(self, node: str) -> None:
        self._changes += self._domains.pop(node, None) is not None

    def of(self, node: str) -> Domains:
        """The domains of a node; "" where it names none."""
        return self._domains.get(node, NOWHERE)

    def ids(self, fleet: Fleet) -> DomainIds:
        """The domains of the nodes in the rows of the fleet."""
        rows, made_for = fleet.rows, (self._changes, fleet.replaced, fleet.arrays.capacity)
        if self._ids[0] != made_for:
            ids = np.full((len(LEVELS), fleet.arrays.capacity), -1, np.int32)
            for level in range(len(LEVELS)):
                numbers: dict[str, int] = {}
                for node, domains in self._domains.items():
                    if domains[level] and node in rows:
                        ids[level, rows[node]] = numbers.setdefault(domains[level], len(numbers))
            self._ids = made_for, ids
        return self._ids[1]
