"""The measure of fragmentation of Weng et al. (USENIX ATC 2023), for reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packing.cost.demand import Mix
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE


def unusable_gpu(fleet: Fleet, mix: Mix) -> float:
    """Free GPU, in GPUs, that the next request of the mix is expected not to be able to use: F as defined in
    ``packing.policies.fgd``, summed over the nodes."""
    parts = fleet.arrays.free_parts()
    free = parts.sum(axis=0)
    expected = 0.0
    for request, frequency in zip(mix.requests, mix.frequency, strict=True):
        shares = request.shares
        fits = reasons_for(fleet, replace(request, memory_bytes=0)) == 0
        too_small = free
        if shares:
            too_small = np.where(parts + 1e-6 >= shares.compute_milli / WHOLE, 0, parts).sum(axis=0)
        expected += frequency * float(np.where(fits, too_small, free).sum())
    return expected
