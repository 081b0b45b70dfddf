"""What policies keep per request shape: costs of all nodes, asked again only for nodes that changed.

Requests repeat and a placement changes one node, so most of what was computed for the last pod of a shape
still holds for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.cost.kernel_args import Nodes, RequestArgs, ask_of, layout_of, nodes_of
from packing.fleet.fleet import Fleet, Floats
from packing.model.request import Request

_CELLS = 2_000_000
"""Rows x nodes kept at most, some 60 MB."""
_MOST_ROWS = 1_000
"""Rows kept at most, however small the fleet: each keeps its request, in which a pod may list many names."""


@dataclass(frozen=True, slots=True)
class CachedCost:
    """Kept for one request: ``seen`` (N,) generations, ``cost`` (N,), GPUs as bit masks ``gpus`` (N,), and
    the ``terms`` (3, N)."""

    ask: RequestArgs
    seen: npt.NDArray[np.int64]
    cost: Floats
    gpus: npt.NDArray[np.int64]
    terms: Floats


class CostCache:
    """The rows of the last few hundred request shapes against one fleet."""

    def __init__(self) -> None:
        self._rows: dict[Request, CachedCost] = {}
        self._layout = 0, 0
        self._last: tuple[Request | None, int, CachedCost | None] = None, -1, None
        self._nodes: Nodes | None = None

    def current(self, fleet: Fleet, request: Request) -> CachedCost | None:
        """The row that was asked for last, if the question and the fleet are still the same."""
        last, changes, row = self._last
        return row if last is request and changes == fleet.changes else None

    def row(self, fleet: Fleet, request: Request) -> tuple[CachedCost, Nodes]:
        """The row of this request, to be brought up to date by the caller from the nodes."""
        layout = layout_of(fleet)
        if layout != self._layout or self._nodes is None:
            self._rows.clear()
            self._layout, self._nodes = layout, nodes_of(fleet)
        row = self._rows.get(request)
        if row is None:
            if len(self._rows) >= min(_MOST_ROWS, _CELLS // fleet.capacity):
                self._rows.pop(next(iter(self._rows)), None)
            row = self._rows[request] = _new_row(fleet, request)
        self._last = request, fleet.changes, row
        return row, self._nodes

    def forget(self) -> None:
        """Ask everything again: prices or tables changed."""
        for row in self._rows.values():
            row.seen.fill(-1)
        self._last = None, -1, None


def gpus_in(mask: int) -> tuple[int, ...]:
    """The indices of the bits that are set."""
    if mask & (mask - 1) == 0:  # one or none, as a rule
        return (mask.bit_length() - 1,) if mask else ()
    return tuple(g for g in range(mask.bit_length()) if mask >> g & 1)


def _new_row(fleet: Fleet, request: Request) -> CachedCost:
    size = fleet.capacity
    cost, terms = np.full(size, np.inf, np.float32), np.zeros((3, size), np.float32)
    return CachedCost(
        ask_of(fleet, request), np.full(size, -1, np.int64), cost, np.zeros(size, np.int64), terms
    )
