"""Cached costs of requests on all nodes, recomputed only for nodes that changed.

Requests repeat and a placement changes one node, so most of the costs computed for one pod are still valid
for the next pod with the same request.
"""

from __future__ import annotations

import numpy as np

from packing.cost.device_costs import device_costs, size_weight
from packing.cost.kernel_args import CachedCost, Nodes, RequestArgs, nodes_of, request_args
from packing.fleet.fleet import Fleet
from packing.jit import checked
from packing.model.request import Request

_MOST_CELLS = 2_000_000
"""Maximum of requests x nodes in the cache, about 60 MB."""
_MOST_REQUESTS = 1_000
"""Maximum number of cached requests on a small fleet, because each may contain many names."""


class CostCache:
    """The costs of the last few hundred distinct requests on one fleet, each with the value of
    ``Fleet.replaced`` and the weight of sizes for which its ``device`` was computed
    (``device_costs``)."""

    def __init__(self) -> None:
        self._costs: dict[Request, tuple[CachedCost, RequestArgs, tuple[int, float] | None]] = {}
        self._size_weight = size_weight(0)
        self._layout = 0, 0, 0
        self._nodes: Nodes | None = None
        self._last: tuple[Request | None, int, CachedCost | None] = None, -1, None

    def current(self, fleet: Fleet, request: Request) -> CachedCost | None:
        """The cost that ``outdated`` returned last if it is of the same request object and no node has
        changed since, else None. Choosing a node and listing the terms of a cost follow its computation; this
        saves 5 % of ``filter``."""
        last, changes, cached = self._last
        return cached if last is request and changes == fleet.changes else None

    def outdated(self, fleet: Fleet, request: Request) -> tuple[CachedCost, Nodes, RequestArgs]:
        """The cached cost of this request, which the caller brings up to date, and the kernel arguments for
        that."""
        layout = fleet.layout
        if layout != self._layout or self._nodes is None:
            self._costs.clear()
            self._layout, self._nodes = layout, nodes_of(fleet)
        found = self._costs.get(request)
        if found is None:
            if len(self._costs) >= min(_MOST_REQUESTS, _MOST_CELLS // fleet.arrays.capacity):
                self._costs.pop(next(iter(self._costs)), None)
            nodes = fleet.arrays.capacity
            cost, terms = np.full(nodes, np.inf, np.float32), np.zeros((4, nodes), np.float32)
            seen, gpus = np.full(nodes, -1, np.int64), np.zeros(nodes, np.int64)
            unknown = checked(CachedCost(seen, cost, gpus, terms, np.zeros(nodes, np.float32)))
            found = unknown, request_args(fleet, request), None
        cached, args, computed_for = found
        if computed_for != (current := (fleet.replaced, self._size_weight)):
            # For another weight, or other nodes: device costs depend on the cheapest device of any node.
            device = device_costs(fleet, request, self._size_weight)
            if not np.array_equal(device, cached.device):
                cached.device[:] = device
                cached.seen.fill(-1)
            self._costs[request] = cached, args, current
        self._last = request, fleet.changes, cached
        return cached, self._nodes, args

    def forget(self, size_weight: float | None = None) -> None:
        """Mark all costs as outdated, because prices, tables or the weight of sizes changed."""
        if size_weight is not None:
            self._size_weight = size_weight
        for cached, *_ in self._costs.values():
            cached.seen.fill(-1)
        self._last = None, -1, None


def gpus_in(mask: int) -> tuple[int, ...]:
    """The indices of the bits that are set."""
    if mask & (mask - 1) == 0:  # usually none or one
        return (mask.bit_length() - 1,) if mask else ()
    return tuple(g for g in range(mask.bit_length()) if mask >> g & 1)
