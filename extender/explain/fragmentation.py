"""Fragmentation of the fleet: what of it is on offer, free and whole, and what is stranded and why."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from extender.cluster.state import State
from extender.explain.closed import closed_rows
from packing.fleet.mig_slices import MigStock, ProfileSlices
from packing.fleet.stranded import Beside, Fragmentation, closed_reason, fragmentation, on_offer
from packing.model.reasons import Reason

UNKNOWN = "unknown"
"""The model of GPUs that the catalogue does not have."""
_BATCH = 25
"""Nodes with MIG instances that are computed before other tasks run: about a millisecond."""


@dataclass(frozen=True, slots=True)
class MigSlices:
    """GPUs of one model in MIG mode: free memory slices, and by profile the instances that pods can get now
    and the free slices that cannot become one."""

    free_slices: int
    profiles: dict[str, ProfileSlices]


@dataclass(frozen=True, slots=True)
class FleetFragmentation:
    """The ``fleet`` as a whole and by GPU model, MIG slices by model, and how many nodes with GPUs are not on
    offer, by reason. ``beside_one_gpu``: what pods ask for on average, by which CPU and host memory strand
    GPUs."""

    fleet: Fragmentation
    models: dict[str, Fragmentation]
    mig: dict[str, MigSlices]
    closed_nodes: dict[str, int]
    beside_one_gpu: Beside


class FragmentationReport:
    """Computes the figures of one state. Nodes with MIG instances are computed again when they change."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._slices = MigStock(state.fleet)

    async def update(self) -> None:
        """Bring the MIG slices up to date. Other tasks run in between."""
        while not self._slices.update(on_offer(self._state.fleet, closed_rows(self._state)), _BATCH):
            await asyncio.sleep(0)

    def current(self) -> FleetFragmentation:
        """The figures now; those of MIG slices as of the last ``update``."""
        state = self._state
        beside = state.learner.monitor.beside()
        total, models = fragmentation(state.fleet, on_offer(state.fleet, closed_rows(state)), beside)
        profiles: defaultdict[str, dict[str, ProfileSlices]] = defaultdict(dict)
        for (model, profile), slices in self._slices.profiles().items():
            profiles[model][profile] = slices
        return FleetFragmentation(
            fleet=total,
            models={name or UNKNOWN: one for name, one in models.items()},
            mig={
                model or UNKNOWN: MigSlices(free, profiles[model])
                for model, free in self._slices.free_slices().items()
            },
            closed_nodes=_closed_nodes(state),
            beside_one_gpu=beside,
        )


def _closed_nodes(state: State) -> dict[str, int]:
    arrays = state.fleet.arrays
    has_gpus = np.any(arrays.compute_capacity > 0, axis=0) | (arrays.blocked == Reason.UNREADABLE)
    reasons = np.where(arrays.overcommitted > 0, Reason.OVERCOMMITTED, arrays.blocked)[has_gpus]
    counts = dict(enumerate(np.bincount(reasons).tolist()))
    found = Counter({Reason(code).text: count for code, count in counts.items() if code and count})
    for name, why in state.nodes.closed.items():
        row = state.fleet.rows.get(name, -1)
        if row >= 0 and has_gpus[row] and closed_reason(arrays, row) is Reason.FITS:
            found[why] += 1
    return dict(found)
