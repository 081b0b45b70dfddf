"""Network domains that a placement breaks up: NVLink domains, and the nodes below one leaf or spine
switch."""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.stranded import idle_nodes


def idle_parts(fleet: Fleet) -> Floats | None:
    """(N,) the fraction of the nodes in the same domain that are idle, averaged over the levels of domains in
    the fleet; None if no node is in a domain."""
    levels = fleet.network.levels(fleet)
    if not len(levels):
        return None
    idle, parts = idle_nodes(fleet.arrays), np.zeros(fleet.arrays.capacity, np.float32)
    for level in levels:
        inside = np.flatnonzero((level >= 0) & (fleet.arrays.compute_capacity[0] > 0))
        domain = level[inside]
        count = np.maximum(np.bincount(domain), 1)
        parts[inside] += (np.bincount(domain, weights=idle[inside]) / count)[domain] / len(levels)
    return parts
