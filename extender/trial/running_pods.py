"""Running pods by node, and their ends in many futures, on which forecasts and reservations rest."""

from __future__ import annotations

import zlib

import numpy as np

from extender.background import with_turns
from extender.cluster.state import State
from extender.verbs.eviction.node_pods import gpus_held
from packing.fleet.arrays import Doubles
from packing.model.lifetimes import stratified
from packing.plan.starts import Running

FUTURES = 64


def running_on(state: State, row: int) -> list[Running]:
    """The pods on a row, and their ends in ``FUTURES``."""
    spec, found = state.fleet.specs[row], []
    for pod in state.pods.on_node(spec.name) if spec else ():
        held = tuple(allocation for allocation in state.pods.allocations_of(pod) if allocation.row == row)
        ends = state.end_costs.remaining(pod, part_that_ends_before(pod.uid))
        found.append(Running(pod.key, held, ends))
    return found


async def free_soon(state: State) -> Doubles:
    """(N,) the GPUs of each node that are free now, and the more of those in use the sooner they are expected
    to be free."""
    half = np.array([0.5])
    soon: Doubles = state.fleet.arrays.free_parts().sum(axis=0, dtype=np.float64)
    mean = state.end_costs.ends.lifetimes.mean
    async for key, running in with_turns(list(state.end_costs.ends.running.items()), 25):
        pod, row = state.pods.get(key), state.fleet.rows.get(running.node)
        if pod is not None and row is not None and row < soon.size:
            ends = float(state.end_costs.remaining(pod, half)[0])
            held = state.pods.allocations_of(pod)
            soon[row] += gpus_held(state.fleet, held) / (1 + ends / max(mean, 1.0))
    return soon


def part_that_ends_before(uid: str) -> Doubles:
    """(FUTURES,) numbers between 0 and 1, the same for a pod in all forecasts."""
    return stratified(zlib.crc32(uid.encode()), FUTURES)
