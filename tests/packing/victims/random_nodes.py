"""Random nodes with victims on them, and requests that do not fit there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, fitting_gpus, placed_shares
from packing.model.mig_instances import Instance, window
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import NameFilter, Request, Shares
from packing.victims.amounts import Holdings
from packing.victims.search import VictimSearch
from packing.victims.victims import Cost, GangCost, Victims, VictimSet

GPU, MIG1, MIG3, SHARE = (
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-3g.40gb",
    "example.com/share",
)
MIB, GIB = 80_000, 1 << 30
MIG_7_8 = (
    Instance("1g.10gb", 142, 10_000, tuple(window(i, 1) for i in range(7))),
    Instance("1g.20gb", 142, 20_000, tuple(window(i, 2) for i in (0, 2, 4, 6))),
    Instance("2g.20gb", 285, 20_000, tuple(window(i, 2) for i in (0, 2, 4))),
    Instance("3g.40gb", 428, 40_000, (window(4, 4), window(0, 4))),
    Instance("4g.40gb", 571, 40_000, (window(0, 4),)),
    Instance("7g.80gb", 1000, 80_000, (window(0, 8),)),
)
"""The placements of a GPU with seven compute and eight memory slices."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may be evicted: what it holds of the node, its cost, and the index of its gang."""

    held: tuple[Allocation, ...]
    cost: Cost
    gang: int = -1


def as_arrays(
    victims: Sequence[Victim],
    gangs: Sequence[GangCost] = (),
    required: Collection[int] = (),
    proposed: Collection[int] = (),
) -> Victims:
    """These victims, none of whom stays."""
    width = len(next((one for one in [*(v.cost for v in victims), *(g.whole for g in gangs)] if one), (0.0,)))
    costs = np.array([victim.cost for victim in victims], np.float64).reshape(len(victims), width)
    gang_of = np.array([victim.gang for victim in victims], np.int64)
    return Victims(costs, gang_of, np.zeros(len(victims), np.bool_), gangs, required, proposed)


def search_among(
    fleet: Fleet,
    request: Request,
    victims: Sequence[Victim],
    gangs: Sequence[GangCost] = (),
    required: Collection[int] = (),
    proposed: Collection[int] = (),
    *,
    row: int = 0,
    roughly: bool = False,
) -> VictimSet | None:
    """What is found on this row."""
    holdings = Holdings.of(fleet, row, [victim.held for victim in victims])
    arrays = as_arrays(victims, gangs, required, proposed)
    return VictimSearch(fleet, request).among(row, holdings, arrays, roughly=roughly)


@dataclass(frozen=True, slots=True)
class Case:
    """A node in row 0 of a fleet, who may be evicted there, and for whom."""

    fleet: Fleet
    request: Request
    victims: list[Victim]
    gangs: list[GangCost]
    required: frozenset[int]
    proposed: tuple[int, ...] = ()

    @property
    def as_arrays(self) -> Victims:
        return as_arrays(self.victims, self.gangs, self.required, self.proposed)


def random_spec(rng: random.Random, gpus: int) -> NodeSpec:
    """A node of one of the kinds: whole GPUs, static MIG and replicas, shares, MIG on demand, both."""
    kind = rng.choice(["counted", "static", "shares", "mig", "mixed", "plain"])
    cpu, memory = rng.choice([8, 16, 64]) * 1000, rng.choice([8, 64]) * GIB
    every = tuple(range(gpus))
    islands = rng.choice([(), (every,), (every[: gpus // 2], every[gpus // 2 :]), (every[::2], every[1::2])])
    if kind == "counted":
        pools = (Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB),)
        return NodeSpec("n", cpu, memory, (Gpu(MIB),) * gpus, pools, islands=islands)
    if kind == "static":
        first = tuple(range(gpus))
        pools = Pool(MIG1, 2 * gpus, first, 142, 10_000), Pool(MIG3, gpus, first, 428, 40_000)
        return NodeSpec("n", cpu, memory, (Gpu(MIB),) * gpus, pools, islands=islands)
    share = Gpu(MIB, divisible=True, slots=rng.choice([1 << 20, 2, 3]))
    cut = Gpu(MIB, divisible=True, instances=MIG_7_8)
    cards = [cut if kind == "mig" or (kind == "mixed" and rng.random() < 0.5) else share for _ in range(gpus)]
    if rng.random() < 0.2:
        cards[0] = Gpu(MIB, divisible=False)
    cards = [Gpu(g.memory_mib, g.divisible, 1000, g.slots, f"u{i}", g.instances) for i, g in enumerate(cards)]
    pool = Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB)
    if kind == "plain":
        return NodeSpec("n", cpu, memory, tuple(cards), islands=islands)
    counted = (Pool(MIG1, 4, (), 142, 10_000),) if rng.random() < 0.3 else ()
    sharing = rng.choice([GPU, SHARE])
    return NodeSpec(
        "n", cpu, memory, tuple(cards), (pool, *counted), islands=islands, sharing_resource=sharing
    )


def random_request(rng: random.Random, spec: NodeSpec, gpus: int) -> Request:
    """What a pod may ask of the node, mostly possible."""
    cpu = rng.choice([0, 0, 500, 1000, 4000])
    memory = rng.choice([0, 0, GIB, 3 * GIB])
    resources = [pool.resource for pool in spec.pools]
    devices, shares = [], None
    if not resources or (spec.gpus[-1].divisible and rng.random() < 0.7):
        count = rng.choice([1, 1, 1, 2, gpus])
        milli, part = rng.choice(
            [(100, 100), (250, 250), (428, 400), (500, 500), (1000, 1000), (0, 300), (300, 0)]
        )
        fixed = rng.choice([0, 0, 5000])
        memory = fixed if part < 1000 else 0
        slots = rng.choice([1, 1, 1, 2])
        shares = Shares(min(count, gpus), milli, memory, part or 1, spec.sharing_resource, slots=slots)
    for name in rng.sample(resources, min(len(resources), rng.choice([1, 1, 2]))):
        if shares is None or (name != spec.sharing_resource and rng.random() < 0.3):
            devices.append((name, rng.choice([1, 1, 2, 3])))
    uuids = NameFilter((frozenset({"u0", "u1"}),)) if shares and rng.random() < 0.1 else NameFilter()
    return Request(cpu, memory, tuple(devices), shares, island=rng.random() < 0.3, uuids=uuids)


def random_case(seed: int, pods: int = 8, gpus: int = 3, spread: int = 6) -> Case:
    """A filled node and a request; ``spread``: how many different costs there are."""
    rng = random.Random(seed)
    gpus = rng.randint(1, gpus)
    fleet = Fleet(nodes=1, gpus=gpus)
    spec = random_spec(rng, gpus)
    fleet.put(spec)
    held = []
    for _ in range(rng.randint(1, pods)):
        one = _random_allocation(rng, fleet, spec, gpus)
        fleet.take(one)
        held.append((one,))
    width = rng.randint(1, 4)
    gangs = [
        GangCost(rng.randint(0, 3), random_cost(rng, width, spread * 2) if rng.random() < 0.6 else None)
        for _ in range(rng.choice([0, 0, 1, 2]))
    ]
    victims = [
        Victim(one, random_cost(rng, width, spread), rng.randint(-1, len(gangs) - 1) if gangs else -1)
        for one in held
        if rng.random() < 0.9
    ]
    required = frozenset(v for v in range(len(victims)) if rng.random() < rng.choice([0, 0, 0.2]))
    return Case(fleet, random_request(rng, spec, gpus), victims, gangs, required)


def random_replicas(seed: int) -> Case:
    """Replicas of some GPUs with pods on them, and a container that wants several different GPUs."""
    rng = random.Random(seed)
    gpus, of_each = rng.randint(1, 5), rng.randint(2, 4)
    pool = Pool(GPU, gpus * of_each, tuple(range(gpus)), 1000 // of_each, MIB // of_each, separate=gpus)
    fleet = Fleet(nodes=1, gpus=gpus)
    fleet.put(NodeSpec("n", 64_000, 64 * GIB, (Gpu(MIB),) * gpus, (pool,)))
    victims = []
    while fleet.arrays.free_devices[0, 0] > 0 and len(victims) < 8:
        count = rng.randint(1, min(2, int(fleet.arrays.free_devices[0, 0])))
        held = allocation_of(fleet, 0, Request(devices=((GPU, count),)))
        fleet.take(held)
        victims.append(Victim((held,), random_cost(rng, 2, 6)))
    count = rng.randint(2, 4)
    request = Request(devices=((GPU, count),), together=count, separate="require")
    return Case(fleet, request, victims, [], frozenset())


def random_cost(rng: random.Random, width: int, spread: int) -> tuple[float, ...]:
    """A cost with at least one positive component."""
    cost = [float(rng.randint(0, spread)) for _ in range(width)]
    cost[rng.randrange(width)] += 1
    return tuple(cost)


def set_of(case: Case, chosen: Collection[int]) -> VictimSet | None:
    """The set of exactly these victims with its cost; None if a gang would be left as a useless rest."""
    victims, gang_of = tuple(sorted(chosen)), [victim.gang for victim in case.victims]
    whole: list[int] = []
    for number, leaving in sorted(Counter(gang_of[v] for v in victims if gang_of[v] >= 0).items()):
        if leaving > case.gangs[number].spare:
            if case.gangs[number].whole is None or leaving < gang_of.count(number):
                return None
            whole.append(number)
    parts = [cost for number in whole if (cost := case.gangs[number].whole) is not None]
    parts += [case.victims[v].cost for v in victims if gang_of[v] not in whole]
    none = (0.0,) * case.as_arrays.costs.shape[1]
    return VictimSet(victims, tuple(whole), tuple(map(sum, zip(none, *parts, strict=True))))


def cheapest_by_exhaustion(case: Case) -> VictimSet | None:
    """The slow, obvious search: every set that gangs allow, the smallest first."""
    best: VictimSet | None = None
    for size in range(len(case.victims) + 1):
        for chosen in combinations(range(len(case.victims)), size):
            if not case.required <= set(chosen):
                continue
            found = set_of(case, chosen)
            if found is None or (best is not None and best.cost <= found.cost):
                continue
            if fits_without(case, chosen):
                best = found
    return best


def units_in(case: Case, found: VictimSet) -> list[set[int]]:
    """The single victims and the whole gangs of a set."""
    gang_of = [victim.gang for victim in case.victims]
    units = [{v} for v in found.victims if gang_of[v] not in found.gangs]
    return units + [{v for v in found.victims if gang_of[v] == gang} for gang in found.gangs]


def fits_without(case: Case, chosen) -> bool:
    """Whether the request fits on the node without these victims."""
    with case.fleet.without([held for v in chosen for held in case.victims[v].held]):
        return bool(reasons_for(case.fleet, case.request)[0] == Reason.FITS)


def _random_allocation(rng: random.Random, fleet: Fleet, spec: NodeSpec, gpus: int) -> Allocation:
    """What a running pod holds, mostly something that was free."""
    request = random_request(rng, spec, gpus)
    part = placed_shares(fleet, 0, request)
    if part is None:
        return allocation_of(fleet, 0, request)
    free = fitting_gpus(fleet, 0, request)
    if len(free) < part.count or rng.random() < 0.1:
        free = list(range(gpus))
    return allocation_of(fleet, 0, request, rng.sample(free, min(part.count, len(free))))
