"""Costs as vectors that are compared lexicographically: parts of the kernels of the victim search.

The order of vectors is that of an ordered vector space, so sums, fractions and lower bounds work as with
numbers. Components that differ by less than a rounding error count as equal; without that a bound could
exclude the best set, because its second component counts only where the first ones are equal.
"""

from packing.jit import inlined

_ROUNDING = 1e-12


@inlined
def compare(a, b):
    """-1, 0 or 1."""
    for c in range(a.size):
        difference = a[c] - b[c]
        if abs(difference) > _ROUNDING * (abs(a[c]) + abs(b[c])):
            return 1 if difference > 0 else -1
    return 0


@inlined
def compare_ratios(a, amount_a, b, amount_b):
    """Compare a / amount_a with b / amount_b; the amounts are positive."""
    for c in range(a.size):
        left, right = a[c] * amount_b, b[c] * amount_a
        if abs(left - right) > _ROUNDING * (abs(left) + abs(right)):
            return 1 if left > right else -1
    return 0


@inlined
def add(total, vector, factor):
    """Add ``factor * vector`` to ``total``."""
    for c in range(total.size):
        total[c] += factor * vector[c]


@inlined
def assign(target, source):
    """Copy a vector; numba would allocate memory for ``target[:] = source``."""
    for c in range(target.size):
        target[c] = source[c]
