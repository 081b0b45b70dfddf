"""How the fleet was used over the last hours: samples in memory, as many as fit a picture."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, fields

from extender.cluster.state import State
from extender.explain.fragmentation import FragmentationReport
from packing.fleet.stranded import installed

INTERVAL = 10.0
"""Seconds between two samples."""
_RECENT, _EVERY, _OLDER = 90, 6, 720
"""Samples that are all kept (15 minutes); of older ones each sixth is kept, one a minute for 12 hours."""


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The fleet at a moment ``at`` (Unix seconds): ``gpus`` on all nodes, ``used`` compute in GPUs, and how
    many pods wait for a GPU. The others are those of ``Fragmentation``."""

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

    def __init__(self, state: State, report: FragmentationReport) -> None:
        self._state, self._report = state, report
        self._recent: deque[FleetSample] = deque()
        self._older: deque[FleetSample] = deque(maxlen=_OLDER)
        self._moved = 0

    async def sample(self, at: float) -> None:
        """Add a sample of this moment."""
        await self._report.update()
        found = self._report.current().fleet
        gpus = installed(self._state.fleet).values()
        sample = FleetSample(
            at=round(at, 1),
            gpus=sum(one.gpus for one in gpus),
            used=round(sum(one.used for one in gpus), 2),
            waiting=sum(queue.waiting_pods for queue in self._state.pods.usage.by_queue().values()),
            whole_gpus=found.whole,
            whole_nodes=found.whole_nodes,
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
