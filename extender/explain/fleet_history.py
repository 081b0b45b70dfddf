"""How the fleet was used over the last hours: samples in memory, as many as fit a picture."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from time import time

import numpy as np

from extender.cluster.state import State
from extender.explain.overview import waiting_pods
from packing.model.reasons import Reason
from packing.model.request import WHOLE

INTERVAL = 10.0
"""Seconds between two samples."""
_RECENT, _EVERY, _OLDER = 90, 6, 720
"""Samples that are all kept (15 minutes); of older ones each sixth is kept, one a minute for 12 hours."""


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The fleet at a moment ``at`` (Unix seconds). ``gpus`` on all nodes, ``used``: compute in use, in GPUs;
    ``whole_gpus`` and ``whole_nodes`` have nothing on them and take pods; ``waiting`` pods ask for a GPU."""

    at: float
    gpus: int
    used: float
    whole_gpus: int
    whole_nodes: int
    waiting: int


def take_sample(state: State, at: float) -> FleetSample:
    arrays = state.fleet.arrays
    exists = arrays.compute_capacity > 0
    used = np.where(exists, arrays.compute_capacity - np.maximum(arrays.compute, 0), 0)
    is_free = (arrays.compute == arrays.compute_capacity) & (arrays.memory == arrays.memory_capacity)
    opened = (arrays.blocked == Reason.FITS) & (arrays.overcommitted == 0)
    whole = exists & is_free & opened
    per_node = exists.sum(axis=0)
    return FleetSample(
        at=round(at, 1),
        gpus=int(per_node.sum()),
        used=round(float(used.sum()) / WHOLE, 2),
        whole_gpus=int(whole.sum()),
        whole_nodes=int(((whole.sum(axis=0) == per_node) & (per_node > 0)).sum()),
        waiting=len(waiting_pods(state)),
    )


class FleetHistory:
    """The samples of the last 12 hours."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._recent: deque[FleetSample] = deque()
        self._older: deque[FleetSample] = deque(maxlen=_OLDER)
        self._moved = 0

    def add(self, sample: FleetSample) -> None:
        """Add the newest sample."""
        self._recent.append(sample)
        if len(self._recent) > _RECENT:
            oldest = self._recent.popleft()
            if self._moved % _EVERY == 0:
                self._older.append(oldest)
            self._moved += 1

    def columns(self) -> dict[str, list[float]]:
        """By field of ``FleetSample``, the values from the oldest to the newest."""
        rows = [astuple(sample) for sample in (*self._older, *self._recent)]
        return {field.name: [row[i] for row in rows] for i, field in enumerate(fields(FleetSample))}

    async def sample_forever(self, ready: Callable[[], bool]) -> None:
        """Add a sample every ``INTERVAL`` seconds while the state is complete, until cancelled."""
        while True:
            if ready():
                self.add(take_sample(self._state, time()))
            await asyncio.sleep(INTERVAL if self._recent else 0.1)
