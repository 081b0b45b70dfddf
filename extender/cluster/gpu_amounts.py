"""How many GPUs a request takes, for figures about pods wherever they run."""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import ALMOST_WHOLE
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request

_MOST_REQUESTS = 4096


class GpuAmounts:
    """Of a fleet. Answers are kept until its nodes change."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[Request, float] = {}
        self._known_at = -1

    @property
    def resources(self) -> int:
        """Changes when nodes bring resources that no node had; then other requests have other amounts."""
        return len(self._fleet.names.resources)

    def of(self, request: Request) -> float:
        """The GPUs that it takes, on the nodes where it takes most; a resource that no node has counts as one
        GPU for each device."""
        if self._known_at != self._fleet.replaced or len(self._known) >= _MOST_REQUESTS:
            self._known_at = self._fleet.replaced
            self._known.clear()
        if request not in self._known:
            self._known[request] = _gpus(self._fleet, request)
        return self._known[request]


def _gpus(fleet: Fleet, request: Request) -> float:
    arrays, gpus = fleet.arrays, 0.0
    for name, count in request.devices:
        number = fleet.names.resources.get(name)
        size = 1.0 if number is None else float(arrays.device_gpu[number].max(initial=0))
        gpus += count * (1.0 if size > ALMOST_WHOLE else size)
    if part := request.shares:
        largest = max(1.0, float(np.max(arrays.memory_capacity, initial=0)))
        memory = part.memory_milli / WHOLE + part.memory_mib / largest
        gpus += part.count * min(1.0, max(part.compute_milli / WHOLE, memory))
    return gpus
