"""The sums of the census. Without what counts them: commands print those of a running Stowage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """All nodes with GPUs. ``closed_nodes`` take no pods, and ``closed_gpus`` are theirs. ``not_offered``:
    GPUs that nobody can get, ``missing`` those of them on nodes on offer. ``uncounted`` nodes have GPUs, and
    it is not known how many. ``free``, ``whole`` and ``whole_nodes`` are those on offer; ``waiting`` pods."""

    nodes: int
    gpus: int
    used: float
    free: float
    whole: int
    whole_nodes: int
    closed_nodes: int
    closed_gpus: int
    not_offered: int
    missing: int
    uncounted: int
    waiting: int
