"""MIG layouts of nodes that serve more of the observed demand, and their cost.

The demand is the running pods, and the pending pods that request MIG instances or whole GPUs. Running pods
keep their devices, or move to another node that has them free; nodes with pods that cannot move keep their
layout. Changes are chosen greedily, by the work lost per GPU that comes into use, until no more pods start. A
layout is the same on all GPUs of a node unless the MIG manager's ConfigMap is known and has others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.dialects.shared_gpus import MIG_PREFIX
from extender.inventory.mig_layouts import WHOLE, with_layout
from extender.inventory.node_state import NodeLayout
from extender.k8s.objects import Deleted, Event, Node, Pod, Upserted
from extender.plan.report import UNKNOWN, Cell, Gain, Progress, Report, Table
from extender.plan.source import ClusterSource
from extender.replay.steps import Step, carry_out
from extender.source.snapshot import moment_of
from extender.trial.mig_search import (
    ChangeableNode,
    LayoutChange,
    candidate,
    possible_changes,
    possible_layouts,
)
from extender.trial.room_by_moves import lost_by_move
from extender.trial.trial import Item, Trial
from extender.untrusted.visible import many
from packing.model.node_spec import NodeSpec
from packing.plan.mig_layouts import ChangeRule

DeviceCounts = Counter[str]
"""Instances, or whole GPUs, by resource."""


@dataclass(slots=True)
class MigPlan:
    """``changes`` in order, and the pods that each moves, by node. ``stuck``: why nodes cannot change.
    Devices by resource: ``running``, ``waiting``, ``wanted`` (with growth), ``served`` of these, and
    ``promised`` (without growth)."""

    candidates: dict[str, ChangeableNode]
    changes: list[LayoutChange] = field(default_factory=list)
    moves: dict[str, list[str]] = field(default_factory=dict)
    stuck: dict[str, str] = field(default_factory=dict)
    running: DeviceCounts = field(default_factory=Counter)
    waiting: DeviceCounts = field(default_factory=Counter)
    wanted: DeviceCounts = field(default_factory=Counter)
    served: DeviceCounts = field(default_factory=Counter)
    promised: DeviceCounts = field(default_factory=Counter)


def plan_changes(source: ClusterSource, trial: Trial, most: int, growth: float, seconds: float) -> MigPlan:
    """Changes for ``growth`` times the demand, with at most ``most`` different layouts. Afterwards, the trial
    includes the moves and the pending pods that start without any change."""
    plan = MigPlan(_candidates(trial))
    plan.running, plan.waiting = in_use(trial), _devices(trial.waiting)
    more = list(_growth(trial, plan, growth))
    plan.wanted = plan.running + plan.waiting + _devices(more)
    started = trial.place_waiting()
    unserved = [item for item in trial.waiting if item.key not in started]
    plan.promised = in_use(trial)
    unserved += [item for item in more if not trial.place(item)]
    plan.served = in_use(trial)
    items, rule = {item.key: item for item in unserved}, ChangeRule(seconds=seconds)
    while best := _best(source, trial, plan, [item.pod for item in items.values()], most, rule):
        row = trial.fleet.rows[best.name]
        leaving = items_on(trial, row)
        if why := trial.empty(row, leaving):
            plan.stuck[best.name] = why
            continue
        plan.moves[best.name] = [item.key for item in leaving if item.home >= 0]
        plan.changes.append(best)
        starting = [items.pop(pod.key) for pod in best.pods]
        plan.served += _devices(starting)
        plan.promised += _devices(item for item in starting if item not in more)
    return plan


def _candidates(trial: Trial) -> dict[str, ChangeableNode]:
    state, nodes = trial.state, trial.state.nodes
    asked = {name for item in (*trial.movable.values(), *trial.waiting) for name, _ in item.request.devices}
    asked |= {pool.resource for spec in trial.fleet.specs if spec for pool in spec.pools if pool.profile}
    resources = {name for name in asked if name.startswith(MIG_PREFIX)}

    def layouts(node: Node, spec: NodeSpec) -> list[NodeLayout]:
        return possible_layouts(state, node, spec, resources)

    found = (candidate(state, nodes[trial.name(row)], layouts) for row in trial.gpu_rows)
    return {known.node.name: known for known in found if known}


def _growth(trial: Trial, plan: MigPlan, growth: float) -> Iterator[Item]:
    """The pods of the growth in demand: copies of existing pods."""
    items = [*trial.waiting, *trial.movable.values()]
    for resource, count in sorted((plan.running + plan.waiting).items()):
        alike = [item for item in items if [name for name, _ in item.request.devices] == [resource]]
        missing = math.ceil(count * max(growth, 1.0) - 1e-9) - count
        for number in range(missing if alike else 0):
            key = f"{alike[0].key}~{number}"
            pod = replace(alike[0].pod, name=key.partition("/")[2], uid=key)
            yield replace(alike[0], key=key, pod=pod, home=-1)


def _devices(items: Collection[Item] | Iterator[Item]) -> DeviceCounts:
    total: DeviceCounts = Counter()
    for item in items:
        total.update({n: c for n, c in item.request.devices if n == WHOLE or n.startswith(MIG_PREFIX)})
    return total


def _best(
    source: ClusterSource, trial: Trial, plan: MigPlan, pods: Sequence[Pod], most: int, rule: ChangeRule
) -> LayoutChange | None:
    """The best next change, None if no change lets more pods start."""
    changed = {change.name for change in plan.changes}
    used = {_per_gpu(change.candidate, change.layout) for change in plan.changes}
    left = [found for name, found in plan.candidates.items() if name not in changed | plan.stuck.keys()]
    if len(used) >= most:
        left = [
            replace(found, others=tuple(layout for layout in found.others if _per_gpu(found, layout) in used))
            for found in left
        ]

    def lost(found: ChangeableNode) -> float | None:
        row = trial.fleet.rows[found.node.name]
        for key, staying in sorted(trial.staying_on[row].items()):
            if staying.held and staying.held.has_gpus:
                plan.stuck[found.node.name] = f"{key}: {staying.why}"
                return None
        state, running = trial.state, [item for item in items_on(trial, row) if item.home >= 0]
        now = moment_of(state.pods.values())
        each = (lost_by_move(state, state.pods[item.key], trial.held[item.key], now) for item in running)
        return rule.lost(found.gpus, sum(each), math.inf)

    changes = possible_changes(trial.state, source.settings, left, pods, lost)

    def order(change: LayoutChange) -> tuple[float, bool, str]:
        return change.price, _per_gpu(change.candidate, change.layout) not in used, change.name

    return min(filter(None, changes), key=order, default=None)


def _per_gpu(found: ChangeableNode, layout: NodeLayout) -> frozenset[tuple[str, float]]:
    return frozenset((name, count / found.gpus) for name, count in layout.devices.items())


def items_on(trial: Trial, row: int) -> list[Item]:
    """The movable pods with GPUs on a node."""
    return [item for item in trial.items_on(row) if item.request.wants_gpu]


def in_use(trial: Trial) -> DeviceCounts:
    """Counted devices that pods hold, by resource."""
    names = {number: name for name, number in trial.fleet.names.resources.items()}
    total: DeviceCounts = Counter()
    staying = (pinned.held for pinned in trial.staying.values() if pinned.held)
    for held in (*trial.held.values(), *staying):
        for number, count in held.devices:
            total[names[number]] += count
    return total


def carried_out(source: ClusterSource, plan: MigPlan, trial: Trial) -> tuple[DeviceCounts, Trial]:
    """Devices in use, by resource, after the nodes have changed. Moved pods are placed first, then pending
    pods."""
    moved, events = [key for keys in plan.moves.values() for key in keys], list[Event]()
    for key in moved:
        events += [Deleted("Pod", key), Upserted(trial.movable[key].pod)]
    events += [Upserted(with_layout(change.candidate.node, change.layout)) for change in plan.changes]
    then = source.trial(events)
    carry_out(then, [Step("place", key) for key in moved])
    then.place_waiting()
    return in_use(then), then


def mig_report(
    source: ClusterSource, trial: Trial, most: int, growth: float, seconds: float, progress: Progress
) -> Report:
    """The best layouts. ``seconds``: time to re-partition a node."""
    report = Report(f"MIG layouts for {growth:g}x the current demand: {source.name}")
    progress("layouts", 0.0)
    plan = plan_changes(source, trial, most, growth, seconds)
    progress("layouts", 1.0)
    if not plan.candidates:
        report.sentences = [
            "No node that accepts pods has GPUs that NVIDIA's MIG manager could re-partition: such nodes "
            "have MIG instances, or the label nvidia.com/mig.config or nvidia.com/mig.capable."
        ]
        return report
    report.sentences = list(_sentences(plan, seconds))
    after = carried_out(source, plan, trial)[0]
    report.gains = [
        Gain(f"{short(name)} in use", plan.running[name], plan.promised[name], after[name])
        for name in sorted(plan.promised.keys() | after.keys())
        if name.startswith(MIG_PREFIX) or (name == WHOLE and plan.waiting[name])
    ]
    report.tables = [_nodes(plan), _profiles(plan)]
    report.notes = [
        f"Re-partitioning takes {seconds:g} s per node (--repartition-seconds; a reboot takes longer) "
        "after a drain of its GPU pods. The layouts must be in the MIG manager's ConfigMap.",
        UNKNOWN,
    ]
    return report


def _sentences(plan: MigPlan, seconds: float) -> Iterator[str]:
    if not plan.changes:
        nodes = many(len(plan.candidates), "node")
        yield f"{nodes} considered: no other layout would serve more of the demand."
        return
    kinds = Counter(f"({change.candidate.spec.model}) to {_on_each_gpu(change)}" for change in plan.changes)
    said = ", ".join(f"{many(count, 'node')} {kind}" for kind, count in kinds.items())
    pods, minutes = sum(map(len, plan.moves.values())), len(plan.changes) * seconds / 60
    lost = sum(change.lost for change in plan.changes)
    yield f"Change {said}."
    yield (
        f"Cost: {many(pods, 'pod')} restart{'s' if pods == 1 else ''}; {minutes:.1f} minutes to re-partition "
        f"{many(len(plan.changes), 'node')} in sequence; {lost / 3600:.2g} GPU-hours lost."
    )


def _on_each_gpu(change: LayoutChange) -> str:
    gpus, devices = change.candidate.gpus, change.layout.devices
    alike = all(count % gpus == 0 for count in devices.values())
    each = {name: count // gpus for name, count in devices.items()}
    text = f"{shown(each)} on each GPU" if alike else shown(devices)
    return f"{change.layout.name} ({text})" if change.layout.name else text


def _nodes(plan: MigPlan) -> Table:
    rows: list[tuple[Cell, ...]] = []
    then = {change.name: change.layout for change in plan.changes}
    for name, found in sorted(plan.candidates.items()):
        today = shown(found.today.devices)
        if name in then:
            rows.append((name, today, shown(then[name].devices), len(plan.moves[name]), ""))
        elif any(pool.profile for pool in found.spec.pools):
            rows.append((name, today, "unchanged", 0, plan.stuck.get(name, "")))
    return Table("nodes", "Layouts", ("node", "today", "then", "pods to move", "cannot change"), rows)


def _profiles(plan: MigPlan) -> Table:
    has, then = Counter[str](), Counter[str]()
    changed = {change.name: change.layout for change in plan.changes}
    for name, node in plan.candidates.items():
        has.update(node.today.devices)
        then.update(changed.get(name, node.today).devices)
    figures = plan.running, plan.waiting, plan.wanted, has, then, plan.served
    rows: list[tuple[Cell, ...]] = [
        (short(r), *(amounts[r] for amounts in figures))
        for r in sorted(has.keys() | then.keys() | plan.waiting.keys())
    ]
    head = ("profile", "run", "wait", "planned for", "instances today", "then", "served")
    return Table("profiles", "Instances", head, rows)


def short(resource: str) -> str:
    """The profile of a resource, or ``gpu``."""
    return resource.removeprefix(MIG_PREFIX).removeprefix("nvidia.com/")


def shown(has: Mapping[str, int]) -> str:
    """Devices as text, such as ``2x 1g.10gb + 1x 3g.40gb``."""
    return " + ".join(f"{count}x {short(resource)}" for resource, count in sorted(has.items()) if count)
