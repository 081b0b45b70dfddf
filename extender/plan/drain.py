"""Which nodes could go: the work on the fewest nodes, in an order in which they can be drained.

Nodes without work go first. Then one node after the other gives its pods away to nodes that stay, if the
engine finds a place for all of them; a node whose pods find none stays. Several orders are tried, and the one
that frees the most is the plan. ``at_least`` is a bound that no plan can beat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from extender.plan.source import Step
from extender.replay.bound import at_least
from extender.replay.work import Item, Work, blockers, weight
from packing.fleet.node_usage import Allocation

Progress = Callable[[str, float], None]


@dataclass(slots=True)
class Drain:
    """``goes``: the nodes in order of drain, with the pods that leave each; ``target``: where each moved pod
    ends, ``origin``: where it runs today. ``stays``: why each of the other nodes with GPUs stays.
    ``started``: waiting pods that found a place first, ``waiting``: those that found none, and why.
    ``at_least``: the fewest nodes that any plan can keep, None where that is not known."""

    goes: dict[str, list[str]] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    at_least: int | None = None

    @property
    def kept(self) -> int:
        return len(self.stays)

    def steps(self) -> list[Step]:
        """What somebody would do: let the waiting pods start, cordon all nodes that go, and drain them one
        after the other. Where the pods go is left to the scheduler."""
        found = [Step("place", pod, node) for pod, node in self.started.items()]
        found += [Step("cordon", node=node) for node in self.goes]
        for node, pods in self.goes.items():
            for pod in pods:
                found += [Step("evict", pod), Step("place", pod)]
            found.append(Step("remove", node=node))
        return found


def plan_drain(
    work: Work, progress: Progress, prices: Mapping[str, float] | None = None, *, keep_room: bool = True
) -> Drain:
    """The best plan of several orders. ``keep_room``: waiting pods that fit start first. ``prices`` per hour
    by node: of equally loaded nodes the dearest go first."""
    plan = Drain()
    if keep_room:
        plan.started = work.place_waiting()
        plan.waiting = {
            item.key: work.why_nowhere(item) for item in work.waiting if item.key not in plan.started
        } | work.unplanned
    plan.at_least = _bound(work)
    homes = {key: work.name(held.row) for key, held in work.at.items()}
    best: _Attempt | None = None
    orders = _orders(work, prices or {})
    for number, order in enumerate(orders):
        attempt = _Attempt(work)
        attempt.run(order, lambda part, n=number: progress("nodes that can go", (n + part) / len(orders)))  # type: ignore[misc]
        moves = sum(map(len, attempt.goes.values()))
        if best is None or (len(attempt.goes), -moves) > (len(best.goes), -sum(map(len, best.goes.values()))):
            best = attempt
        attempt.undo()
        if plan.at_least is not None and len(best.stays) <= plan.at_least:
            break
    progress("nodes that can go", 1.0)
    assert best is not None
    plan.goes, plan.stays, plan.target = best.goes, best.stays, best.target
    for key in plan.started.keys() & plan.target.keys():  # they start where they end
        plan.goes[homes[key]].remove(key)
        plan.started[key] = plan.target.pop(key)
    plan.origin = {key: homes[key] for key in plan.target}
    return plan


def _bound(work: Work) -> int | None:
    items = list(work.movable.values())
    held = [(item, work.lift(item)) for item in items]
    # A pod may run where its rules would not let it go any more. Without it the bound is still one.
    bound = at_least(work, [item for item in items if item.home < 0 or work.fits(item)[item.home]])
    for item, allocation in held:
        work.restore(item, allocation)
    return bound


def _orders(work: Work, prices: Mapping[str, float]) -> list[list[int]]:
    """Orders in which nodes are tried: those with the least work first, by GPUs, by pods, and by price."""
    load = {row: sum(weight(item) for item in work.items_on(row)) for row in work.gpu_rows}
    pods = {row: len(work.items_on(row)) for row in work.gpu_rows}
    dear = {row: -prices.get(work.name(row), 0.0) for row in work.gpu_rows}
    empty = {row: pods[row] > 0 for row in work.gpu_rows}
    keys: list[Callable[[int], tuple[float, ...]]] = [
        lambda row: (empty[row], load[row], dear[row]),
        lambda row: (empty[row], pods[row], load[row]),
        lambda row: (empty[row], dear[row], load[row]),
    ]
    orders = [sorted(work.gpu_rows, key=lambda row: (*key(row), work.name(row))) for key in keys]
    return [order for n, order in enumerate(orders) if order not in orders[:n]]


class _Attempt:
    """One order of nodes, tried on the fleet. ``undo`` restores the fleet."""

    def __init__(self, work: Work) -> None:
        self._work, self._before = work, dict(work.at)
        self._closed: list[int] = []
        self.goes: dict[str, list[str]] = {}
        self.stays: dict[str, str] = {}
        self.target: dict[str, str] = {}
        self._home: dict[str, str] = {key: work.name(held.row) for key, held in work.at.items()}

    def run(self, order: list[int], progress: Callable[[float], None]) -> None:
        for number, row in enumerate(order):
            progress(number / len(order))
            name = self._work.name(row)
            if why := self._why_not(row):
                self.stays[name] = why
            else:
                self.goes[name] = []
        for key, held in self._work.at.items():
            if held != self._before[key]:
                home, end = self._home[key], self._work.name(held.row)
                self.goes[home].append(key)
                self.target[key] = end

    def _why_not(self, row: int) -> str:
        """Drain the node if that is possible, else say why not."""
        work = self._work
        if keep := blockers(work, row):
            key, why = next(iter(sorted(keep.items())))
            more = f" (and {len(keep) - 1} more)" if len(keep) > 1 else ""
            return f"{key}: {why}{more}"
        work.open[row] = False
        problem = work.move_all(work.items_on(row))
        if problem:
            work.open[row] = True
            return problem
        self._closed.append(row)
        return ""

    def undo(self) -> None:
        work = self._work
        work.open[self._closed] = True
        moved = [key for key, held in work.at.items() if held != self._before[key]]
        items: list[Item] = [work.movable[key] for key in moved]
        for item in items:
            work.lift(item)
        before: list[tuple[Item, Allocation]] = [(item, self._before[item.key]) for item in items]
        for item, held in before:
            work.restore(item, held)
