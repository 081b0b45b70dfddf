"""Kernel of the victim search: the units of a set that may stay, determined by amounts."""

from packing.jit import BOOL, F8, I8, inlined, kernel, read, record_type, write
from packing.victims.amounts import Demand


@inlined
def _fits(demand, freed):
    """Whether a request fits once these amounts (R,) are freed."""
    first = 0
    for choice in range(demand.choices.shape[0]):
        found, island, counted = 0, -1, -1
        for t in range(first, demand.choices[choice, 1]):
            if demand.targets[t, 0] != island:
                island, found, counted = demand.targets[t, 0], 0, -1
            if demand.targets[t, 1] != counted and _is_met(demand, freed, t):
                counted, found = demand.targets[t, 1], found + 1
                if found == demand.choices[choice, 0]:
                    break
        else:
            return False
        first = demand.choices[choice, 1]
    return True


@inlined
def _is_met(demand, freed, t):
    """Whether a target's missing amounts are freed."""
    for e in range(demand.targets[t - 1, 2] if t else 0, demand.targets[t, 2]):
        if freed[demand.rows[e]] < demand.missing[e]:
            return False
    return True


@kernel(record_type(Demand), read(F8, 2), read(I8, 2), write(BOOL, 2), write(F8, 1), write(BOOL, 1))
def reprieve(demand, amounts, orders, sets, freed, fits):
    """Let units stay, one by one in the order of their set, as long as the request fits.

    ``amounts`` (U, R) that units free, ``orders`` (P, M) of units, and ``sets`` (Q, U) to evict, of which the
    first P have an order. Sets ``fits`` (Q,): whether the request fits without the whole set. Scratch:
    ``freed`` (R,).
    """
    for q in range(sets.shape[0]):
        freed[:] = 0
        for u in range(sets.shape[1]):
            if sets[q, u]:
                for row in range(freed.size):
                    freed[row] += amounts[u, row]
        fits[q] = _fits(demand, freed)
        for place in range(orders.shape[1] if fits[q] and q < orders.shape[0] else 0):
            u = orders[q, place]
            if not sets[q, u]:
                continue
            for row in range(freed.size):
                freed[row] -= amounts[u, row]
            sets[q, u] = not _fits(demand, freed)
            if sets[q, u]:
                for row in range(freed.size):
                    freed[row] += amounts[u, row]
