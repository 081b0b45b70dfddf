"""How the fleet was used over the last hours: samples in memory, as many as fit a picture."""

from __future__ import annotations

from collections import deque

from extender.cluster.census import Census, CensusTaker

INTERVAL = 10.0
"""Seconds between two samples."""
_RECENT, _EVERY, _OLDER = 90, 6, 720
"""Samples that are all kept (15 minutes); of older ones each sixth is kept, one a minute for 12 hours."""
_TOTALS = "gpus", "used", "waiting", "whole", "whole_nodes"
_ON_OFFER = (
    "largest_request",
    "largest_island",
    "stranded_compute",
    "stranded_by_cpu",
    "stranded_by_host_memory",
)
"""Columns, which are fields of ``Totals`` and of ``Fragmentation``."""
_COLUMNS = "at", *_TOTALS, *_ON_OFFER, "stranded"


class FleetHistory:
    """The samples of the last 12 hours."""

    def __init__(self, census: CensusTaker) -> None:
        self._census = census
        self._recent: deque[tuple[float, ...]] = deque()
        self._older: deque[tuple[float, ...]] = deque(maxlen=_OLDER)
        self._moved = 0

    async def sample(self, at: float) -> None:
        """Add a sample of this moment, in Unix seconds."""
        self._recent.append((round(at, 1), *_figures(await self._census.take())))
        if len(self._recent) > _RECENT:
            oldest = self._recent.popleft()
            if self._moved % _EVERY == 0:
                self._older.append(oldest)
            self._moved += 1

    def columns(self) -> dict[str, list[float]]:
        """By name, the values from the oldest to the newest. ``stranded`` is compute for which GPU memory, or
        the more of CPU and host memory, is lacking."""
        rows = [*self._older, *self._recent]
        return {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}


def _figures(census: Census) -> list[float]:
    fleet = census.fleet
    figures = [getattr(census.totals, field) for field in _TOTALS]
    figures += [getattr(fleet, field) for field in _ON_OFFER]
    stranded = fleet.stranded_compute + max(fleet.stranded_by_cpu, fleet.stranded_by_host_memory)
    return [round(figure, 2) for figure in (*figures, stranded)]
