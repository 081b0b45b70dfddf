"""Which MIG layouts serve the observed demand best, against today's, with the price of re-partitioning.

A pool are the nodes of one GPU model that have MIG instances behind a device plugin (mixed strategy). The
demand is what runs there, and what waits and asks for MIG instances. Every pod that runs keeps an instance.
A layout is the same for all GPUs of a node, as most layouts of NVIDIA's MIG manager are; a node whose GPUs
differ today can keep that. A node changes only without pods on its GPUs, so pods that cannot move keep it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from extender.cluster.demand import gpus_of
from extender.dialects.shared_gpus import MIG_PREFIX
from extender.inventory.devices import LAYOUT_LABEL, STATE_LABEL
from extender.k8s.objects import Deleted, Event, Node, Upserted
from extender.plan.report import UNKNOWN, Cell, Gain, Progress, Report, Table
from extender.plan.source import ClusterSource
from extender.replay.steps import Step, carry_out, largest_that_holds
from extender.replay.trial import Item, Trial
from extender.untrusted.visible import many
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
    """``then``: what each node that changes has afterwards, ``moves``: the pods that leave it for that, and
    ``work``: in GPU-seconds, what these have done.
    ``running``, ``waiting``, ``wanted`` (with growth) and ``served``: instances by resource."""

    pool: MigPool
    layout: dict[str, dict[str, int]]
    then: dict[str, Amounts]
    moves: dict[str, list[str]]
    work: float
    running: Amounts
    waiting: Amounts
    wanted: Amounts
    served: Amounts
    is_best: bool


def pools_of(trial: Trial) -> list[MigPool]:
    """The pools of a fleet, by model."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in trial.gpu_rows:
        spec = trial.fleet.specs[row]
        if spec and spec.model and _is_mixed(spec):
            found[spec.model].append(row)
    return [_pool(trial, model, rows) for model, rows in sorted(found.items())]


def _is_mixed(spec: NodeSpec) -> bool:
    """Whether the node has MIG instances, and beside them at most whole GPUs."""
    profiles = [pool.profile for pool in spec.pools if pool.resource != WHOLE]
    return bool(profiles) and all(profiles) and not spec.sharing_resource


def _pool(trial: Trial, model: str, rows: list[int]) -> MigPool:
    specs = [spec for row in rows if (spec := trial.fleet.specs[row])]
    items = [*trial.movable.values(), *trial.waiting]
    asked = {name for item in items for name, _ in item.request.devices if name.startswith(MIG_PREFIX)}
    asked |= {pool.resource for spec in specs for pool in spec.pools if pool.profile}
    placements = dict(_placements(model, asked))
    known = named_model(model)
    slices = known.geometry.memory_slices if known and known.geometry else 8
    return MigPool(
        model,
        {
            spec.name: Counter({pool.resource: pool.total for pool in spec.pools if pool.total})
            for spec in specs
        },
        {spec.name: len(spec.gpus) for spec in specs},
        [*layouts(placements), {WHOLE: 1}],
        {resource: placement.size for resource, placement in placements.items()} | {WHOLE: slices},
        {trial.name(row): why for row in rows if (why := _stuck(trial, row))},
    )


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


def _stuck(trial: Trial, row: int) -> str:
    """Why the node cannot change: the first pod that holds a GPU there and cannot move."""
    for key, staying in sorted(trial.staying_on[row].items()):
        if staying.held and (staying.held.devices or staying.held.shares):
            return f"{key}: {staying.why}"
    return ""


def plan_layouts(trial: Trial, pool: MigPool, most: int, growth: float, taken: set[str]) -> MigPlan:
    """The best choice of at most ``most`` new layouts for ``growth`` times the demand. ``taken``: waiting
    pods that count in another pool; those of this one are added."""
    rows = {trial.fleet.rows[name] for name in pool.nodes}
    running, waiting = in_use(trial, rows), _waiting(trial, pool, rows, taken)
    resources = sorted(pool.sizes.keys() | running.keys())
    groups: defaultdict[object, list[str]] = defaultdict(list)
    on = {name: _items_on(trial, name) for name in pool.nodes}
    for name, today in pool.nodes.items():
        kind = tuple(sorted(today.items())), pool.gpus[name], name in pool.stuck, len(on[name])
        groups[kind].append(name)
    members = [sorted(names, key=lambda name: _work(trial, on[name])) for names in groups.values()]
    firsts = [names[0] for names in members]
    with_layout = [
        [[possible.get(r, 0) * pool.gpus[name] for r in resources] for possible in pool.possible]
        for name in firsts
    ]
    wanted = {r: math.ceil((running[r] + waiting[r]) * max(growth, 1.0) - 1e-9) for r in resources}
    choice = choose_layouts(
        Pool(
            np.array([len(names) for names in members]),
            np.array([[pool.nodes[name][r] for r in resources] for name in firsts]),
            np.array(with_layout),
            [name not in pool.stuck for name in firsts],
            np.array([len(on[name]) for name in firsts]),
        ),
        Demand(
            np.array([running[r] for r in resources]),
            np.array([wanted[r] for r in resources]),
            np.array([pool.sizes.get(r, 1) for r in resources]),
        ),
        most,
    )
    layout = dict(_assigned(pool, members, choice))
    return MigPlan(
        pool,
        layout,
        {
            name: Counter({r: n * pool.gpus[name] for r, n in counts.items()})
            for name, counts in layout.items()
        },
        {name: [item.key for item in on[name]] for name in layout},
        sum(_work(trial, on[name]) for name in layout),
        running,
        waiting,
        Counter(wanted),
        Counter(dict(zip(resources, choice.served.tolist(), strict=True))),
        choice.is_best,
    )


def _assigned(
    pool: MigPool, members: list[list[str]], choice: Choice
) -> Iterator[tuple[str, dict[str, int]]]:
    """Of equal nodes the first ones change."""
    for names, row in zip(members, choice.changed, strict=True):
        left = iter(names)
        for layout, count in zip(pool.possible, row.tolist(), strict=True):
            yield from ((next(left), layout) for _ in range(count))


def _items_on(trial: Trial, name: str) -> list[Item]:
    """The movable pods with GPUs on a node."""
    return [item for item in trial.items_on(trial.fleet.rows[name]) if item.request.wants_gpu]


def _work(trial: Trial, items: list[Item]) -> float:
    """GPU-seconds since these pods started, as far as that is known."""
    now = max((item.since for item in trial.movable.values()), default=0.0)
    return sum(gpus_of(trial.fleet, item.request) * (now - item.since) for item in items if item.since)


def in_use(trial: Trial, rows: Collection[int] | None = None) -> Amounts:
    """Counted devices that pods hold on these rows (None: all), by resource."""
    names = {number: name for name, number in trial.fleet.names.resources.items()}
    total: Amounts = Counter()
    staying = (pinned.held for pinned in trial.staying.values() if pinned.held)
    for held in (*trial.held.values(), *staying):
        if rows is None or held.row in rows:
            for number, count in held.devices:
                total[names[number]] += count
    return total


def _waiting(trial: Trial, pool: MigPool, rows: set[int], taken: set[str]) -> Amounts:
    """MIG instances that waiting pods ask for which may run in the pool."""
    total: Amounts = Counter()
    for item in trial.waiting:
        asked = [(name, n) for name, n in item.request.devices if name.startswith(MIG_PREFIX)]
        known = asked and all(name in pool.sizes for name, _ in asked)
        if known and item.key not in taken and item.rows[list(rows)].any():
            taken.add(item.key)
            total.update(dict(asked))
    return total


def _carried_out(source: ClusterSource, trial: Trial, plans: list[MigPlan]) -> tuple[Amounts, dict[str, str]]:
    """What is in use, by resource, once the nodes have changed, and which pods ran and find no place then,
    and why. The pods that left their nodes are placed first, then the others that wait."""
    nodes, events = source.nodes(), list[Event]()
    moved = [key for plan in plans for keys in plan.moves.values() for key in keys]
    for key in moved:
        events += [Deleted("Pod", key), Upserted(trial.movable[key].pod)]
    events += [
        Upserted(_repartitioned(nodes[name], has)) for plan in plans for name, has in plan.then.items()
    ]
    then = source.trial(events)
    outcome = carry_out(then, [Step("place", key) for key in moved])
    then.place_waiting()
    return in_use(then), outcome.unplaced


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


def mig_report(
    source: ClusterSource, trial: Trial, most: int, growth: float, seconds: float, progress: Progress
) -> Report:
    """The best layouts of each pool. ``seconds``: that a node takes to re-partition."""
    report = Report(f"MIG layouts for {growth:g} times the demand of today: {source.name}")
    pools = pools_of(trial)
    if not pools:
        report.sentences = [
            "No node that takes pods has MIG instances behind a device plugin (mixed strategy) on GPUs of a "
            "model whose geometry is known."
        ]
        return report

    def planned(pools: Sequence[MigPool]) -> list[MigPlan]:
        taken = set[str]()
        return [plan_layouts(trial, pool, most, growth, taken) for pool in pools]

    def smaller(plans: list[MigPlan], tried: tuple[Amounts, dict[str, str]]) -> list[MigPlan] | None:
        """Nodes whose pods find no place afterwards keep their layout."""
        stuck = {trial.node_of(pod): f"{pod}: {why}" for pod, why in tried[1].items()}
        pools = [replace(plan.pool, stuck=plan.pool.stuck | stuck) for plan in plans]
        return planned(pools) if stuck else None

    progress("layouts", 0.0)
    plans, (after, _) = largest_that_holds(planned(pools), partial(_carried_out, source, trial), smaller)
    promised = _promised(plans, in_use(trial))
    for plan in plans:  # pods need CPU, memory and nodes of their own, too
        plan.is_best &= not promised - after
    trial.place_waiting()
    progress("layouts", 1.0)
    report.sentences = [text for plan in plans for text in _sentences(plan, seconds)]
    report.gains = _gains(plans, in_use(trial), promised & after, after)
    report.tables = [_nodes(plans), _profiles(plans)]
    report.notes = [
        f"Re-partitioning: {seconds:g} s a node (--repartition-seconds: a reboot takes longer) "
        "and a drain of its GPU pods. The layouts must be in the MIG manager's ConfigMap.",
        UNKNOWN,
    ]
    return report


def _sentences(plan: MigPlan, seconds: float) -> list[str]:
    pool = f"{plan.pool.model} ({many(len(plan.pool.nodes), 'node')})"
    if not plan.layout:
        return [f"{pool}: today's layouts serve the demand as well as any others."]
    kinds = Counter(shown(layout) for layout in plan.layout.values())
    said = ", ".join(f"{many(count, 'node')} with {layout} on each GPU" for layout, count in kinds.items())
    pods, minutes = sum(map(len, plan.moves.values())), len(plan.layout) * seconds / 60
    best = "No choice serves more, or as much with fewer restarts."
    best = best if plan.is_best else "Whether another choice serves more is not known."
    return [
        f"{pool}: change {said}. {best}",
        f"Price: {many(pods, 'pod')} restart{'s' if pods == 1 else ''}"
        + (f" ({plan.work / 3600:,.1f} GPU-hours of work so far)" if plan.work >= 360 else "")
        + "; "
        f"{many(len(plan.layout), 'node')}, {minutes:.1f} minutes one after the other.",
    ]


def _promised(plans: list[MigPlan], running: Amounts) -> Amounts:
    """Instances in use once the waiting pods have started, where ``running`` are in use now. Those of nodes
    outside the pools stay in use."""
    promised = Counter(running)
    for plan in plans:
        for resource, served in plan.served.items():
            promised[resource] += min(served - plan.running[resource], plan.waiting[resource])
    return promised


def _gains(plans: list[MigPlan], today: Amounts, promised: Amounts, after: Amounts) -> list[Gain]:
    """By profile, instances in use once the waiting pods that fit have started."""
    names = sorted({name for plan in plans for name in plan.pool.sizes if name.startswith(MIG_PREFIX)})
    return [
        Gain(f"{short(name)} in use", today[name], promised[name], after[name])
        for name in names
        if promised[name] or after[name]
    ]


def _nodes(plans: list[MigPlan]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for plan in plans:
        for name, today in sorted(plan.pool.nodes.items()):
            if name in plan.then:
                rows.append((name, shown(today), shown(plan.then[name]), len(plan.moves[name]), ""))
            else:
                rows.append((name, shown(today), "as today", 0, plan.pool.stuck.get(name, "")))
    return Table("nodes", "Layouts", ("node", "today", "then", "pods to move", "cannot change"), rows)


def _profiles(plans: list[MigPlan]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for plan in plans:
        has, then = _sum(plan.pool.nodes), _sum(plan.pool.nodes | plan.then)
        for r in sorted(plan.pool.sizes.keys() & (has.keys() | then.keys() | plan.waiting.keys())):
            figures = plan.running[r], plan.waiting[r], plan.wanted[r], has[r], then[r], plan.served[r]
            rows.append((plan.pool.model, short(r), *figures))
    head = ("model", "profile", "run", "wait", "planned for", "instances today", "then", "served")
    return Table("profiles", "Instances", head, rows)


def _sum(of_nodes: Mapping[str, Amounts]) -> Amounts:
    total: Amounts = Counter()
    for amounts in of_nodes.values():
        total.update(amounts)
    return total


def short(resource: str) -> str:
    """A profile, or ``gpu``."""
    return resource.removeprefix(MIG_PREFIX).removeprefix("nvidia.com/")


def shown(has: Mapping[str, int]) -> str:
    """``2x 1g.10gb + 1x 3g.40gb``."""
    return " + ".join(f"{count}x {short(resource)}" for resource, count in sorted(has.items()) if count)
