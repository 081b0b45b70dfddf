"""Plans as reports: each is carried out on the engine, and promise and replay stand side by side."""

from __future__ import annotations

from extender.plan.drain import Drain, Progress, plan_drain
from extender.plan.prices import NodeCosts
from extender.plan.report import Gain, Report, Table, many
from extender.plan.source import Outcome, PlanSource, carry_out
from extender.replay.work import ONLY_WEAKER, Work
from packing.fleet.stranded import Fragmentation

UNKNOWN = (
    "Not known, and ignored: affinity and spread between pods, volumes bound to a node, host ports, quotas, "
    "gangs. Check these before you act."
)


def size_of(work: Work, name: str) -> str:
    """One line on what there is."""
    figures = work.figures()
    running = len(work.movable) + len(work.staying)
    waiting = len(work.waiting) + len(work.unplanned)
    return (
        f"{name}: {figures.nodes} nodes with {figures.gpus} GPUs take pods; {figures.whole} GPUs and "
        f"{figures.whole_nodes} nodes are entirely free; {running} pods run, {waiting} wait for a GPU"
    )


def drain_report(
    source: PlanSource, work: Work, costs: NodeCosts, progress: Progress, *, keep_room: bool = True
) -> Report:
    """Which nodes could go. ``work`` is used up."""
    today = work.figures()
    plan = plan_drain(work, progress, costs.per_month, keep_room=keep_room)
    steps = plan.steps()
    progress("carrying out the plan", 0.0)
    outcome = carry_out(source, steps)
    progress("carrying out the plan", 1.0)
    report = Report(f"The fewest nodes for this work: {source.name}")
    report.sentences = _drain_sentences(plan)
    report.tables = [_nodes(plan, outcome), _moves(plan, outcome), _stays(plan), _waiting(plan)]
    report.gains = [
        Gain("nodes that hold the work", len(plan.goes) + plan.kept, plan.kept, _left(plan, outcome)),
        Gain("nodes that can go", 0, len(plan.goes), len(outcome.removed)),
        Gain("pods that run", len(plan.origin), len(plan.origin), _running(plan, outcome)),
        *_cost_gains(costs, plan, outcome),
    ]
    report.gains += [Gain("whole GPUs free on the rest", today.whole, None, outcome.figures.whole)]
    report.differences = list(outcome.problems)
    report.notes = [*filter(None, [costs.note(), weaker_note(outcome)]), UNKNOWN]
    return report


def weaker_note(outcome: Outcome) -> str:
    """What a plan assumes of pods that the scheduler would give a weaker device, "" without any."""
    if not outcome.held_back:
        return ""
    pods = many(len(outcome.held_back), "pod")
    return (
        f"{pods} (such as {outcome.held_back[0]}) would get a weaker device from the scheduler, because no "
        "selector names the GPU model. The plan keeps devices as good as today's: name the model before you "
        "evict, or plan with --allow-downgrade."
    )


def _cost_gains(costs: NodeCosts, plan: Drain, outcome: Outcome) -> list[Gain]:
    if not costs.per_month:
        return []
    after = costs.total - costs.of(plan.goes), costs.total - costs.of(outcome.removed)
    return [Gain(f"cost per month {costs.currency}".strip(), costs.total, *after)]


def _drain_sentences(plan: Drain) -> list[str]:
    goes, total = len(plan.goes), len(plan.goes) + plan.kept
    empty = sum(not pods for pods in plan.goes.values())
    said = [
        f"{goes} of {many(total, 'node')} with GPUs can go: {empty} without work, and {goes - empty} from "
        f"which {many(len(plan.target), 'pod')} would move. {many(plan.kept, 'node')} would stay."
    ]
    if plan.at_least is not None and plan.at_least >= plan.kept:
        said.append(f"No plan keeps fewer than {plan.kept}.")
    elif plan.at_least is not None:
        said.append(f"At least {plan.at_least} are needed, whatever moves where.")
    if weaker := sum(ONLY_WEAKER in why for why in plan.stays.values()):
        said.append(f"{many(weaker, 'node')} stay because their pods would get weaker devices elsewhere.")
    if plan.started:
        said.append(f"Room is left for {many(len(plan.started), 'waiting pod')} that can start now.")
    return said


def _nodes(plan: Drain, outcome: Outcome) -> Table:
    rows = tuple(
        (number, name, len(pods), "yes" if name in outcome.removed else "no")
        for number, (name, pods) in enumerate(plan.goes.items(), 1)
    )
    return Table(
        "order",
        "Order of drain (cordon all of them first)",
        ("step", "node", "pods to move", "replayed"),
        rows,
    )


def _moves(plan: Drain, outcome: Outcome) -> Table:
    rows = tuple(
        (pod, node, plan.target[pod], outcome.placed.get(pod, "no place"))
        for node, pods in plan.goes.items()
        for pod in pods
    )
    title = "What moves (to: in the plan; replayed: where the scheduler puts it)"
    return Table("moves", title, ("pod", "from", "to", "replayed"), rows)


def _stays(plan: Drain) -> Table:
    return Table("stays", "What stays, and why", ("node", "why"), tuple(sorted(plan.stays.items())))


def _waiting(plan: Drain) -> Table:
    rows = [(pod, node, "") for pod, node in plan.started.items()]
    rows += [(pod, "-", why) for pod, why in plan.waiting.items()]
    return Table("waiting", "Waiting pods", ("pod", "starts on", "why not"), tuple(rows))


def _left(plan: Drain, outcome: Outcome) -> int:
    return len(plan.goes) + plan.kept - len(outcome.removed)


def _running(plan: Drain, outcome: Outcome) -> int:
    return sum(pod in outcome.placed for pod in plan.origin)


def figure_gains(today: Fragmentation, promised: Fragmentation, replayed: Fragmentation) -> list[Gain]:
    """The figures of fragmentation."""
    return [
        Gain("whole GPUs free", today.whole, promised.whole, replayed.whole),
        Gain("whole nodes free", today.whole_nodes, promised.whole_nodes, replayed.whole_nodes),
        Gain(
            "most whole GPUs on one node", today.largest_request, promised.largest_request,
            replayed.largest_request,
        ),
        Gain(
            "largest NVLink island request", today.largest_island, promised.largest_island,
            replayed.largest_island,
        ),
    ]  # fmt: skip
