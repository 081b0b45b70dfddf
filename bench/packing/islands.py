"""Jobs of 1, 2, 4 and 8 GPUs on a fleet with NVLink islands: ``python -m bench.packing.islands``.

There are nodes of four GPUs in two bridged pairs, of eight in two meshes of four, and of eight on one switch,
with equal numbers of GPUs. Jobs arrive until they request ``load`` x the GPUs (fill), or arrive and end at
that load (departures: Poisson, exponential durations); a job that fits nowhere is lost. The figures are the
multi-GPU jobs in one island, and the allocated GPU.

The GPUs of a job are chosen by Stowage, or by a device plugin: NVIDIA's, which prefers GPUs with direct
NVLinks and does not detect switches (NVIDIA/go-gpuallocator at 876e7b7, gpuallocator/besteffort_policy.go and
internal/links/device.go), and otherwise takes any.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from extender.cli.precompile import choose_cache

if __name__ == "__main__":
    choose_cache()  # before the imports that load kernels

from bench.packing.filling import build_fleet
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES
from bench.packing.seeds import seed_range
from extender.replay.report import aligned
from packing.cost.demand import Mix
from packing.fleet.arrays import Floats
from packing.fleet.node_usage import Allocation
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.nvlink import Islands
from packing.model.request import Request

GPU, GIB = "nvidia.com/gpu", 1 << 30
SIZES = (1, 2, 4, 8)
MIXES = {
    "many small": (0.55, 0.25, 0.15, 0.05),
    "even in pods": (0.25, 0.25, 0.25, 0.25),
    "pairs": (0.3, 0.6, 0.05, 0.05),
    "even in GPUs": (8 / 15, 4 / 15, 2 / 15, 1 / 15),
}
KINDS: tuple[tuple[int, Islands], ...] = (
    (4, ((0, 1), (2, 3))),
    (8, ((0, 1, 2, 3), (4, 5, 6, 7))),
    (8, (tuple(range(8)),)),
)
COLUMNS = ("inventory", "inventory, islands unknown", "best-fit", "most-allocated", "random")
CASES = ((False, 1.0), (True, 0.9), (True, 1.1))
"""Whether jobs end, and the requested GPUs as a multiple of the existing ones."""
DURATIONS = 12
"""Length of a replay with departures, in mean durations; the first quarter is not counted."""


def node_specs(gpus: int, *, plugin: bool, known: bool) -> list[NodeSpec]:
    """A fleet with ``gpus`` GPUs on each kind of node."""
    specs = []
    for kind, (size, islands) in enumerate(KINDS):
        cards = (Gpu(80_000, divisible=not plugin),) * size
        pool = Pool(GPU, size, tuple(range(size)), 1000, 80_000)
        empty = NodeSpec(
            "", 16_000 * size, 128 * GIB * size, cards, (pool,), islands=islands if known else ()
        )
        sharing = "" if plugin else GPU
        specs += [
            replace(empty, name=f"node-{kind}-{i}", sharing_resource=sharing) for i in range(gpus // size)
        ]
    return specs


class Site:
    """The nodes under one policy, with the actual GPUs of every job."""

    def __init__(self, column: str, mix: Mix, gpus: int, *, plugin: bool, seed: int) -> None:
        name, _, unknown = column.partition(", ")
        self._islands = [spec.islands for spec in node_specs(gpus, plugin=plugin, known=True)]
        self._fleet = build_fleet(node_specs(gpus, plugin=plugin, known=not unknown))
        self._rng = np.random.default_rng([seed, 1])
        self._is_random = name == "random"
        policy = POLICIES["first-fit" if self._is_random else name](mix)
        order = np.random.default_rng([seed, 2]).permutation(len(self._islands))
        pick = self._pick_any if self._is_random else NodePicker(order)
        self._placer = Placer(self._fleet, policy, pick, learns=False)
        self._free = [set(range(len(spec.gpus))) for spec in self._fleet.specs if spec]

    def place(self, request: Request) -> tuple[Allocation, frozenset[int]] | None:
        """The allocation of the job, and its GPUs; None if it fits nowhere."""
        self._placer.arrive(request)
        held = self._placer.place(request)
        if held is None:
            return None
        count, free = request.gpus, self._free[held.row]
        if held.shares and not self._is_random:
            gpus = frozenset(gpu for gpu, *_ in held.shares)
        else:
            gpus = self._plugin_gives(held.row, count, aligned=not self._is_random)
            if held.shares:  # placed at random
                self._fleet.give_back(held)
                shares = tuple(
                    (gpu, milli, mib) for gpu, (_, milli, mib) in zip(gpus, held.shares, strict=True)
                )
                held = replace(held, shares=shares)
                self._fleet.take(held)
        assert gpus <= free
        free -= gpus
        return held, gpus

    def leave(self, held: Allocation, gpus: frozenset[int]) -> None:
        self._fleet.give_back(held)
        self._free[held.row] |= gpus

    def in_one_island(self, held: Allocation, gpus: frozenset[int]) -> bool:
        return any(gpus <= set(island) for island in self._islands[held.row])

    def _pick_any(self, cost: Floats) -> int:
        fitting = np.flatnonzero(np.isfinite(cost))
        return int(self._rng.choice(fitting)) if fitting.size else -1

    def _plugin_gives(self, row: int, count: int, *, aligned: bool) -> frozenset[int]:
        free = sorted(self._free[row])
        islands = self._islands[row]
        if aligned and count > 1 and len(islands) > 1:  # direct links
            able = [here for island in islands if len(here := [g for g in free if g in island]) >= count]
            free = min(able, key=len, default=free)
        return frozenset(self._rng.choice(free, size=count, replace=False).tolist())


def replay(
    column: str, mix: str, *, plugin: bool, departures: bool, load: float, seed: int, gpus: int
) -> dict[str, float]:
    """Percentage of the requested GPU that was allocated, and of the multi-GPU jobs that are in one
    island."""
    requests = [Request(4_000 * size, 16 * GIB * size, ((GPU, size),)) for size in SIZES]
    frequency = np.array(MIXES[mix])
    site = Site(column, Mix(tuple(requests), tuple(frequency)), gpus, plugin=plugin, seed=seed)
    rng, capacity = np.random.default_rng(seed), 3 * gpus
    mean = float(frequency @ SIZES)
    leaving: list[tuple[float, int, Any]] = []
    found: defaultdict[str, float] = defaultdict(float)
    now, arrived = 0.0, 0
    while (departures and now < DURATIONS) or (not departures and arrived < load * capacity):
        now += rng.exponential(mean / (load * capacity))
        kind, duration = int(rng.choice(len(SIZES), p=frequency)), rng.exponential()
        while departures and leaving and leaving[0][0] <= now:
            site.leave(*heapq.heappop(leaving)[2])
        arrived += SIZES[kind]
        held = site.place(requests[kind])
        if held:
            heapq.heappush(leaving, (now + duration, arrived, held))
        if not departures or now >= DURATIONS / 4:
            found["asked"] += SIZES[kind]
            found["got"] += SIZES[kind] * bool(held)
            found["several"] += SIZES[kind] > 1 and bool(held)
            found["peers"] += bool(SIZES[kind] > 1 and held and site.in_one_island(*held))
    whole = found["asked"] if departures else capacity
    return {"allocated": 100 * found["got"] / whole, "peers": 100 * found["peers"] / found["several"]}


def rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for plugin, mix, (departures, load), column, seed in product(
        (False, True), MIXES, CASES, args.columns, args.seeds
    ):
        figures = replay(
            column, mix, plugin=plugin, departures=departures, load=load, seed=seed, gpus=args.gpus
        )
        keys = {"plugin": plugin, "mix": mix, "departures": departures, "load": load, "column": column}
        found.append(keys | {"seed": seed} | figures)
    return found


def table(found: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """For each chooser and case the means over mixes and seeds: jobs in one island / GPU allocated."""
    lines = [["GPUs chosen by", "jobs", *columns]]
    for plugin, (departures, load) in product((False, True), [*CASES, (None, None)]):
        case = "mean" if load is None else f"{'come and go' if departures else 'arrive'}, {load:g} x the GPUs"
        cells = []
        for column in columns:
            of_column = [row for row in found if (row["plugin"], row["column"]) == (plugin, column)]
            here = [row for row in of_column if load in (None, row["load"])]
            means = (fmean(row[figure] for row in here) for figure in ("peers", "allocated"))
            cells.append(" / ".join(f"{mean:.1f}" for mean in means))
        lines.append(["device plugin" if plugin else "Stowage", case, *cells])
    return aligned(lines)


def cost_of_topology(found: Sequence[dict[str, Any]]) -> str:
    """The allocation with known islands minus that with unknown ones, for the same jobs."""
    lines = []
    for plugin in (False, True):
        by_seed: defaultdict[int, list[float]] = defaultdict(list)
        for row in found:
            if row["plugin"] == plugin and row["column"] in COLUMNS[:2]:
                sign = 1 if row["column"] == COLUMNS[0] else -1
                by_seed[row["seed"]].append(sign * row["allocated"])
        means = [2 * fmean(values) for values in by_seed.values()]
        error = stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
        chooser = "the device plugin" if plugin else "Stowage"
        lines.append(f"{chooser} chooses: islands change the allocation by {fmean(means):+.2f} ({error:.2f})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.islands")
    parser.add_argument("--seeds", type=seed_range, default=seed_range("1-5"), help="such as 1-5")
    parser.add_argument("--gpus", type=int, default=240, help="GPUs of each kind of node (%(default)s)")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, metavar="COLUMN")
    parser.add_argument("--out", type=Path, help="write the rows there, as JSON")
    args = parser.parse_args()
    found = rows(args)
    print(table(found, args.columns))
    if {*COLUMNS[:2]} <= {*args.columns}:
        print(cost_of_topology(found))
    if args.out:
        args.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
