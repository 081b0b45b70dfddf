"""How the fleet was used over the last hours: samples in memory, as many as fit a picture."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, fields

from extender.cluster.census import CensusTaker

INTERVAL = 10.0
"""Seconds between two samples."""
_RECENT, _EVERY, _OLDER = 90, 6, 720
"""Samples that are all kept (15 minutes); of older ones each sixth is kept, one a minute for 12 hours."""


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The fleet at a moment ``at`` (Unix seconds), as ``Totals`` and ``Fragmentation`` say it."""

    at: float
    gpus: int
    used: float
    waiting: int
    whole_gpus: int
    whole_nodes: int
    largest_request: int
    largest_island: int
    stranded_compute: float
    stranded_by_cpu: float
    stranded_by_host_memory: float


class FleetHistory:
    """The samples of the last 12 hours."""

    def __init__(self, census: CensusTaker) -> None:
        self._census = census
        self._recent: deque[FleetSample] = deque()
        self._older: deque[FleetSample] = deque(maxlen=_OLDER)
        self._moved = 0

    async def sample(self, at: float) -> None:
        """Add a sample of this moment."""
        census = await self._census.take()
        totals, found = census.totals, census.fleet
        sample = FleetSample(
            at=round(at, 1),
            gpus=totals.gpus,
            used=round(totals.used, 2),
            waiting=totals.waiting,
            whole_gpus=totals.whole,
            whole_nodes=totals.whole_nodes,
            largest_request=found.largest_request,
            largest_island=found.largest_island,
            stranded_compute=round(found.stranded_compute, 2),
            stranded_by_cpu=round(found.stranded_by_cpu, 2),
            stranded_by_host_memory=round(found.stranded_by_host_memory, 2),
        )
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
