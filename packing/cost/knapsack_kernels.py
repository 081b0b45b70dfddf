"""The knapsack behind the fill tables of ``fill_tables.py``."""

from packing.jit import F8, I8, kernel, read, write


@kernel(read(I8, 2), read(F8, 1), write(F8, 2), write(I8, 2))
def knapsack(sizes, values, table, pick):
    """Compute the best value of any multiset of items within each (compute, memory) of the grid.

    ``sizes`` (T, 2) in bins, ``values`` (T,); out: ``table`` and the last item taken ``pick`` (-1: none),
    both (B + 1, B + 1). Items without value are never taken: the caller clips negative values to 0, and a
    pattern with such an item would be an LP column that improves nothing.
    """
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            best, item = 0.0, -1
            for t in range(values.size):
                if values[t] <= 0:
                    continue
                a, b = sizes[t, 0], sizes[t, 1]
                if a <= i and b <= j and values[t] + table[i - a, j - b] > best + 1e-12:
                    best, item = values[t] + table[i - a, j - b], t
            table[i, j], pick[i, j] = best, item
