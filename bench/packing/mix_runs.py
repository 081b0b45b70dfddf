"""Reads files of request mixes and replays them, as rows.

A file contains ``{"unit": 20, "mixes": {name: [{"compute", "memory", "frequency"}]}}``, or has ``"profile"``
instead of the sizes for MIG instances that are created on demand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.packing import mig
from bench.packing.mig import ProfileMix
from bench.packing.mig_masks import MigMasks
from bench.packing.mixes import ShareMix, Work, fill_mix, serve_mix
from bench.packing.policies import POLICIES
from bench.packing.traces import BadInput
from packing.model.gpu_catalog import Geometry, find_model


class MixAndLoads(NamedTuple):
    """One mix of a file, and the loads at which it is replayed."""

    mix: Work
    fill_loads: tuple[float, ...]
    departure_loads: tuple[float, ...]


def replay_mixes(
    path: Path, policies: Sequence[str], seeds: Sequence[int], *, departures: bool
) -> list[dict[str, Any]]:
    """Rows, one per mix, load, policy and seed. Raises ``BadInput``."""
    rows = []
    replay = serve_mix if departures else fill_mix
    for mix, fill_loads, departure_loads in read_mixes(path):
        known = mig.POLICIES if isinstance(mix, ProfileMix) else tuple(POLICIES)
        if unknown := [name for name in policies if name not in known]:
            names = ", ".join(known)
            raise BadInput(f"{path}: {mix.name} can be packed by {names}; not by {', '.join(unknown)}")
        for load, policy, seed in product(departure_loads if departures else fill_loads, policies, seeds):
            name = {"mix": mix.name, "load": load, "policy": policy, "seed": seed}
            rows.append(name | replay(mix, policy, load=load, seed=seed))
    return rows


def read_mixes(path: Path) -> list[MixAndLoads]:
    """The mixes of a file. Raises ``BadInput``."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return [_mix(name, requests, int(data.get("unit", 1))) for name, requests in data["mixes"].items()]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path}: is not JSON: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{path}: not a file of request mixes: {error!r}") from None


def _mix(name: str, requests: list[Mapping[str, Any]], unit: int) -> MixAndLoads:
    frequency = np.array([float(request["frequency"]) for request in requests])
    if not (np.isfinite(frequency).all() and (frequency >= 0).all() and frequency.sum() > 0):
        raise ValueError(f"{name}: invalid frequencies; expected numbers from 0, not all of them 0")
    frequency /= frequency.sum()
    if "profile" in requests[0]:
        compute = tuple(int(str(request["profile"]).removesuffix("g")) for request in requests)
        masks = MigMasks.of(a100_geometry(), compute)
        return MixAndLoads(ProfileMix(name, masks, compute, frequency), (1.0, 1.2), (0.85, 1.0, 1.2))
    sizes = np.array([[int(request["compute"]), int(request["memory"])] for request in requests])
    if (sizes < 0).any() or (sizes > unit).any() or (sizes.max(axis=1) == 0).any():
        raise ValueError(f"{name}: invalid sizes; expected whole numbers from 0 to {unit}, not both 0")
    return MixAndLoads(ShareMix(name, sizes, frequency, unit), (1.0, 1.3), (0.9, 1.05))


def a100_geometry() -> Geometry:
    """Seven compute and eight memory slices, as in every data-center GPU from A100 to B200."""
    model = find_model("NVIDIA-A100-SXM4-80GB")
    assert model is not None
    assert model.geometry is not None
    return model.geometry
