"""MIG layouts as a report, with the price of re-partitioning."""

from __future__ import annotations

from collections import Counter

from extender.dialects.shared_gpus import MIG_PREFIX
from extender.plan.answers import UNKNOWN
from extender.plan.cluster import ClusterSource
from extender.plan.drain import Progress
from extender.plan.mig import Amounts, MigPlan, carried_out, in_use, plan_layouts, pools_of
from extender.plan.report import Cell, Gain, Report, Table, many
from extender.plan.source import Step, carry_out
from extender.replay.work import Work


def mig_report(
    source: ClusterSource, work: Work, most: int, growth: float, seconds: float, progress: Progress
) -> Report:
    """The best layouts of each pool. ``seconds``: that a node takes to re-partition."""
    report = Report(f"MIG layouts for {growth:g} times the demand of today: {source.name}")
    pools = pools_of(work)
    if not pools:
        report.sentences = [
            "No node that takes pods has MIG instances behind a device plugin (mixed strategy) on GPUs of a "
            "model whose geometry is known."
        ]
        return report
    plans, taken = [], set[str]()
    for number, pool in enumerate(pools):
        progress("layouts", number / len(pools))
        plans.append(plan_layouts(work, pool, most, growth, taken))
    running = in_use(work)
    work.place_waiting()
    after, report.differences = _replayed(source, plans)
    progress("layouts", 1.0)
    for plan in plans:
        report.sentences += _sentences(plan, seconds)
    report.gains = _gains(plans, running, in_use(work), after)
    report.tables = [_nodes(plans), _profiles(plans)]
    report.notes = [
        f"Re-partitioning: {seconds:g} s a node (--repartition-seconds: a reboot takes longer) "
        "and a drain of its GPU pods. The layouts must be in the MIG manager's ConfigMap.",
        UNKNOWN,
    ]
    return report


def _replayed(source: ClusterSource, plans: list[MigPlan]) -> tuple[Amounts, list[str]]:
    """What is in use in the end, by resource, and which pods ran and find no place then."""
    changed, steps = source, list[Step]()
    for plan in plans:
        changed, steps = carried_out(changed, plan)  # the pods that left the pools before wait, too
    outcome = carry_out(changed, steps)
    moved = {key for plan in plans for keys in plan.moves.values() for key in keys}
    after = changed.fresh()
    asked = {item.key: item.request.devices for item in after.waiting}
    used = in_use(after)
    for key in outcome.placed:
        used.update(dict(asked.get(key, ())))
    lost = sorted(moved - outcome.placed.keys())
    return used, [f"{key} ran, and finds no place in the new layouts" for key in lost]


def _sentences(plan: MigPlan, seconds: float) -> list[str]:
    pool, nodes = plan.pool, len(plan.pool.nodes)
    if not plan.layout:
        return [f"{pool.model} ({nodes} nodes): today's layouts serve the demand as well as any others."]
    kinds = Counter(shown(layout) for layout in plan.layout.values())
    said = ", ".join(f"{many(count, 'node')} with {layout} on each GPU" for layout, count in kinds.items())
    pods = sum(map(len, plan.moves.values()))
    minutes = len(plan.layout) * seconds / 60
    best = "No choice serves more." if plan.is_best else "Whether another choice serves more is not known."
    return [
        f"{pool.model} ({nodes} nodes): change {said}. {best}",
        f"Price: {many(len(plan.layout), 'node')}, {minutes:.1f} minutes one after the other; "
        f"{many(pods, 'pod')} restart.",
    ]


def _gains(plans: list[MigPlan], running: Amounts, today: Amounts, after: Amounts) -> list[Gain]:
    """By profile, instances in use once the waiting pods that fit have started. Instances of nodes outside
    the pools stay in use."""
    promised: Amounts = Counter(running)
    for plan in plans:
        for resource, served in plan.served.items():
            asked = plan.running[resource] + plan.waiting[resource]
            promised[resource] += min(served, asked) - plan.running[resource]
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
            then = plan.layout.get(name)
            total = Counter({r: n * plan.pool.gpus[name] for r, n in then.items()}) if then else today
            pods = len(plan.moves.get(name, ()))
            note = plan.pool.stuck.get(name, "") if not then else ""
            rows.append((name, shown(today), shown(total) if then else "as today", pods, note))
    head = ("node", "today", "then", "pods to move", "cannot change")
    return Table("nodes", "Layouts", head, tuple(rows))


def _profiles(plans: list[MigPlan]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for plan in plans:
        has, then = plan.has(changed=False), plan.has(changed=True)
        for r in sorted(plan.pool.sizes.keys() & (has.keys() | then.keys() | plan.waiting.keys())):
            figures = plan.running[r], plan.waiting[r], plan.wanted[r], has[r], then[r], plan.served[r]
            rows.append((plan.pool.model, short(r), *figures))
    head = ("model", "profile", "run", "wait", "planned for", "instances today", "then", "served")
    return Table("profiles", "Instances", head, tuple(rows))


def short(resource: str) -> str:
    """A profile, or ``gpu``."""
    return resource.removeprefix(MIG_PREFIX).removeprefix("nvidia.com/")


def shown(has: dict[str, int] | Amounts) -> str:
    """``2x 1g.10gb + 1x 3g.40gb``."""
    return " + ".join(f"{count}x {short(resource)}" for resource, count in sorted(has.items()) if count)
