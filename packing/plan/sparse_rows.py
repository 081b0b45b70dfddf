"""The constraints of an integer program, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class SparseRows:
    """The rows of a sparse matrix, with their bounds."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._entries: list[float] = []

    def add(self, terms: list[tuple[int, float]], least: float, most: float) -> None:
        """A row with these (column, entry), and its bounds."""
        for column, entry in terms:
            self._rows.append(len(self.low))
            self._columns.append(column)
            self._entries.append(entry)
        self.low.append(least)
        self.high.append(most)

    def matrix(self, columns: int) -> csr_array:
        """(rows, ``columns``), compressed by rows."""
        from scipy.sparse import coo_array  # half a second, only for plans and replays

        shape = len(self.low), columns
        return coo_array((self._entries, (self._rows, self._columns)), shape).tocsr()
