"""Base class of the baselines: the cost is a function of the nodes' sums and the request alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.gpu_choice import tightest
from packing.policies.interface import Pause, no_pause


class Baseline:
    """A policy that learns nothing and has no tables. A subclass says how it ranks nodes; on the node the
    shares go to the GPUs that have the least left."""

    name: str

    @abstractmethod
    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """Cost per row (N,), lower is better, whether the request fits or not."""

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        rank = self.rank(fleet, request)
        return np.where(reasons_for(fleet, request) == 0, rank, np.inf).astype(np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        return tightest(fleet, request, row)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        return {self.name: float(self.rank(fleet, request)[row])}

    def observe(self, request: Request) -> None:
        """Ignored."""

    def plan(self, fleet: Fleet, pause: Pause = no_pause) -> Callable[[], object]:
        return lambda: None

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """There are no tables."""

    def refresh(self, fleet: Fleet, pause: Pause = no_pause) -> Callable[[], object] | None:
        """There are no prices."""
        return None
