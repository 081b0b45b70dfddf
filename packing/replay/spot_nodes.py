"""Spot nodes in a replay: which ones they are, and when they are interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.model.node_spec import NodeSpec


@dataclass(frozen=True, slots=True)
class SpotRows:
    """The rows (N,) that are spot nodes, when which of them is interrupted, and for how long it is away.
    Restartable pods prefer them, other pods never use them. Times in seconds."""

    rows: npt.NDArray[np.bool_]
    interruptions: Sequence[tuple[float, int]] = ()
    outage: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """``share`` of the GPUs are on spot nodes. A spot node costs ``discount`` (a part of 1) less than
    another, is interrupted ``rate`` times per hour on average, and comes back after ``outage`` seconds."""

    share: float
    discount: float
    rate: float
    outage: float = 300.0

    def draw(self, nodes: Sequence[NodeSpec], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Which nodes are on spot (N,): random ones, until they have the share of the GPUs or more."""
        gpus = np.array([len(node.gpus) for node in nodes])
        order = rng.permutation(len(nodes))
        before = np.cumsum(gpus[order]) - gpus[order]
        spot = np.zeros(len(nodes), bool)
        spot[order] = before < self.share * gpus.sum()
        return spot

    def interruptions(
        self, rows: Sequence[int], start: float, end: float, rng: np.random.Generator
    ) -> Iterator[tuple[float, int]]:
        """(Time in seconds, row) of every interruption between two times: a Poisson process for each row,
        which does not run during an outage."""
        for row in rows:
            now = start
            while self.rate > 0 and (now := now + rng.exponential(3600 / self.rate)) < end:
                yield now, row
                now += self.outage
