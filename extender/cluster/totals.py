"""Sums of the census, apart from the code that counts: commands print those of a running Stowage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extender.untrusted.visible import many


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all nodes with GPUs. ``closed_nodes`` accept no pods; they have ``closed_gpus``.
    ``not_offered``: GPUs that cannot be allocated, ``missing`` those of them on nodes on offer. ``uncounted``
    nodes have an unknown number of GPUs. ``free``, ``whole`` and ``whole_nodes`` are on offer. ``waiting``:
    pending pods, without those ``gated`` by scheduling gates. ``objectives``: for each queue with a wait
    objective, the creation time of its oldest pending pod (Unix seconds), and the objective in seconds."""

    nodes: int
    gpus: int
    used: float
    free: float
    whole: int
    whole_nodes: int
    closed_nodes: int = 0
    closed_gpus: int = 0
    not_offered: int = 0
    missing: int = 0
    uncounted: int = 0
    waiting: int = 0
    gated: int = 0
    objectives: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        in_use = f"{100 * self.used / self.gpus:.0f} % in use" if self.gpus else "none"
        free = f"{many(self.whole, 'GPU')} and {many(self.whole_nodes, 'node')} entirely free"
        apart = [
            f"{many(self.closed_gpus, 'GPU')} on {many(self.closed_nodes, 'closed node')}"
            * bool(self.closed_nodes),
            f"{many(self.missing, 'GPU')} that open nodes do not offer" * bool(self.missing),
            f"{many(self.uncounted, 'node')} whose GPUs cannot be counted" * bool(self.uncounted),
        ]
        nodes = f"{many(self.nodes, 'node')} with {many(self.gpus, 'GPU')}: {in_use}, {free}"
        gated = f", {many(self.gated, 'pod')} held by scheduling gates" * bool(self.gated)
        return "; ".join([nodes, *filter(None, apart), waits(self.waiting) + gated])


def waits(pods: int) -> str:
    """``1 pod pending``, ``2 pods pending``."""
    return f"{many(pods, 'pod')} pending"
