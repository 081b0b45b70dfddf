"""``stowage plan`` without more: the fleet in one table, and what each of the plans would gain."""

from __future__ import annotations

from collections import Counter

import numpy as np

from extender.plan.drain import Drain, Progress, plan_drain
from extender.plan.prices import NodeCosts
from extender.plan.report import Cell, Gain, Report, Table, many
from extender.plan.source import PlanSource, carry_out
from extender.replay.work import Work
from packing.fleet.stranded import Beside, Fragmentation, fragmentation, on_offer

_NEXT = "More: stowage plan drain | change --add 4xTYPE | change --remove NODE | moves | mig | slices"


def summary_report(source: PlanSource, work: Work, costs: NodeCosts, progress: Progress) -> Report:
    """By GPU model: nodes, GPUs, what is free, which nodes could go. ``work`` is used up."""
    by_model = _by_model(work)
    nodes = {work.name(row): work.fleet.specs[row] for row in work.gpu_rows}
    models = {name: (spec.model or "") if spec else "" for name, spec in nodes.items()}
    waiting = len(work.waiting) + len(work.unplanned)
    plan = plan_drain(work, progress, costs.per_month)
    outcome = carry_out(source, plan.steps())
    report = Report(f"Summary: {source.name}")
    report.tables = [_table(by_model, models, plan, costs)]
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


def _by_model(work: Work) -> dict[str, Fragmentation]:
    offered = on_offer(work.fleet, np.flatnonzero(~work.open).tolist())
    return fragmentation(work.fleet, offered, Beside())[1]


def _table(
    by_model: dict[str, Fragmentation], models: dict[str, str], plan: Drain, costs: NodeCosts
) -> Table:
    """``models``: that of each node with GPUs, by name."""
    going = Counter(models[name] for name in plan.goes)
    head = ["model", "nodes", "GPUs", "GPUs free whole", "nodes free", "largest island", "nodes that can go"]
    head += ["cost per month"] if costs.per_month else []
    rows: list[tuple[Cell, ...]] = []
    for model, one in by_model.items():
        row = [one.nodes, one.gpus, one.whole, one.whole_nodes, one.largest_island, going[model]]
        of_model = [name for name, known in models.items() if known == model]
        cost = [round(costs.of(of_model), 2)] if costs.per_month else []
        if one.gpus:
            rows.append((model or "unknown", *row, *cost))
    return Table("models", "By GPU model", tuple(head), tuple(rows))


def _sentences(plan: Drain, waiting: int) -> list[str]:
    bound = f" (no plan keeps fewer than {plan.at_least})" if plan.at_least is not None else ""
    return [
        f"{many(waiting, 'pod')} wait for a GPU; {len(plan.started)} of them fit now.",
        f"{plan.kept} of {plan.kept + len(plan.goes)} nodes with GPUs hold the work{bound}; "
        f"{len(plan.goes)} can go, and {many(len(plan.target), 'pod')} would move for that.",
    ]
