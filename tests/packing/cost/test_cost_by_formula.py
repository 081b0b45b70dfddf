"""The cost of the default policy, term by term, as docs/packing.md has it: slowly, one node after the other.

Every weight is written out here, so that none can change unnoticed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.demand import Mix
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of, fitting_gpus, placed_shares
from packing.model.node_spec import Gpu, NodeSpec, Pool, resolve_on
from packing.model.request import Request, Shares, whole_gpus
from packing.policies.interface import update_now
from packing.policies.inventory import InventoryPolicy
from tests.examples import examples
from tests.packing.fleet.builders import GIB, GPU, MIG

MIB = 40_960
FILL, STRANDING, MARGIN = 8, 1.1, 0.77
SCARCITY, NEARLY, FEWEST = 1.9, 0.3, 0.3
FILLING, TURNING_OVER, HIGH_TURNOVER, VALUE = 8, 0.5, 0.6, 0.2
APART, PEER_SLOTS = 0.11, 0.4
STEP = 0.055


@dataclass(frozen=True)
class Node:
    """What is free on a node: CPU milli, MiB, (compute milli, MiB) of each GPU, devices by resource, and how
    many of these are sure to be NVLink peers; and whether several devices must be different GPUs."""

    spec: NodeSpec
    value: float
    cpu: float
    memory: float
    gpus: tuple[tuple[float, float], ...]
    devices: dict[str, int]
    peers: dict[str, int]
    separate: bool

    @property
    def free(self) -> float:
        return sum(self.part(g) for g in range(len(self.gpus)))

    def part(self, gpu: int) -> float:
        compute, memory = self.gpus[gpu]
        return compute / 2000 + memory / self.spec.gpus[gpu].memory_mib / 2

    def untouched(self, gpus: Sequence[int]) -> int:
        return sum(self.part(gpu) > 0.999 for gpu in gpus)

    def without(self, request: Request, chosen: Sequence[int]) -> Node:
        """The node once the request has these GPUs."""
        served, gpus, devices = resolve_on(self.spec, request), list(self.gpus), dict(self.devices)
        for g in chosen if served.shares else ():
            mib = served.shares.mib_of(self.spec.gpus[g].memory_mib)
            gpus[g] = gpus[g][0] - served.shares.compute_milli, gpus[g][1] - mib
        for name, count in served.devices:
            devices[name] -= count
        cpu, memory = self.cpu - request.cpu_milli, self.memory - request.memory_mib
        node = replace(self, cpu=cpu, memory=memory, gpus=tuple(gpus), devices=devices)
        for pool in self.spec.pools:
            if self.spec.is_divisible(pool):
                devices[pool.resource] = node.untouched(pool.gpus)
        return node


def node_of(fleet: Fleet, row: int) -> Node:
    spec, arrays = fleet.specs[row], fleet.arrays
    gpus = [(float(arrays.compute[g, row]), float(arrays.memory[g, row])) for g in range(len(spec.gpus))]
    numbers = {pool.resource: fleet.names.resources[pool.resource] for pool in spec.pools}
    devices = {name: int(arrays.free_devices[number, row]) for name, number in numbers.items()}
    peers = {name: int(arrays.free_peers[number, row]) for name, number in numbers.items()}
    free = float(arrays.cpu[row]), float(arrays.node_memory[row])
    return Node(
        spec, float(arrays.gpu_value[row]), *free, tuple(gpus), devices, peers, fleet.separate == "require"
    )


def expected(room: float) -> float:
    """Whole slots, and what counts of the next one, in steps of 1/1024."""
    whole = math.floor(room + 1e-4)
    return whole + math.floor(1024 * NEARLY * max(room - whole, 0) ** 3) / 1024


def pool_of(spec: NodeSpec, resource: str) -> Pool | None:
    return next((pool for pool in spec.pools if pool.resource == resource), None)


def slots(node: Node, request: Request) -> float:
    """How many more such requests the node takes."""
    found, part, spec = math.inf, request.shares, node.spec
    if request.models is not None and spec.model not in request.models:
        return 0
    if part:
        if part.resource != spec.sharing_resource:
            return 0
        units = 0.0
        for gpu, (compute, memory) in zip(spec.gpus, node.gpus, strict=True):
            needs = part.compute_milli, part.memory_mib + part.memory_milli * gpu.memory_mib / 1000
            room = min(free / need for free, need in zip((compute, memory), needs, strict=True) if need)
            units += gpu.divisible * min(expected(room), 1 if part.count > 1 else math.inf)
        found = units if part.count == 1 else expected(units / part.count)
    by_host = [
        free / asked
        for free, asked in ((node.cpu, request.cpu_milli), (node.memory, request.memory_mib))
        if asked
    ]
    found = min([found, *by_host]) if min(by_host, default=1) >= 1 else 0
    for name, count in request.devices:
        if (pool := pool_of(spec, name)) is None:
            return 0
        doubtful = node.separate and request.together > 1 and count > 1
        separate = pool.separate if doubtful and pool.separate is not None else pool.total
        unsure = pool.total - separate
        room = max(node.devices[name] - unsure, 0) / count
        found = min(found, expected(room), max(pool.total - unsure, 0) // count)
    return found


def size_on(spec: NodeSpec, request: Request) -> float:
    """GPUs that the request takes on a node, the mean of its parts of compute and memory."""
    if not spec.gpus:
        return 0
    mib, size = spec.gpus[0].memory_mib, 0.0
    for name, count in request.devices:
        if pool := pool_of(spec, name):
            size += count * (pool.compute_milli / 1000 + pool.memory_mib / mib) / 2
    if part := request.shares:
        memory = part.memory_milli / 1000 + part.memory_mib / mib
        size += part.count * (part.compute_milli / 1000 + memory) / 2
    return size


def size_of(nodes: Sequence[Node], request: Request) -> float:
    """The mean over the nodes that could take it."""
    able = [
        node
        for node in nodes
        if size_on(node.spec, request) and (request.models is None or node.spec.model in request.models)
    ]

    def gives(node: Node) -> bool:
        spec = node.spec
        pools = [(pool_of(spec, name), count) for name, count in request.devices if count > 1]
        return (
            not node.separate
            or request.together < 2
            or all(
                pool is None or (pool.total if pool.separate is None else pool.separate) >= count
                for pool, count in pools
            )
        )

    sizes = [size_on(node.spec, request) for node in able if gives(node)]
    return sum(sizes) / len(sizes) if sizes else 0


class Formula:
    """The cost of placements on these nodes once so many pods have arrived, with the mix and the fill tables
    of a policy."""

    def __init__(self, nodes: Sequence[Node], policy: InventoryPolicy, arrived: int) -> None:
        self.nodes, self.tables = nodes, policy.tables
        slotted = zip(self.tables.slotted.requests, self.tables.slotted.frequency, strict=True)
        self.types = [(request, x) for request, x in slotted if request.wants_gpu]
        known = zip(self.tables.mix.requests, self.tables.mix.frequency, strict=True)
        mix = [(request, x) for request, x in known if request.wants_gpu]
        gpus = sum(x * size_of(nodes, request) for request, x in mix)
        used = sum(len(node.gpus) - node.free for node in nodes)
        turnover = max(1 - used / (arrived * gpus), 0) if arrived * gpus else 0
        self.size_weight = FILLING if turnover < HIGH_TURNOVER else TURNING_OVER
        raw, worth = [], 0.0
        for request, x in self.types:
            size, in_all = size_of(nodes, request), sum(slots(node, request) for node in nodes)
            filled = size * max(in_all, FEWEST)
            raw.append(x * size ** (1 + turnover) / filled**SCARCITY if size else 0)
            worth += raw[-1] * in_all
        scale = sum(node.free for node in nodes) / worth if worth else 0
        self.prices = [scale * price for price in raw]
        self.per_gpu = MARGIN * sum(x * request.cpu_milli for request, x in mix) / gpus if gpus else 0
        self.most_peers = max(max(map(len, node.spec.peers), default=0) for node in nodes)

    def terms(self, before: Node, request: Request, chosen: Sequence[int]) -> dict[str, float]:
        after, size = before.without(request, chosen), self.size(before, request, chosen)
        return {
            "slots": sum(
                price * max(slots(before, kind) - slots(after, kind), 0)
                for (kind, _), price in zip(self.types, self.prices, strict=True)
            ),
            "fill": FILL * sum(self.value(before, g) - self.value(after, g) for g in chosen),
            "stranding": STRANDING
            * (self.stranded(before.free - size, after.cpu) - self.stranded(before.free, before.cpu)),
            "islands": self.islands(before, after, request, chosen),
            "device": self.device(before.spec, request),
        }

    def size(self, node: Node, request: Request, chosen: Sequence[int]) -> float:
        """GPUs that the request takes of the node."""
        served = resolve_on(node.spec, request)
        return sum(
            (served.shares.compute_milli / 1000 + served.shares.mib_of(gpu.memory_mib) / gpu.memory_mib) / 2
            for gpu in (node.spec.gpus[g] for g in chosen)
        ) + size_on(node.spec, replace(served, shares=None))

    def stranded(self, free: float, cpu: float) -> float:
        """Free GPU for which the CPU does not suffice."""
        return max(free - cpu / self.per_gpu, 0) if self.per_gpu else 0

    def value(self, node: Node, gpu: int) -> float:
        """The fill value of what is free of a GPU, at the nearest point of the table."""
        (compute, memory), mib = node.gpus[gpu], node.spec.gpus[gpu].memory_mib
        smaller = [k for k, size in enumerate(self.tables.memory_mib) if size <= mib]
        table = self.tables.fill[max(smaller, default=0)]
        bins = len(table) - 1
        return float(table[int(compute * bins / 1000 + 0.5), int(memory * bins / mib + 0.5)])

    def device(self, spec: NodeSpec, request: Request) -> float:
        """More than the least that any node could give."""

        def cost(node: Node) -> float:
            worth = (self.size_weight if request.devices else 0) + VALUE * node.value / (1 + node.value)
            return size_on(node.spec, request) * worth

        able = [
            node
            for node in self.nodes
            if size_on(node.spec, request)
            and (request.models is None or node.spec.model in request.models)
            and all(
                (pool := pool_of(node.spec, name)) and pool.total >= count for name, count in request.devices
            )
        ]
        own = [cost(node) for node in able if node.spec is spec]
        return own[0] - min(map(cost, able)) if own else 0

    def islands(self, before: Node, after: Node, request: Request, chosen: Sequence[int]) -> float:
        """Peers are worth something, and so are the slots for several GPUs that islands keep."""
        spec = before.spec
        if not (spec.islands or spec.no_nvlink):
            return 0
        free = [g for g in range(len(spec.gpus)) if before.part(g) > 0.999]
        taken = self.taken(before, request, chosen)
        cost, several = 0.0, len(spec.peers) > 1 and bool(spec.islands)
        if request.gpus > 1:
            cost += APART * request.gpus * self.apart(before, request, chosen)
        if not several:
            return cost
        for (kind, _), price in zip(self.types, self.prices, strict=True):
            partial = kind.shares and kind.shares.compute_milli < 1000
            held = slots(before, kind)
            if kind.gpus < 2 or partial or kind.gpus > self.most_peers or not held:
                continue
            limits = min(slots(after, replace(kind, shares=None)), held)

            def together(left: Sequence[int], size: int = kind.gpus) -> int:
                return sum(len(set(island) & set(left)) // size for island in spec.peers)

            left = [g for g in free if g not in taken]
            in_islands = min(together(free), held) - min(together(left), limits)
            anywhere = held - min(len(left) // kind.gpus, limits)
            cost += PEER_SLOTS * price * (in_islands - anywhere)
        return cost

    def apart(self, node: Node, request: Request, chosen: Sequence[int]) -> float:
        """-1 for peers, 1 for others, -0.5 where the device plugin may find peers."""
        spec, whole = node.spec, self.whole(node.spec, request)
        if len(spec.peers) == 1:
            return -1
        if chosen:
            return -1 if spec.islands and any(set(chosen) <= set(island) for island in spec.peers) else 1
        if not (whole and spec.islands):
            return 1
        if all(count <= node.peers[name] for name, count in resolve_on(spec, request).devices):
            return -1
        return -0.5 if whole <= max(node.untouched(island) for island in spec.peers) else 1

    def tie(self, node: Node, request: Request, chosen: Sequence[int]) -> float:
        """0 to 1: what is free; where islands are known, half of it the part of an island that is split."""
        rest = node.free + (node.cpu / self.per_gpu if self.per_gpu else 0)
        spec, tie = node.spec, rest / (1 + rest)
        if not (spec.islands or spec.no_nvlink):
            return tie
        split = [
            node.untouched(island)
            for island in spec.peers
            if set(island) & set(self.taken(node, request, chosen))
        ]
        whole = max(split, default=0) if spec.islands else 0
        return (tie + whole / 64) / 2

    def taken(self, node: Node, request: Request, chosen: Sequence[int]) -> list[int]:
        """The untouched GPUs that the request gets; a device plugin gives the first ones."""
        free = [g for g in range(len(node.gpus)) if node.part(g) > 0.999]
        return [g for g in free if g in chosen] if chosen else free[: self.whole(node.spec, request)]

    def whole(self, spec: NodeSpec, request: Request) -> int:
        """Whole GPUs that the device plugin gives."""
        pools = [(pool_of(spec, name), count) for name, count in resolve_on(spec, request).devices]
        return sum(count for pool, count in pools if pool and pool.is_whole)


def idle_part(fleet: Fleet, row: int) -> float:
    """The part of the nodes in the domain of a node of which nothing is taken, mean over the levels."""
    racks = {name: fleet.network.of(name) for name in fleet.rows}
    levels = [level for level in range(4) if any(racks[name][level] for name in racks)]
    name, parts = fleet.specs[row].name, 0.0
    for level in levels:
        if not racks[name][level]:
            continue
        inside = [other for other in racks if racks[other][level] == racks[name][level]]
        idle = [other for other in inside if untouched_node(fleet, fleet.rows[other])]
        parts += len(idle) / len(inside) / len(levels)
    return parts


def untouched_node(fleet: Fleet, row: int) -> bool:
    node = node_of(fleet, row)
    return node.untouched(range(len(node.gpus))) == len(node.gpus)


ISLANDS = (), ((0, 1), (2, 3)), ((0, 1, 2, 3),), ((0, 1, 2),)
KINDS = [
    Request(2000, 4 * GIB, shares=Shares(1, 250, memory_milli=250)),
    Request(1000, 2 * GIB, shares=Shares(1, 400, memory_mib=8192)),
    Request(6000, 20 * GIB, shares=Shares(2, 500, memory_milli=500)),
    Request(8000, 8 * GIB, shares=whole_gpus(1)),
    Request(9000, 64 * GIB, shares=whole_gpus(2)),
    Request(4000, 16 * GIB, devices=((GPU, 1),)),
    Request(8000, 32 * GIB, devices=((GPU, 2),), together=2),
    Request(16_000, 64 * GIB, devices=((GPU, 4),), together=4),
    Request(3000, 4 * GIB, devices=((MIG, 2),)),
    Request(8000, 8 * GIB, devices=((GPU, 1),), models=frozenset({"T4"})),
    Request(5000, 8 * GIB),
]


def random_node(draw: random.Random, name: str) -> NodeSpec:
    """GPUs that are cut one by one, whole ones behind a device plugin or placed, replicas, or instances."""
    kind = draw.choice(["cut", "placed", "counted", "replicas", "instances"])
    mib, number = draw.choice([MIB, 2 * MIB]), draw.choice([2, 4])
    islands = draw.choice(ISLANDS) if number == 4 else ()
    gpus, all_of_them = (Gpu(mib, divisible=kind in ("cut", "placed")),) * number, tuple(range(number))
    pools = {
        "placed": (Pool(GPU, number, all_of_them, 1000, mib),),
        "counted": (Pool(GPU, number, all_of_them, 1000, mib),),
        "replicas": (Pool(GPU, 2 * number, all_of_them, 500, mib // 2, separate=number),),
        "instances": (Pool(MIG, 7 * number, all_of_them, 142, mib // 8, profile="1g"),),
    }
    return NodeSpec(
        name,
        draw.choice([16_000, 32_000, 64_000]),
        draw.choice([128, 512]) * GIB,
        gpus,
        pools.get(kind, ()),
        draw.choice([None, "T4", "H100 SXM5 80GB"]),
        islands,
        sharing_resource=GPU if kind == "placed" else "",
        no_nvlink=not islands and draw.random() < 0.3,
    )


def place(fleet: Fleet, policy: InventoryPolicy, request: Request, row: int) -> None:
    fleet.take(allocation_of(fleet, row, request, policy.choose(fleet, request, row)))


@settings(max_examples=examples(150))
@given(seed=st.integers(0, 1 << 32))
def test_costs_are_those_of_the_formula(seed: int) -> None:
    draw = random.Random(seed)
    fleet, arrived = Fleet(nodes=6, gpus=4), draw.choice([0, 10, 60])
    fleet.separate = draw.choice(["prefer", "require"])
    for number in range(6):
        fleet.put(random_node(draw, f"n{number}"))
        if draw.random() < 0.5:
            fleet.network.put(f"n{number}", (f"rack {number // 2}", "", draw.choice(["", "spine"]), ""))
    weights = {request: draw.randint(1, 9) for request in draw.sample(KINDS, 6)}
    policy = InventoryPolicy(Mix.of(weights))
    for _ in range(arrived):
        policy.observe(KINDS[0])
    update_now(policy, fleet)
    for _ in range(draw.randint(0, 14)):
        request, row = draw.choice(KINDS), draw.randrange(6)
        if math.isfinite(policy.cost(fleet, request)[row]):
            place(fleet, policy, request, row)
    update_now(policy, fleet)
    nodes = [node_of(fleet, row) for row in range(6)]
    formula = Formula(nodes, policy, arrived)
    for request in KINDS:
        cost = policy.cost(fleet, request).tolist()
        for row in range(6):
            if math.isfinite(cost[row]):
                check(formula, fleet, policy, request, row, cost[row])


def check(
    formula: Formula, fleet: Fleet, policy: InventoryPolicy, request: Request, row: int, cost: float
) -> None:
    """The terms, the choice of the GPU, and the cost: rounded up, less than a step for ties, and domains."""
    node, chosen = formula.nodes[row], policy.choose(fleet, request, row)
    right, found = formula.terms(node, request, chosen), policy.terms(fleet, request, row)
    assert {name: found[name] for name in right} == pytest.approx(right, abs=0.02, rel=0.01)
    part = placed_shares(fleet, row, request)
    if part and part.count == 1:
        others = [formula.terms(node, request, (gpu,)) for gpu in fitting_gpus(fleet, row, request)]
        least = min(sum(terms.values()) for terms in others)
        assert sum(right.values()) == pytest.approx(least, abs=0.02, rel=0.01)
    more = formula.tie(node, request, chosen) + idle_part(fleet, row)
    steps = {math.ceil(sum(found[name] for name in right) / STEP + error) for error in (-1e-4, 1e-4)}
    assert any(cost == pytest.approx(STEP * (step + more), abs=1e-3) for step in steps)
