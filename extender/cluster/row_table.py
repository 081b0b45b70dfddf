"""The fleet's rows by the names of their nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from extender.protocol.node_names import NameTable, NodeNames
from packing.fleet.fleet import Fleet


class RowTable:
    """Finds rows of a fleet; built anew when nodes have come or gone."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._table = fleet.replaced, NameTable({})

    def find(self, names: NodeNames) -> npt.NDArray[np.int64]:
        """The row of each name, -1 for a node that is not known: (len(names),)."""
        replaced, table = self._table
        if replaced != self._fleet.replaced:
            table = NameTable(self._fleet.rows)
            self._table = self._fleet.replaced, table
        return table.find(names)
