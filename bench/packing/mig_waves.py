"""MIG layouts that change by the rule of the evictor, compared with fixed layouts and the best split in
hindsight.

    python -m bench.packing.mig_waves
    python -m bench.packing.mig_waves steady --nodes 24 --load 0.6 --days 7 --seeds 1

A fleet of nodes with 8 H100 serves pods of one `1g.10gb` and jobs of 8 GPUs. In `waves` the small ones arrive
by day and the large ones by night, in `shift` the demand moves from small to large over the days, in `steady`
both arrive at a constant rate. A node has small instances, or whole GPUs; a change takes `--seconds`, and at
most four small pods are moved for it. The rule is `packing.plan.mig_layouts`, evaluated every 30 seconds,
starting with half of the nodes of each kind, in `steady` with the best fixed layout. `best fixed` is the
number of nodes with whole GPUs that serves the most over all days. `best per wave` changes idle nodes
instantly and at no cost to the best number for each half day, also found in hindsight.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from random import Random
from statistics import fmean

from extender.evictor.book import Peaks, WaitClock
from packing.plan.mig_layouts import ChangeRule, Wanted, served

HOUR, DAY, TICK = 3600.0, 86_400.0, 30.0
SMALL, LARGE = "1g.10gb", "gpu"
HAS = {SMALL: 56, LARGE: 8}
ASKS = {SMALL: 1, LARGE: 8}
GPUS = {SMALL: 1 / 7, LARGE: 8.0}
RESTART, MOST_MOVES = 300.0, 4


@dataclass(slots=True)
class Job:
    name: str
    kind: str
    arrives: float
    seconds: float
    waited: float = math.nan


@dataclass(slots=True)
class Node:
    """`layout`: the devices it offers; `free`: the number of free ones. `until`: the end of a change, or of
    the time to keep the layout."""

    layout: str
    free: int
    changing: bool = False
    until: float = -math.inf
    changed: float = -math.inf

    @property
    def used(self) -> int:
        return HAS[self.layout] - self.free


@dataclass(slots=True)
class Result:
    gpu_hours: float
    waits: dict[str, float]
    changes: int = 0


@dataclass(slots=True)
class World:
    nodes: list[Node]
    queues: dict[str, deque[Job]] = field(default_factory=lambda: {SMALL: deque(), LARGE: deque()})
    ends: list[tuple[float, int, str, Node]] = field(default_factory=list)
    number: int = 0
    changes: int = 0

    def start_what_fits(self, now: float) -> None:
        for kind, queue in self.queues.items():
            while queue and (node := self._place(kind)):
                job = queue.popleft()
                job.waited = now - job.arrives
                node.free -= ASKS[kind]
                self.number += 1
                heapq.heappush(self.ends, (now + job.seconds, self.number, kind, node))

    def _place(self, kind: str) -> Node | None:
        """The fullest node."""
        able = (n for n in self.nodes if n.layout == kind and not n.changing and n.free >= ASKS[kind])
        return min(able, key=lambda node: node.free, default=None)

    def end_until(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, _, kind, node = heapq.heappop(self.ends)
            node.free += ASKS[kind]

    def change(self, node: Node) -> None:
        node.layout = LARGE if node.layout == SMALL else SMALL
        node.free = HAS[node.layout]


Control = Callable[[World, float], None]


def simulate(jobs: list[Job], whole: int, nodes: int, days: float, control: Control) -> Result:
    """Replay the jobs; initially `whole` nodes have whole GPUs."""
    fleet = [Node(LARGE, HAS[LARGE]) for _ in range(whole)]
    fleet += [Node(SMALL, HAS[SMALL]) for _ in range(nodes - whole)]
    world, arrivals, tick = World(fleet), deque(jobs), 0.0
    for job in jobs:
        job.waited = math.nan
    while tick < days * DAY:
        tick += TICK
        while (arrivals and arrivals[0].arrives <= tick) or (world.ends and world.ends[0][0] <= tick):
            at = min(
                arrivals[0].arrives if arrivals else math.inf, world.ends[0][0] if world.ends else math.inf
            )
            world.end_until(at)
            while arrivals and arrivals[0].arrives <= at:
                job = arrivals.popleft()
                world.queues[job.kind].append(job)
            world.start_what_fits(at)
        control(world, tick)
        world.start_what_fits(tick)
    return _result(jobs, days * DAY, world.changes)


def _result(jobs: list[Job], end: float, changes: int) -> Result:
    """The result; a job that has not started has waited until the end."""
    hours, waits = 0.0, dict[str, list[float]]({SMALL: [], LARGE: []})
    for job in jobs:
        started = job.arrives + job.waited if job.waited >= 0 else end
        waits[job.kind].append(min(started, end) - job.arrives)
        hours += GPUS[job.kind] * max(0.0, min(end - started, job.seconds)) / HOUR
    return Result(
        hours, {kind: fmean(times) / 60 if times else 0.0 for kind, times in waits.items()}, changes
    )


def fixed(world: World, now: float) -> None:
    """Never change layouts."""


def split(per_half_day: tuple[int, int]) -> Control:
    """Change idle nodes instantly to the number of nodes with whole GPUs for the time of day."""

    def control(world: World, now: float) -> None:
        wanted = per_half_day[int(now % DAY >= DAY / 2)]
        for node in world.nodes:
            more = wanted - sum(other.layout == LARGE for other in world.nodes)
            if more and not node.used and (node.layout == SMALL) == (more > 0):
                world.change(node)

    return control


class ByRule:
    """The rule as in `extender.evictor.layout_changes`."""

    def __init__(self, rule: ChangeRule) -> None:
        self._rule, self._clock, self._peaks = rule, WaitClock(), Peaks()
        self._begun: list[float] = []
        self._moved = 0.0

    def __call__(self, world: World, now: float) -> None:
        for node in world.nodes:
            if node.changing and now >= node.until:
                node.changing, node.until = False, now + self._rule.keep
                world.change(node)
        waiting = [job for queue in world.queues.values() for job in list(queue)[:256]]
        total = {kind: sum(HAS[kind] for node in world.nodes if node.layout == kind) for kind in HAS}
        used = {kind: sum(node.used for node in world.nodes if node.layout == kind) for kind in HAS}
        asked = {kind: used[kind] + ASKS[kind] * len(queue) for kind, queue in world.queues.items()}
        self._peaks.see(asked, now)
        may = [node for node in world.nodes if not node.changing and now >= node.until]
        may = [node for node in may if self._peaks.leaves_enough(total, {node.layout: HAS[node.layout]}, {})]
        free = sum(node.free / HAS[node.layout] * 8 for node in may)
        waits = {}
        for job in waiting:
            enough = GPUS[job.kind] <= free and any(node.layout != job.kind for node in may)
            waits[job.name] = self._clock.look(job.name, now, enough=enough)
        self._clock.keep(waits)
        if self._rule.may_begin(self._begun, sum(node.changing for node in world.nodes), now):
            self._begin(world, may, waiting, waits, now)

    def _begin(
        self, world: World, may: list[Node], waiting: list[Job], waits: dict[str, float], now: float
    ) -> None:
        """Change the node with the fewest pods, if all of them have a place elsewhere."""
        for node in sorted(may, key=lambda node: (node.used, node.changed)):
            kind = LARGE if node.layout == SMALL else SMALL
            late = [job for job in waiting if job.kind == kind and waits[job.name] >= self._rule.after]
            elsewhere = sum(
                other.free for other in world.nodes if other.layout == node.layout and other is not node
            )
            pods = node.used // ASKS[node.layout]
            if pods and (node.layout == LARGE or pods > MOST_MOVES or elsewhere < node.used):
                continue
            gpus = served({kind: HAS[kind]}, [Wanted(((kind, ASKS[kind]),), GPUS[kind], len(late))])
            starting = late[: round(gpus / GPUS[kind])]
            lost = self._rule.lost(8, pods * GPUS[node.layout] * RESTART, now - node.changed)
            if starting and self._rule.is_worth(lost, ((GPUS[kind], waits[job.name]) for job in starting)):
                _move(world, node)
                node.changing, node.changed, node.until = True, now, now + self._rule.seconds
                self._begun.append(now)
                world.changes += 1
                return


def _move(world: World, node: Node) -> None:
    """Move its pods to the fullest other nodes of the layout, where they restart."""
    for index, (end, number, kind, home) in enumerate(world.ends):
        if home is node:
            others = (n for n in world.nodes if n is not node and n.layout == kind and n.free >= ASKS[kind])
            other = min(others, key=lambda found: found.free)
            other.free -= ASKS[kind]
            node.free += ASKS[kind]
            world.ends[index] = end + RESTART, number, kind, other
    heapq.heapify(world.ends)


def jobs_of(world: str, nodes: int, days: float, load: float, seed: int) -> list[Job]:
    """Arrivals of both kinds, which run for an hour on average."""
    random, rates = Random(seed), _rates(world, nodes, days, load)
    found = list(_arrivals(random, SMALL, days, rates)) + list(_arrivals(random, LARGE, days, rates))
    return sorted(found, key=lambda job: job.arrives)


def _rates(world: str, nodes: int, days: float, load: float) -> Callable[[float], dict[str, float]]:
    """By time, the number of nodes that the demand of each kind would fill."""

    def at(now: float) -> dict[str, float]:
        if world == "waves":
            small = 0.8 if now % DAY < DAY / 2 else 0.2
        elif world == "shift":
            small = 0.8 - 0.6 * now / (days * DAY)
        else:
            small = 0.5
        return {SMALL: load * nodes * small, LARGE: load * nodes * (1 - small)}

    return at


def _arrivals(
    random: Random, kind: str, days: float, rates: Callable[[float], dict[str, float]]
) -> Iterator[Job]:
    now, number, of_node = 0.0, 0, HAS[kind] / ASKS[kind]
    while True:
        now += random.expovariate(rates(now)[kind] * of_node / HOUR)
        if now >= days * DAY:
            return
        number += 1
        yield Job(f"{kind}-{number}", kind, now, random.expovariate(1 / HOUR))


def table(world: str, options: argparse.Namespace) -> None:
    rows: dict[str, list[Result]] = {
        "half and half": [],
        "best fixed": [],
        "the rule": [],
        "best per wave": [],
    }
    rule = ChangeRule(seconds=options.seconds, nodes=options.at_once, per_hour=options.per_hour)
    for seed in range(options.seeds):
        jobs = jobs_of(world, options.nodes, options.days, options.load, seed)

        def run(whole: int, control: Control, jobs: list[Job] = jobs) -> Result:
            return simulate(jobs, whole, options.nodes, options.days, control)

        counts = range(0, options.nodes + 1)
        half = options.nodes // 2
        rows["half and half"].append(run(half, fixed))
        of_counts = [run(whole, fixed) for whole in counts]
        best_count = max(counts, key=lambda whole: of_counts[whole].gpu_hours)
        rows["best fixed"].append(of_counts[best_count])
        rows["the rule"].append(run(best_count if world == "steady" else half, ByRule(rule)))
        pairs = product(counts[1:-1], counts[1:-1]) if world == "waves" else ()
        best = [run(day, split((day, night))) for day, night in pairs]
        if best:
            rows["best per wave"].append(max(best, key=lambda r: r.gpu_hours))
    print(f"\n{world}: {options.nodes} nodes, {options.days:g} days, load {options.load:g}")
    print(f"{'':16}GPU-hours  small waits  large waits (minutes)  changes a day")
    for name, results in rows.items():
        if results:
            hours, small = fmean(r.gpu_hours for r in results), fmean(r.waits[SMALL] for r in results)
            large, changes = fmean(r.waits[LARGE] for r in results), fmean(r.changes for r in results)
            print(f"{name:16}{hours:9,.0f}{small:13.1f}{large:13.1f}{changes / options.days:26.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worlds", nargs="*", default=["waves", "shift", "steady"])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--days", type=float, default=3)
    parser.add_argument("--load", type=float, default=0.75)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--per-hour", type=int, default=4)
    options = parser.parse_args()
    for world in options.worlds:
        table(world, options)


if __name__ == "__main__":
    main()
