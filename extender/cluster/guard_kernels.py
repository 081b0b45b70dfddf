"""The kernel that checks what a policy returns."""

from __future__ import annotations

import numpy as np

from packing.jit import BOOL, F4, I1, kernel, read


@kernel(read(I1, 1), read(F4, 1), returns=BOOL)
def finite_where_fits(codes, cost):
    """Whether ``cost`` is finite wherever the reason code is 0."""
    finite = True
    for i in range(codes.size):
        finite &= (codes[i] != 0) | np.isfinite(cost[i])
    return finite
