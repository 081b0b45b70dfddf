"""Pods that would fit a slice, as a report."""

from __future__ import annotations

from collections.abc import Mapping

from extender.plan.answers import UNKNOWN
from extender.plan.cluster import ClusterSource
from extender.plan.drain import Progress
from extender.plan.mig_report import short
from extender.plan.report import Gain, Report, Table
from extender.plan.slices import PEAK_COMPUTE, PEAK_MEMORY, SlicePlan, carried_out, plan_slices
from extender.plan.source import Outcome, carry_out
from extender.replay.work import Work
from extender.source.prometheus import Use

_BUSY = (
    "Activity is the part of the time in which a GPU was busy, not the part of it that was used: a pod that "
    "is busy for a third of the time may run longer on a third of a GPU."
)


def slices_report(
    source: ClusterSource, work: Work, measured: Mapping[str, Use], margin: float, progress: Progress
) -> Report:
    """Which pods with a whole GPU would fit a slice. ``work`` is used up."""
    progress("slices", 0.0)
    today = work.figures().whole
    plan = plan_slices(work, measured, margin)
    changed, steps = carried_out(source, plan)
    outcome = carry_out(changed, steps)
    progress("slices", 1.0)
    report = Report(f"Pods with a whole GPU that would fit a slice: {source.name}")
    report.sentences = _sentences(plan, margin)
    report.tables = [_table(plan, outcome)]
    moves = len(plan.moves)
    report.gains = [
        Gain("whole GPUs free", today, today + moves, outcome.figures.whole),
        Gain("pods on a slice", 0, moves, len(outcome.placed)),
    ]
    report.differences = list(outcome.problems)
    report.notes = [_BUSY, UNKNOWN]
    return report


def _sentences(plan: SlicePlan, margin: float) -> list[str]:
    fit = [one for one in plan.candidates if one.slice]
    said = [
        f"{len(fit)} pods would fit a slice with {margin:g} times what they use; for {len(plan.moves)} of "
        "them one is free today."
    ]
    large = len(plan.candidates) - len(fit)
    if large:
        said.append(f"{large} pods use more than the largest slice that any node has.")
    if plan.unknown:
        said.append(
            f"Of {len(plan.unknown)} pods with one whole GPU the use is not known: no --prometheus, no "
            f"samples, and no annotations {PEAK_MEMORY} and {PEAK_COMPUTE}."
        )
    said += [f"{pod}: {problem}" for pod, problem in list(plan.problems.items())[:5]]
    return said


def _table(plan: SlicePlan, outcome: Outcome) -> Table:
    rows = tuple(
        (
            one.pod,
            one.node,
            round((one.use.memory_mib or 0) / 1024, 1),
            round(100 * (one.use.active or 0)),
            one.source,
            short(one.slice.resource) if one.slice else "none is large enough",
            one.target or "-",
            outcome.placed.get(one.pod, "-"),
        )
        for one in plan.candidates
    )
    head = ("pod", "node", "memory GiB", "active %", "known", "slice", "free on", "replayed")
    return Table("slices", "Pods with one whole GPU", head, rows)
