"""``--add`` and ``--remove`` as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from extender.k8s.objects import Node
from extender.plan.answers import UNKNOWN, figure_gains
from extender.plan.change import Change, plan_change
from extender.plan.cluster import ClusterSource
from extender.plan.drain import Progress
from extender.plan.prices import NodeCosts
from extender.plan.report import Gain, Report, Table, many
from extender.plan.source import Outcome, carry_out


def change_report(
    source: ClusterSource,
    added: Sequence[Node],
    removed: Sequence[str],
    costs: NodeCosts,
    progress: Progress,
) -> Report:
    """What these nodes would change, pending pods included. ``costs``: with those of the
    added ones. Raises ``BadInput``."""
    progress("placing the pods", 0.0)
    change, changed = plan_change(source, added, removed)
    progress("carrying out the plan", 0.5)
    outcome = carry_out(changed, change.steps())
    progress("carrying out the plan", 1.0)
    report = Report(_title(source.name, added, removed))
    report.sentences = _sentences(change)
    report.tables = [_waiting(change, outcome), _moved(change, outcome), _ends(change)]
    placed = sum(pod in outcome.placed for pod in change.starts)
    report.gains = [
        Gain("waiting pods that fit", len(change.started), len(change.starts), placed),
        *figure_gains(change.before, change.after, outcome.figures),
    ]
    if change.moved:
        found = sum(pod in outcome.placed for pod in change.moved)
        report.gains.insert(
            1, Gain("pods of lost nodes that run", len(change.moved), len(change.moved), found)
        )
    if costs.per_month:
        report.sentences.append(_cost(added, removed, costs))
    report.differences = list(outcome.problems)
    report.notes = [
        *filter(None, [costs.note()]),
        "today: once the waiting pods that fit have started. " + UNKNOWN,
    ]
    return report


def _title(name: str, added: Sequence[Node], removed: Sequence[str]) -> str:
    kinds = Counter(node.name.rpartition("-")[0].removeprefix("added-") for node in added)
    parts = [f"{many(count, 'more node')} like {kind}" for kind, count in kinds.items()]
    parts += [f"without {', '.join(removed)}"] if removed else []
    return f"{name}: {' and '.join(parts)}"


def _sentences(change: Change) -> list[str]:
    newly = change.starts.keys() - change.started.keys()
    no_longer = change.started.keys() - change.starts.keys()
    said = [f"{many(len(change.starts), 'waiting pod')} fit ({len(change.started)} without the change)."]
    if newly:
        said[0] = said[0][:-1] + f", {len(newly)} of them only then."
    if no_longer:
        said.append(f"{len(no_longer)} waiting pods that would fit today do not fit any more.")
    if change.moved or change.homeless:
        total = len(change.moved) + len(change.homeless)
        said.append(f"{len(change.moved)} of {total} pods of the lost nodes find another place.")
    return said


def _waiting(change: Change, outcome: Outcome) -> Table:
    rows = []
    for pod, node in change.starts.items():
        rows.append((pod, change.started.get(pod, "-"), node, outcome.placed.get(pod, "no place"), ""))
    for pod, why in change.waits.items():
        rows.append((pod, change.started.get(pod, "-"), "-", "-", why))
    head = ("pod", "fits today on", "then on", "replayed", "why not")
    return Table("waiting", "Waiting pods", head, tuple(rows))


def _moved(change: Change, outcome: Outcome) -> Table:
    rows = [(pod, node, outcome.placed.get(pod, "no place"), "") for pod, node in change.moved.items()]
    rows += [(pod, "-", "-", why) for pod, why in change.homeless.items()]
    head = ("pod", "goes to", "replayed", "why not")
    return Table("moved", "Pods of the lost nodes", head, tuple(rows))


def _ends(change: Change) -> Table:
    return Table("ends", "Pods that end with their node", ("pod", "why"), tuple(change.ends.items()))


def _cost(added: Sequence[Node], removed: Sequence[str], costs: NodeCosts) -> str:
    before = costs.total - costs.of(node.name for node in added)
    after = costs.total - costs.of(removed)
    return (
        f"Cost per month: {before:,.0f} {costs.currency} today, {after:,.0f} then ({after - before:+,.0f})."
    )
