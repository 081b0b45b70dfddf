"""Counts restricted pods that are pending although other pods could have been placed elsewhere.

Half of the nodes are in zone a, and a third of the pods require it, unless options specify other numbers.
Pods arrive one by one until they request ``load`` x the GPUs, and pods that fit nowhere wait. The policy
learns the mix from the arrivals, either with or without the sets of nodes that pods require.

    python -m bench.packing.node_sets [--seeds 20] [--zone 20 --insists 0.33]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from packing.fleet.fleet import Fleet
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request
from packing.policies.registry import POLICIES

NODES, GPUS_PER_NODE, MIB, GPU = 40, 8, 81_920, "nvidia.com/gpu"
MIXES: Mapping[str, Mapping[int, float]] = {
    "1": {1: 1.0},
    "1 and 8": {1: 0.7, 8: 0.3},
    "1, 2, 4 and 8": {1: 0.5, 2: 0.2, 4: 0.15, 8: 0.15},
    "8": {8: 1.0},
}
"""GPUs of pods, and their frequency."""
ZONE = "zone a"


@dataclass(frozen=True, slots=True)
class Zone:
    """The number of nodes in zone a, and the fraction of the pods that require it."""

    nodes: int = NODES // 2
    insists: float = 1 / 3

    def masks(self) -> dict[str, int]:
        """The sets that contain each node: bit 0 is zone a."""
        apart = NODES // self.nodes
        return {f"n{i}": int(i % apart == apart - 1 and i // apart < self.nodes) for i in range(NODES)}


HALF = Zone()


@dataclass(frozen=True, slots=True)
class Waiting:
    """GPUs of the pending pods, of restricted and of other ones, and free GPUs outside of zone a."""

    insisting: int
    others: int
    free_elsewhere: int

    @property
    def avoidable(self) -> int:
        """GPUs of restricted pending pods for which other pods could have made room."""
        return min(self.insisting, self.free_elsewhere)


def fill(
    policy: str, mix: Mapping[int, float], load: float, seed: int, *, sets: bool, zone: Zone = HALF
) -> Waiting:
    """One fleet, filled."""
    rng, fleet, masks = np.random.default_rng(seed), fleet_with(zone), zone.masks()
    order = np.argsort(fleet.arrays.order[:NODES], kind="stable")
    placer = Placer(fleet, POLICIES[policy](), NodePicker(order))
    in_zone = np.array([mask == 1 for mask in masks.values()] + [False] * (fleet.arrays.capacity - NODES))
    arrived, waiting = 0, {True: 0, False: 0}
    while (arrived := arrived + (gpus := int(rng.choice(list(mix), p=list(mix.values()))))) <= (
        load * NODES * GPUS_PER_NODE
    ):
        insists = bool(rng.random() < zone.insists)
        request = Request(4000 * gpus, devices=((GPU, gpus),))
        placer.arrive(replace(request, node_set=ZONE) if insists and sets else request)
        if placer.place(request, in_zone if insists else None) is None:
            waiting[insists] += gpus
    free = fleet.arrays.free_devices[0, ~in_zone].sum()
    return Waiting(waiting[True], waiting[False], int(free))


def fleet_with(zone: Zone) -> Fleet:
    """The empty nodes."""
    fleet, masks = Fleet(), zone.masks()
    fleet.tell_apart({ZONE: 0}, masks)
    pool = Pool(GPU, GPUS_PER_NODE, tuple(range(GPUS_PER_NODE)), 1000, MIB)
    for name in masks:
        fleet.put(NodeSpec(name, 128_000, 1 << 40, (Gpu(MIB),) * GPUS_PER_NODE, (pool,)))
    return fleet


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.node_sets")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--zone", type=int, default=HALF.nodes, choices=range(1, NODES + 1), metavar="NODES")
    parser.add_argument("--insists", type=float, default=HALF.insists, metavar="PART")
    args = parser.parse_args(arguments)
    zone = Zone(args.zone, args.insists)
    print(f"GPUs of avoidably pending pods, of {NODES * GPUS_PER_NODE}; mean (error)")
    print("| GPUs a pod | load | best-fit | inventory | inventory, with sets |\n|---|--:|--:|--:|--:|")
    for name, load in product(MIXES, (0.9, 1.0)):
        ways = ("best-fit", False), ("inventory", False), ("inventory", True)
        cells = [
            _cell([fill(p, MIXES[name], load, s, sets=sets, zone=zone).avoidable for s in range(args.seeds)])
            for p, sets in ways
        ]
        print(f"| {name} | {load} | {' | '.join(cells)} |", flush=True)


def _cell(gpus: Sequence[int]) -> str:
    values = np.array(gpus, float)
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else 0.0
    return f"{values.mean():.1f} ({error:.1f})"


if __name__ == "__main__":
    main()
