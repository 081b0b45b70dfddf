"""Removable nodes: the workload packed onto the fewest nodes, with an order in which to drain the others.

Nodes without GPU pods come first. Then one node at a time is drained to the remaining nodes, if the engine
finds a place for all of its pods; otherwise the node is kept. Two orders are tried, and the one that frees
the most nodes is the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from extender.cluster.census import UNKNOWN as UNKNOWN_MODEL
from extender.cluster.census import Census
from extender.cluster.totals import waits
from extender.plan.prices import NodeCosts
from extender.plan.report import UNKNOWN, Cell, Gain, Progress, Report, Table
from extender.replay.steps import Outcome, Step, carry_out, largest_that_holds
from extender.trial.trial import ONLY_WEAKER, Trial
from extender.untrusted.visible import many
from packing.fleet.stranded import NOTHING

_NEXT = "To list these nodes, their order and the moves: stowage plan drain, with the same options."
_TRIED = "removable nodes"
_COLUMNS = "to: the planned node; replayed: the node that the scheduler chooses"
_ORDERS = 3
"""Drain orders that are tried before nodes whose pods fit nowhere else are kept."""


@dataclass(slots=True)
class Drain:
    """``goes``: removable nodes in drain order, with the pods evicted from each; ``target``: final node of
    each moved pod, ``origin``: its node today. ``stays``: other nodes that accept pods, and why they are
    kept; ``apart``: nodes with GPUs that accept no pods, or none of these, and why. ``started``: pending pods
    that were placed first, ``waiting``: pending pods that fit nowhere, and why. ``orders``: number of orders
    replayed before."""

    goes: dict[str, list[str]] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    orders: int = 0

    @property
    def kept(self) -> int:
        return len(self.stays) + len(self.apart)

    @property
    def nodes(self) -> int:
        return len(self.goes) + self.kept

    def steps(self) -> list[Step]:
        """The steps of an operator: let the pending pods start, cordon all removable nodes, drain one by one.
        The scheduler chooses the pods' new nodes."""
        found = [Step("place", pod, node) for pod, node in self.started.items()]
        found += [Step("cordon", node=node) for node in self.goes]
        for node, pods in self.goes.items():
            for pod in pods:
                found += [Step("evict", pod), Step("place", pod)]
            found.append(Step("remove", node=node))
        return found


def plan_drain(
    trial: Trial,
    progress: Progress,
    prices: Mapping[str, float] | None = None,
    *,
    keep_room: bool = True,
) -> Drain:
    """The better of two plans: nodes with the least load first, by GPUs or by pods. ``keep_room``: pending
    pods that fit start first. ``prices`` per node: of equally loaded nodes, the most expensive first."""
    started, waiting = dict[str, str](), dict[str, str]()
    if keep_room:
        started = trial.place_waiting()
        waiting = {pod.key: trial.why_not(pod) for pod in trial.waiting if pod.key not in started}
        waiting |= trial.unplanned
    loads = {row: [item.gpus for item in trial.items_on(row)] for row in trial.gpu_rows}  # by name
    dear = {row: -(prices or {}).get(trial.name(row), 0.0) for row in loads}
    by_gpus = sorted(loads, key=lambda row: (bool(loads[row]), sum(loads[row]), dear[row]))
    by_pods = sorted(loads, key=lambda row: (len(loads[row]), sum(loads[row])))
    now, plans = trial.savepoint(), list[Drain]()
    for number, order in enumerate((by_gpus, by_pods)):
        plans.append(_drain_in(order, trial, lambda part: progress(_TRIED, (number + part) / 2)))  # noqa: B023
        trial.undo_to(now)
    progress(_TRIED, 1.0)
    best = max(plans, key=lambda plan: (len(plan.goes), -len(plan.target)))
    for key in started.keys() & best.target.keys():  # they start on their final node
        best.goes[best.origin.pop(key)].remove(key)
        started[key] = best.target.pop(key)
    best.started, best.waiting, best.apart = started, waiting, trial.apart
    return best


def _drain_in(order: list[int], trial: Trial, progress: Callable[[float], None]) -> Drain:
    """Drain these rows in this order, where possible."""
    plan, before = Drain(), dict(trial.held)
    for number, row in enumerate(order):
        progress(number / len(order))
        why = trial.must_stay.get(row)
        if why is None and (keep := trial.blockers(row)):
            key, reason = min(keep.items())
            why = f"{key}: {reason}" + (f" (and {len(keep) - 1} more)" if len(keep) > 1 else "")
        if why is None:
            why = trial.empty(row, trial.items_on(row))
        if why:
            plan.stays[trial.name(row)] = why
        else:
            plan.goes[trial.name(row)] = []
    for key, held in trial.held.items():
        if held != before[key]:
            plan.origin[key], plan.target[key] = trial.name(before[key].row), trial.node_of(key)
            plan.goes[plan.origin[key]].append(key)
    return plan


def _drain_that_holds(
    trial: Trial, progress: Progress, costs: NodeCosts, *, keep_room: bool = True
) -> tuple[Drain, Outcome]:
    start = trial.savepoint()
    plan = plan_drain(trial, progress, costs.per_month, keep_room=keep_room)
    progress("carrying out the plan", 0.0)
    plan, outcome = largest_that_holds(plan, lambda p: carry_out(trial, p.steps(), start=start), _smaller)
    progress("carrying out the plan", 1.0)
    return plan, outcome


def _smaller(plan: Drain, outcome: Outcome) -> Drain | None:
    """The plan with the failed nodes drained first; if that did not help before, without these nodes."""
    late = plan.started.keys() & outcome.unplaced.keys()
    stuck = {plan.origin[pod]: pod for pod in outcome.unplaced if pod in plan.origin}
    for pod in late:
        del plan.started[pod]
        plan.waiting[pod] = outcome.unplaced[pod]
    if plan.orders < _ORDERS:
        plan.goes = {n: plan.goes[n] for n in sorted([*stuck, *plan.goes], key=lambda n: bool(plan.goes[n]))}
        plan.orders += 1
    else:
        for node, pod in stuck.items():
            plan.stays[node] = f"{pod}: {outcome.unplaced[pod]}"
            for moved in plan.goes.pop(node):
                del plan.target[moved], plan.origin[moved]
    return plan if stuck or late else None


def drain_report(
    name: str, trial: Trial, costs: NodeCosts, progress: Progress, *, keep_room: bool = True
) -> Report:
    """The nodes that could be removed. ``trial`` must not be used afterwards."""
    today = trial.figures()
    plan, outcome = _drain_that_holds(trial, progress, costs, keep_room=keep_room)
    moved = sum(pod in outcome.placed for pod in plan.origin)
    order_head = ("step", "node", "pods to move", "replayed")
    order = [
        (number, node, len(pods), "yes" if node in outcome.removed else "no")
        for number, (node, pods) in enumerate(plan.goes.items(), 1)
    ]
    moves = [
        (pod, node, plan.target[pod], outcome.placed.get(pod, "no place"))
        for node, pods in plan.goes.items()
        for pod in pods
    ]
    stays = sorted((plan.stays | plan.apart).items())
    waiting = [(pod, node, "") for pod, node in plan.started.items()]
    waiting += [(pod, "-", why) for pod, why in plan.waiting.items()]
    return Report(
        f"Fewest nodes for this workload: {name}",
        _sentences(plan),
        [
            Table("order", "Drain order (cordon all of these nodes first)", order_head, order),
            Table("moves", f"Moves ({_COLUMNS})", ("pod", "from", "to", "replayed"), moves),
            Table("stays", "Nodes to keep", ("node", "why"), stays),
            Table("waiting", "Pending pods", ("pod", "starts on", "why not"), waiting),
        ],
        [
            _nodes_gain(plan, outcome),
            Gain("removable nodes", 0, len(plan.goes), len(outcome.removed)),
            Gain("moved pods that run", len(plan.origin), len(plan.origin), moved),
            *_cost_gains(costs, plan, outcome),
            Gain("GPUs entirely free on kept nodes", today.whole, None, outcome.figures.whole),
        ],
        outcome.problems,
        [*filter(None, [costs.note(), _weaker_note(outcome)]), UNKNOWN],
    )


def _weaker_note(outcome: Outcome) -> str:
    """The assumption about pods that the scheduler would place on a weaker device, "" without any."""
    if not outcome.held_back:
        return ""
    pods = many(len(outcome.held_back), "pod")
    return (
        f"{pods} (such as {outcome.held_back[0]}) would be placed on a weaker device by the scheduler, "
        "because no selector names the GPU model. The plan keeps devices at least as good as today: add a "
        "selector before you evict, or plan with --allow-downgrade."
    )


def _nodes_gain(plan: Drain, outcome: Outcome) -> Gain:
    return Gain("nodes with GPUs", plan.nodes, plan.kept, plan.nodes - len(outcome.removed))


def _cost_gains(costs: NodeCosts, plan: Drain, outcome: Outcome) -> list[Gain]:
    if not costs.per_month:
        return []
    after = costs.total - costs.of(plan.goes), costs.total - costs.of(outcome.removed)
    return [Gain(f"cost per month {costs.currency}".strip(), costs.total, *after)]


def _sentences(plan: Drain) -> list[str]:
    goes = len(plan.goes)
    empty = sum(not pods for pods in plan.goes.values())
    said = [
        f"{goes} of {many(plan.nodes, 'node')} with GPUs can be removed: {empty} have no pods to move; "
        f"{many(len(plan.target), 'pod')} would move off the other {goes - empty}. "
        f"{_kept(plan)}."
    ]
    if weaker := sum(ONLY_WEAKER in why for why in plan.stays.values()):
        said.append(f"Pods of {many(weaker, 'node')} would only get weaker devices elsewhere.")
    if plan.started:
        said.append(f"Room is reserved for {many(len(plan.started), 'pending pod')} that can start now.")
    return said


def _kept(plan: Drain) -> str:
    closed = f", including {len(plan.apart)} closed to new pods" if plan.apart else ""
    return f"{many(plan.kept, 'node')} must be kept{closed}"


def summary_report(name: str, trial: Trial, census: Census, costs: NodeCosts, progress: Progress) -> Report:
    """``stowage plan summary``: by GPU model the nodes, GPUs, free capacity, and removable nodes. ``trial``
    must not be used afterwards."""
    models = {spec.name: spec.model or UNKNOWN_MODEL for spec in trial.fleet.specs if spec and spec.gpus}
    waiting = census.totals.waiting
    plan, outcome = _drain_that_holds(trial, progress, costs)
    return Report(
        f"Summary: {name}",
        [
            f"{waits(waiting)}; {len(plan.started)} of them fit now.",
            f"{len(plan.goes)} of {many(plan.nodes, 'node')} with GPUs can be removed; "
            f"{many(len(plan.target), 'pod')} would move. {_kept(plan)}.",
        ],
        [_models(census, models, plan, costs)],
        [_nodes_gain(plan, outcome), *_cost_gains(costs, plan, outcome)],
        outcome.problems,
        [*filter(None, [costs.note(), _NEXT if plan.goes else ""])],
    )


def _models(census: Census, models: Mapping[str, str], plan: Drain, costs: NodeCosts) -> Table:
    """``models``: GPU model by name of the node."""
    going = Counter(models[name] for name in plan.goes)
    head = ["model", "nodes", "GPUs", "GPUs free whole", "nodes free"]
    head += ["largest island", "nodes that can go"]
    head += ["cost per month"] if costs.per_month else []
    rows: list[tuple[Cell, ...]] = []
    for model, of_model in sorted(census.installed.items()):
        free = census.models.get(model, NOTHING)
        row = [of_model.nodes, of_model.gpus, free.whole, free.whole_nodes, free.largest_island]
        cost = round(costs.of(name for name, known in models.items() if known == model), 2)
        rows.append((model, *row, going[model], *([cost] if costs.per_month else [])))
    return Table("models", "By GPU model", tuple(head), rows)
