"""A trace as the source of plans: the pods that exist at its peak, packed by the default policy.

A trace does not say where pods ran, so they are placed in the order of the file, on empty nodes; those that
fit nowhere wait. Without times all pods of the file exist at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from extender.cluster.census import UNKNOWN, Census, Installed
from extender.cluster.totals import Totals
from extender.k8s.objects import Node
from extender.replay.other_room import OtherRoom
from extender.replay.simulation import Answer, Item, Simulation
from extender.replay.traces import Arrival, read_nodes, read_pods
from extender.settings import Settings
from packing.cost.demand import Mix
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.fleet.stranded import Beside, fragmentation
from packing.model.gpu_catalogue import GpuValues
from packing.policies.interface import Policy, update_now
from packing.policies.registry import POLICIES
from packing.replay.trace import build_fleet, gpus_of


class TraceSource:
    """Raises ``BadInput`` for files that cannot be read."""

    def __init__(self, nodes: Path, pods: Path, settings: Settings, *, allow_downgrade: bool = False) -> None:
        self.name = pods.stem
        self._specs = read_nodes(nodes)
        self._pods = at_peak(read_pods(pods))
        self._settings, self._allow_downgrade = settings, allow_downgrade
        self._held: dict[str, Allocation] | None = None

    def simulation(self) -> Simulation:
        fleet = build_fleet(self._specs, GpuValues(self._settings.gpu_values))
        mix, minimum = Mix.of({one.request: 1.0 for one in self._pods}), self._settings.minimum_slice_milli
        policy: Policy = POLICIES[self._settings.policy](mix, minimum_milli=minimum)
        rows = np.zeros(fleet.arrays.capacity, bool)
        rows[[*fleet.rows.values()]] = True
        learn, allow = partial(update_now, policy, fleet), self._allow_downgrade
        engine = _TraceEngine(fleet, policy)
        sim = Simulation(engine, rows, OtherRoom(rows.size), learn, allow_downgrade=allow)
        everywhere = rows.copy()
        items = [Item(one.name, one.request, everywhere) for one in self._pods]
        if self._held is None:  # the first time; from then on every pod is where it was
            self._held = {item.key: sim.held[item.key] for item in items if sim.place(item)}
        else:
            for item in items:
                if item.key in self._held:
                    sim.restore(item, self._held[item.key])
        for item in items:
            if (held := self._held.get(item.key)) is None:
                sim.waiting.append(item)
            else:
                sim.movable[item.key] = replace(item, home=held.row)
        return sim

    def census(self) -> Census:
        sim = self.simulation()
        fleet, by_model = fragmentation(sim.fleet, sim.offered(), Beside())
        models = {name or UNKNOWN: one for name, one in by_model.items()}
        used = {name: round(one.gpus - one.free, 3) for name, one in models.items()}
        totals = Totals(
            fleet.nodes,
            fleet.gpus,
            round(fleet.gpus - fleet.free, 3),
            round(fleet.free, 3),
            fleet.whole,
            fleet.whole_nodes,
            waiting=len(sim.waiting),
        )
        installed = {name: Installed(one.gpus, used[name], one.nodes) for name, one in models.items()}
        return Census(totals, fleet, models, installed)

    def nodes(self) -> Mapping[str, Node]:
        return {}


class _TraceEngine:
    """Places the requests of a trace by the policy alone: there is nothing else to know."""

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        self.fleet, self._policy = fleet, policy
        self._held: dict[str, Allocation] = {}

    def evaluate(self, item: Item) -> Answer:
        return Answer(reasons_for(self.fleet, item.request), self._policy.cost(self.fleet, item.request))

    def rejections(self, item: Item, rows: Sequence[int]) -> list[str]:
        return []

    def gang_of(self, item: Item) -> None:
        return None

    def bind(self, item: Item, row: int) -> Allocation:
        gpus = self._policy.choose(self.fleet, item.request, row)
        return self.bind_again(item, allocation_of(self.fleet, row, item.request, gpus))

    def bind_again(self, item: Item, held: Allocation) -> Allocation:
        self._held[item.key] = held
        self.fleet.take(held)
        return held

    def unbind(self, item: Item) -> None:
        self.fleet.give_back(self._held.pop(item.key))


def at_peak(pods: Sequence[Arrival]) -> list[Arrival]:
    """The pods that exist when the most GPUs are asked for; all pods if none has a time."""
    changes: list[tuple[float, int, float]] = []
    for pod in pods:
        if pod.created is not None:
            changes.append((pod.created, 1, gpus_of(pod.request)))
            if pod.deleted is not None:
                changes.append((pod.deleted, 0, -gpus_of(pod.request)))  # before those that come then
    if not changes:
        return list(pods)
    most, now, peak = 0.0, 0.0, 0.0
    for moment, _, gpus in sorted(changes):
        now += gpus
        if now > most:
            most, peak = now, moment
    return [
        pod
        for pod in pods
        if pod.created is not None and pod.created <= peak and (pod.deleted is None or pod.deleted > peak)
    ]
