"""``stowage plan`` without more: the fleet in one table, and what each of the plans would gain."""

from __future__ import annotations

from collections import Counter, defaultdict

from extender.plan.drain import Drain, Progress, plan_drain
from extender.plan.prices import NodeCosts
from extender.plan.report import Cell, Gain, Report, Table
from extender.plan.source import PlanSource
from extender.plan.work import Work
from packing.fleet.stranded import Beside, fragmentation, on_offer

_UNKNOWN = "unknown"
_NEXT = "More: stowage plan drain | change --add 4xTYPE | change --remove NODE | moves | mig | slices"


def summary_report(source: PlanSource, work: Work, costs: NodeCosts, progress: Progress) -> Report:
    """By GPU model: nodes, GPUs, what is free, which nodes could go. ``work`` is used up."""
    closed = [row for row, is_open in enumerate(work.open.tolist()) if not is_open]
    offered = on_offer(work.fleet, closed)
    _, by_model = fragmentation(work.fleet, offered, Beside())
    nodes = {work.name(row): work.fleet.specs[row] for row in work.gpu_rows}
    waiting = len(work.waiting) + len(work.unplanned)
    plan = plan_drain(work, progress, costs.per_month)
    outcome = source.carry_out(plan.steps())
    models = {name: (spec.model or "") if spec else "" for name, spec in nodes.items()}
    going: Counter[str] = Counter(models[name] for name in plan.goes)
    cost: defaultdict[str, float] = defaultdict(float)
    for name, model in models.items():
        cost[model] += costs.per_month.get(name, 0.0)
    head: tuple[str, ...] = (
        "model",
        "nodes",
        "GPUs",
        "GPUs free whole",
        "nodes free",
        "largest island",
        "nodes that can go",
    )
    rows: list[tuple[Cell, ...]] = [
        (model or _UNKNOWN, one.nodes, one.gpus, one.whole, one.whole_nodes, one.largest_island, going[model])
        for model, one in by_model.items()
        if one.gpus
    ]
    if costs.per_month:
        head = (*head, "cost per month")
        rows = [(*row, round(cost["" if row[0] == _UNKNOWN else str(row[0])], 2)) for row in rows]
    report = Report(f"Summary: {source.name}")
    report.tables = [Table("models", "By GPU model", head, tuple(rows))]
    report.sentences = _sentences(plan, waiting)
    report.gains = [
        Gain("nodes that hold the work", len(nodes), plan.kept, len(nodes) - len(outcome.removed))
    ]
    if costs.per_month:
        after = costs.total - costs.of(plan.goes), costs.total - costs.of(outcome.removed)
        report.gains.append(Gain(f"cost per month {costs.currency}".strip(), costs.total, *after))
    report.differences = list(outcome.problems)
    report.notes = [*filter(None, [costs.note()]), _NEXT]
    return report


def _sentences(plan: Drain, waiting: int) -> list[str]:
    bound = f" (no plan keeps fewer than {plan.at_least})" if plan.at_least is not None else ""
    return [
        f"{waiting} pods wait for a GPU; {len(plan.started)} of them fit now.",
        f"{plan.kept} of {plan.kept + len(plan.goes)} nodes with GPUs hold the work{bound}; "
        f"{len(plan.goes)} can go, and {len(plan.target)} pods move for that.",
    ]
