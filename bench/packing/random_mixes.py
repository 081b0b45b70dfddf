"""Random request mixes, generated from a seed, to find a mix on which a simple policy packs better than ours.

The number of a mix and its seed determine the mix and the arrivals, which are the same for every policy. A
mix has three to eight types of request: shares of compute and memory that are correlated or not, on one of
three grids, whole GPUs where nodes have several, CPU in half of the mixes, and Dirichlet frequencies. Or it
has MIG profiles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bench.packing.mig import ProfileMix
from bench.packing.mig_masks import MigMasks
from bench.packing.mix_runs import a100_geometry
from bench.packing.mixes import ShareMix, Work
from packing.fleet.arrays import Doubles, Longs

GPUS = 300
_PROFILES = (1, 2, 3, 4, 7)
_GRIDS = (10, 20, 100)
_NODE_GPUS = (1, 2, 4, 8)


class RandomMix(NamedTuple):
    """A mix and its load."""

    work: Work
    load: float


def random_shares(seed: int, number: int) -> RandomMix:
    """The ``number``-th mix of shares of this seed."""
    rng = np.random.default_rng([seed, number])
    kinds, unit, node_gpus = int(rng.integers(3, 9)), int(rng.choice(_GRIDS)), int(rng.choice(_NODE_GPUS))
    sizes = np.unique(_sizes(rng, kinds, unit), axis=0)
    frequency = rng.dirichlet(np.ones(len(sizes)))
    count = np.ones(len(sizes), np.int64)
    if node_gpus > 1:
        whole = rng.random(len(sizes)) < 0.3
        sizes[whole] = unit
        count[whole] = 2 ** rng.integers(0, node_gpus.bit_length(), int(whole.sum()))
        frequency /= count
    kept = np.unique(np.column_stack([sizes, count]), axis=0, return_index=True)[1]
    sizes, count, frequency = sizes[kept], count[kept], frequency[kept] / frequency[kept].sum()
    cpu, node_cpu = _cpu(rng, sizes.mean(axis=1) / unit * count, frequency, node_gpus)
    load = round(float(rng.uniform(0.9, 1.3)), 3)
    name = f"{seed}/{number}"
    gpus = GPUS // node_gpus * node_gpus
    return RandomMix(ShareMix(name, sizes, frequency, unit, gpus, count, cpu, node_gpus, node_cpu), load)


def random_profiles(seed: int, number: int) -> RandomMix:
    """The ``number``-th mix of MIG profiles of this seed."""
    rng = np.random.default_rng([seed, number, 1])
    kinds = int(rng.integers(3, len(_PROFILES) + 1))
    compute = tuple(sorted(int(c) for c in rng.choice(_PROFILES, kinds, replace=False)))
    frequency = rng.dirichlet(np.ones(kinds))
    load = round(float(rng.uniform(0.85, 1.3)), 3)
    masks = MigMasks.of(a100_geometry(), compute)
    return RandomMix(ProfileMix(f"{seed}/{number}", masks, compute, frequency), load)


def _sizes(rng: np.random.Generator, kinds: int, unit: int) -> Longs:
    """Compute and memory (T, 2), at least 1 of each; small ones are more frequent in two of three mixes."""
    correlated, skew = rng.random() < 0.5, rng.integers(1, 4)
    compute = rng.random(kinds) ** skew
    memory = compute * rng.lognormal(0, 0.3, kinds) if correlated else rng.random(kinds) ** skew
    return np.ceil(np.column_stack([compute, memory]) * unit).clip(1, unit).astype(np.int64)


def _cpu(rng: np.random.Generator, gpus: Doubles, frequency: Doubles, node_gpus: int) -> tuple[Longs, int]:
    """CPU milli of each type, proportional to its GPUs times a random factor, and of a node; both 0 in half
    of the mixes. A GPU demand equal to the capacity requests 0.7 to 1.1 of the CPU."""
    if rng.random() < 0.5:
        return np.zeros(len(gpus), np.int64), 0
    cpu = np.ceil(8 * gpus * rng.lognormal(0, 0.5, len(gpus))) * 1000
    per_gpu = float(frequency @ cpu) / float(frequency @ gpus)
    return cpu.astype(np.int64), round(per_gpu * node_gpus / float(rng.uniform(0.7, 1.1)))
