"""Which MIG layouts serve the observed demand best, against today's, with the price of re-partitioning.

A pool are the nodes of one GPU model that have MIG instances behind a device plugin (mixed strategy). The
demand is what runs there, and what waits and asks for MIG instances. Every pod that runs keeps an instance.
A layout is the same for all GPUs of a node, as most layouts of NVIDIA's MIG manager are; a node whose GPUs
differ today can keep that. A node changes only without pods on its GPUs, so pods that cannot move keep it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from extender.dialects.shared_gpus import MIG_PREFIX
from extender.inventory.mig_manager import LAYOUT_LABEL, STATE_LABEL
from extender.k8s.objects import Deleted, Event, Node, Upserted
from extender.plan.cluster import ClusterSource
from extender.plan.source import Step
from extender.replay.cluster_engine import as_new
from extender.replay.work import Item, Work
from packing.model.gpu_catalogue import Placement, named_model, parse_profile, placement_of
from packing.model.node_spec import NodeSpec
from packing.plan.mig_layouts import Choice, Demand, Pool, choose_layouts, layouts

WHOLE = "nvidia.com/gpu"
_NEAR = 0.1
"""By how much the memory in a profile's name may differ from its slices, in GPUs: names are rounded, and
profiles of other models differ by more."""
Amounts = Counter[str]
"""Instances, or whole GPUs, by resource."""


@dataclass(frozen=True, slots=True)
class MigPool:
    """The nodes of a model: what each has today, the layouts of one GPU that are possible, and which pods
    keep a node from changing, by name."""

    model: str
    nodes: dict[str, Amounts]
    gpus: dict[str, int]
    possible: list[dict[str, int]]
    sizes: dict[str, int]
    stuck: dict[str, str]


@dataclass(slots=True)
class MigPlan:
    """``layout``: the new layout of one GPU by node that changes; ``moves``: the pods that leave each such
    node for it; ``running``, ``waiting``, ``wanted`` (with growth) and ``served``: instances by resource."""

    pool: MigPool
    layout: dict[str, dict[str, int]]
    moves: dict[str, list[str]]
    running: Amounts
    waiting: Amounts
    wanted: Amounts
    served: Amounts
    is_best: bool

    def has(self, *, changed: bool) -> Amounts:
        """What all nodes have, today or once they have changed."""
        total: Amounts = Counter()
        for name, today in self.pool.nodes.items():
            if changed and name in self.layout:
                total.update({r: n * self.pool.gpus[name] for r, n in self.layout[name].items()})
            else:
                total.update(today)
        return total


def pools_of(work: Work) -> list[MigPool]:
    """The pools of a fleet, by model."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in work.gpu_rows:
        spec = work.fleet.specs[row]
        if spec and spec.model and _is_mixed(spec):
            found[spec.model].append(row)
    return [_pool(work, model, rows) for model, rows in sorted(found.items())]


def _is_mixed(spec: NodeSpec) -> bool:
    """Whether the node has MIG instances, and beside them at most whole GPUs."""
    profiles = [pool.profile for pool in spec.pools if pool.resource != WHOLE]
    return bool(profiles) and all(profiles) and not spec.sharing_resource


def _pool(work: Work, model: str, rows: list[int]) -> MigPool:
    nodes: dict[str, Amounts] = {}
    gpus: dict[str, int] = {}
    asked = {name for item in _items(work) for name, _ in item.request.devices if name.startswith(MIG_PREFIX)}
    for row in rows:
        spec = work.fleet.specs[row]
        assert spec is not None
        nodes[spec.name] = Counter({pool.resource: pool.total for pool in spec.pools if pool.total})
        gpus[spec.name] = len(spec.gpus)
        asked |= {pool.resource for pool in spec.pools if pool.profile}
    placements = dict(_placements(model, asked))
    possible = [*layouts(placements), {WHOLE: 1}]
    sizes = {resource: one.size for resource, one in placements.items()} | {WHOLE: _slices(model)}
    stuck = {work.name(row): why for row in rows if (why := _stuck(work, row))}
    return MigPool(model, nodes, gpus, possible, sizes, stuck)


def _items(work: Work) -> Iterator[Item]:
    yield from work.movable.values()
    yield from work.waiting


def _placements(model: str, resources: set[str]) -> Iterator[tuple[str, Placement]]:
    """Where the instances of these resources may start, for those that a GPU of the model can have."""
    known = named_model(model)
    for resource in sorted(resources):
        profile = parse_profile(resource.removeprefix(MIG_PREFIX))
        if known and known.geometry and profile:
            placement = placement_of(known.geometry, profile, known.memory_mib)
            part = profile.memory_gb * 1024 / known.memory_mib
            if placement and abs(part - placement.size / known.geometry.memory_slices) < _NEAR:
                yield resource, placement


def _slices(model: str) -> int:
    known = named_model(model)
    return known.geometry.memory_slices if known and known.geometry else 8


def _stuck(work: Work, row: int) -> str:
    """Why the node cannot change: the first pod that holds a GPU there and cannot move."""
    for key, one in sorted(work.staying_on.get(row, {}).items()):
        if one.held and (one.held.devices or one.held.shares):
            return f"{key}: {one.why}"
    return ""


def plan_layouts(work: Work, pool: MigPool, most: int, growth: float, taken: set[str]) -> MigPlan:
    """The best choice of at most ``most`` new layouts for ``growth`` times the demand. ``taken``: waiting
    pods that count in another pool; those of this one are added."""
    rows = {work.fleet.rows[name] for name in pool.nodes}
    running, waiting = in_use(work, rows), _waiting(work, pool, rows, taken)
    resources = sorted(pool.sizes.keys() | running.keys())
    groups: defaultdict[object, list[str]] = defaultdict(list)
    for name, today in pool.nodes.items():
        groups[tuple(sorted(today.items())), pool.gpus[name], name in pool.stuck].append(name)
    members = [sorted(names, key=lambda name: len(_on(work, name))) for names in groups.values()]
    firsts = [names[0] for names in members]
    with_layout = [
        [[one.get(r, 0) * pool.gpus[name] for r in resources] for one in pool.possible] for name in firsts
    ]
    wanted = {r: math.ceil((running[r] + waiting[r]) * max(growth, 1.0) - 1e-9) for r in resources}
    choice = choose_layouts(
        Pool(
            np.array([len(names) for names in members]),
            np.array([[pool.nodes[name][r] for r in resources] for name in firsts]),
            np.array(with_layout),
            [name not in pool.stuck for name in firsts],
        ),
        Demand(
            np.array([running[r] for r in resources]),
            np.array([wanted[r] for r in resources]),
            np.array([pool.sizes.get(r, 1) for r in resources]),
        ),
        most,
    )
    layout = dict(_assigned(pool, members, choice))
    moves = {name: [item.key for item in _on(work, name)] for name in layout}
    served = Counter(dict(zip(resources, choice.served.tolist(), strict=True)))
    return MigPlan(pool, layout, moves, running, waiting, Counter(wanted), served, choice.is_best)


def _assigned(
    pool: MigPool, members: list[list[str]], choice: Choice
) -> Iterator[tuple[str, dict[str, int]]]:
    """Of equal nodes those with the fewest pods change."""
    for names, row in zip(members, choice.changed, strict=True):
        left = iter(names)
        for layout, count in zip(pool.possible, row.tolist(), strict=True):
            yield from ((next(left), layout) for _ in range(count))


def _on(work: Work, name: str) -> list[Item]:
    """The movable pods with GPUs on a node."""
    return [item for item in work.items_on(work.fleet.rows[name]) if item.request.wants_gpu]


def in_use(work: Work, rows: Collection[int] | None = None) -> Amounts:
    """Counted devices that pods hold on these rows (None: all), by resource."""
    names = {number: name for name, number in work.fleet.names.resources.items()}
    total: Amounts = Counter()
    staying = (one.held for one in work.staying.values() if one.held)
    for held in (*work.at.values(), *staying):
        if rows is None or held.row in rows:
            for number, count in held.devices:
                total[names[number]] += count
    return total


def _waiting(work: Work, pool: MigPool, rows: set[int], taken: set[str]) -> Amounts:
    """MIG instances that waiting pods ask for which may run in the pool."""
    total: Amounts = Counter()
    for item in work.waiting:
        asked = [(name, n) for name, n in item.request.devices if name.startswith(MIG_PREFIX)]
        known = asked and all(name in pool.sizes for name, _ in asked)
        if known and item.key not in taken and item.rows[list(rows)].any():
            taken.add(item.key)
            total.update(dict(asked))
    return total


def carried_out(source: ClusterSource, plan: MigPlan) -> tuple[ClusterSource, list[Step]]:
    """The cluster once the nodes have changed and their pods wait, and the steps: these pods first, then the
    others that wait. The scheduler chooses the nodes."""
    state, nodes = source.state(), source.nodes()
    events: list[Event] = []
    moved = [key for keys in plan.moves.values() for key in keys]
    for key in moved:
        events += [Deleted("Pod", key), Upserted(as_new(state.pods[key]))]
    for name, layout in plan.layout.items():
        total = {resource: n * plan.pool.gpus[name] for resource, n in layout.items()}
        events.append(Upserted(_repartitioned(nodes[name], total)))
    waiting = [item.key for item in source.work_of(state).waiting]
    return source.changed(events), [Step("place", key) for key in (*moved, *waiting)]


def _repartitioned(node: Node, has: Mapping[str, int]) -> Node:
    """The node as the MIG manager and the device plugin leave it."""
    kept = {
        name: text
        for name, text in node.allocatable.items()
        if name != WHOLE and not name.startswith(MIG_PREFIX)
    }
    labels = {key: text for key, text in node.labels.items() if key not in (LAYOUT_LABEL, STATE_LABEL)}
    devices = {name: str(count) for name, count in has.items()}
    return replace(node, labels=labels, allocatable={**kept, WHOLE: "0", **devices})
