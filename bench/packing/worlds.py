"""Worlds in which pods arrive and end: the GPU-hours that a policy places, and the waiting times of pods.

A world is a JSON file: ``load`` (requested GPUs, as a fraction of all), ``life`` (mean run time), ``warm``
(arrivals that do not count), ``nodes``, and ``templates`` of pods: ``name``, ``pod``, the ``gpus`` of one
pod, ``gang`` pods that start together or not at all, with ``domain`` in one NVLink domain or below one leaf
switch, and ``big`` for the jobs whose loss or wait is reported. ``arrivals`` are (time, duration, template).

``drop``: jobs that fit nowhere are dropped. ``queue``: they wait; whenever a job ends, all pending ones are
tried in order of arrival.

    python -m bench.packing.worlds DIR [--way queue] [--load 0.85] [--policies inventory,best-fit]

``--owners``: run times are redrawn by owner. ``--lifetimes``: the policy learns them from completed jobs.
``--wrong 3``: the run times learned for an owner are 3 times too long or too short, at random.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.packing.backfilling import WAYS, Backfilling, Job, Way
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES
from extender.cluster.end_costs import PROLONGED
from extender.cluster.factory import state_of
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.policy_refresh import choose_node_sets_now
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.node_filter import node_requirement
from extender.plan.bill import in_order
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.verbs.evaluate import separation_costs
from packing.fleet.feasibility import copies_that_fit, reasons_for
from packing.fleet.node_usage import Allocation
from packing.model.lifetimes import LastEnds, Running
from packing.model.request import Request
from packing.policies.interface import Policy

RIVALS = ("best-fit", "fgd", "first-fit", "most-allocated", "least-allocated", "tightest")
_SETS_AGAIN = 500
"""Pods after which the sets of nodes are chosen again, as in the service with each plan."""

Rows = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Template:
    """Pods of one kind: their request, and the ``rows`` (N,) where their rules permit them."""

    name: str
    request: Request
    learned: Request
    rows: Rows
    gpus: float
    gang: int
    domain: bool
    big: bool


class Arrival(NamedTuple):
    """``limit``: the declared run time, infinite for none."""

    time: float
    duration: float
    template: Template
    owner: int | None = None
    priority: int = 0
    limit: float = math.inf


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of the arrivals that count. ``placed``: GPU-hours that ran, in percent of those requested;
    ``lost``: dropped big jobs, in percent; ``wait``: mean wait of big jobs, in mean run times, ``late`` its
    95th percentile, ``small`` the mean of the others; ``gpu_wait``: waits weighted by GPUs, in percent of all
    GPU-time; ``used``: GPU-hours until the last arrival, in percent of the nodes'."""

    placed: float
    lost: float
    wait: float
    gpu_wait: float
    late: float = 0.0
    small: float = 0.0
    used: float = 0.0


class World:
    """One world with its cluster, for one run."""

    def __init__(self, text: Mapping[str, Any], policy: str, load: float | None = None) -> None:
        longer = load / text["load"] if load else 1.0
        self.life, self.warm, self.gpus = text["life"] * longer, text["warm"], text["gpus"]
        self.state = state = _state(text["nodes"])
        rows = [state.fleet.rows[name] for name in sorted(state.fleet.rows)]
        order = np.concatenate([rows, np.setdiff1d(np.arange(state.fleet.arrays.capacity), rows)])
        self._order = order.astype(np.int64)
        self.use(POLICIES[policy]())
        self.domains = state.nodes.network.ids(state.fleet)
        permitted = PermittedRows(state)
        templates = [_template(entry, permitted) for entry in text["templates"]]
        self.arrivals = [
            Arrival(t, duration * longer, templates[kind], *owner)
            for t, duration, kind, *owner in text["arrivals"]
        ]
        self._seen = 0
        self.ends: LastEnds | None = None
        self.wrong = dict[int | None, float]()
        """By owner: ratio of the learned to the actual run time."""
        self.backfilling: Backfilling | None = None

    def reserve(self, way: Way) -> None:
        """Reserve nodes for large jobs."""
        self.backfilling = Backfilling(way, self.state.fleet, self.domains, self.life)

    def use(self, policy: Policy) -> None:
        """Place pods with this policy."""
        self.placer = Placer(self.state.fleet, policy, NodePicker(self._order))

    def give_owners(self, seed: int, wrong: float = 1.0, owners: int = 40) -> None:
        """Assign each job to one of ``owners`` owners, whose run times are lognormal: means and runs with a
        sigma of 1. They are learned ``wrong`` times too long or too short."""
        rng = np.random.default_rng([seed, 99])
        mean = rng.normal(0, 1, owners)
        kinds = rng.integers(owners, size=len(self.arrivals))
        durations = np.exp(mean[kinds] + rng.normal(0, 1, len(kinds)))
        durations *= self.life / durations.mean()
        self.wrong = dict(enumerate((wrong ** rng.choice([-1, 1], owners)).tolist()))
        self.arrivals = [
            job._replace(duration=float(duration), owner=int(owner))
            for job, duration, owner in zip(self.arrivals, durations, kinds, strict=True)
        ]

    def give_limits(self, seed: int, factors: tuple[float, float], declared: float = 1.0) -> None:
        """This fraction of the jobs declares limits, so many times longer than their run times."""
        rng = np.random.default_rng([seed, 98])
        wrong = rng.uniform(*factors, len(self.arrivals))
        wrong[rng.random(len(self.arrivals)) >= declared] = np.inf
        self.arrivals = [
            job._replace(limit=job.duration * factor)
            for job, factor in zip(self.arrivals, wrong.tolist(), strict=True)
        ]

    def give_priorities(self, seed: int, urgent: float = 0.1) -> None:
        """This fraction of the jobs has a higher priority."""
        rng = np.random.default_rng([seed, 97])
        higher = rng.random(len(self.arrivals)) < urgent
        self.arrivals = [
            job._replace(priority=int(high)) for job, high in zip(self.arrivals, higher, strict=True)
        ]

    def job(self, number: int) -> Job:
        """An arrival as a job of which reservations know."""
        job = self.arrivals[number]
        kind = job.template
        return Job(
            number, kind.request, kind.gang, kind.rows, kind.domain, kind.gpus * kind.gang, job.time,
            job.duration, job.owner, job.priority, job.limit,
        )  # fmt: skip

    def closed_to(self, number: int, now: float) -> tuple[str, ...]:
        """The nodes that are reserved for others."""
        return self.backfilling.closed_to(self.job(number), now) if self.backfilling else ()

    def learn(self, template: Template) -> None:
        """A job arrives."""
        for _ in range(template.gang):
            self.state.learner.monitor.demand.observe(template.learned)
            self._seen += 1
            if self._seen % _SETS_AGAIN == 0 or self._seen in (32, 64, 128, 256):
                choose_node_sets_now(self.state)
            self.placer.arrive(template.learned)

    def place(self, number: int, now: float) -> list[Allocation] | None:
        """Places for all pods of a job, or none."""
        job, owner = self.arrivals[number].template, self.arrivals[number].owner
        self._more = separation_costs(self.state.fleet, job.request, np.arange(self._order.size))
        if self.ends:
            self.ends.update(now, len(self.state.fleet.rows))
            if prolonged := self.ends.prolonged(owner):
                later = np.full(self._more.size, PROLONGED * prolonged[1], np.float32)
                rows = [self.state.fleet.rows[node] for node in self.ends.places]
                later[rows] = PROLONGED * prolonged[0]
                self._more += later
        permitted = job.rows.copy()
        for node in self.closed_to(number, now):
            permitted[self.state.fleet.rows[node]] = False
        if (reasons_for(self.state.fleet, job.request)[permitted] != 0).all():
            return None
        ways = [self._place_on(job, rows) for rows in self._places(job, permitted)]
        held = min((way for way in ways if way), key=lambda way: way[0], default=(0.0, None))[1]
        for place, allocation in enumerate(held or ()):
            self.state.fleet.take(allocation)
            if self.ends:
                spec = self.state.fleet.specs[allocation.row]
                assert spec is not None
                self.ends.starts(f"{number}/{place}", Running(spec.name, (owner,), now))
        if held and self.backfilling:
            self.backfilling.starts(self.job(number), now, held)
        return held

    def _places(self, job: Template, permitted: Rows) -> Iterator[Rows]:
        """The sets of permitted rows in which to place a job: one domain, or anywhere."""
        if not job.domain:
            yield permitted
            return
        copies = copies_that_fit(self.state.fleet, job.request)
        assert copies is not None  # a gang in one domain requests whole GPUs
        copies = np.where(permitted, copies, 0)
        level = next((ids for ids in self.domains if (ids >= 0).any()), self.domains[0])
        for domain in np.unique(level[level >= 0]).tolist():
            if copies[level == domain].sum() >= job.gang:
                yield permitted & (level == domain)

    def _place_on(self, job: Template, rows: Rows) -> tuple[float, list[Allocation]] | None:
        """The cost and the allocations of all pods of a job on these rows; they are not taken."""
        fleet, held, total = self.state.fleet, list[Allocation](), 0.0
        for _ in range(job.gang):
            cost = self.placer.price(job.request) + self._more
            total += float(cost[rows].min())
            if (allocation := self.placer.place(job.request, rows, self._more)) is None:
                break
            held.append(allocation)
        for allocation in reversed(held):
            fleet.give_back(allocation)
        return (total, held) if len(held) == job.gang else None

    def leave(self, number: int, held: Sequence[Allocation], now: float) -> None:
        for place, allocation in enumerate(held):
            if self.ends:
                pod, owner = f"{number}/{place}", self.arrivals[number].owner
                ran = now - self.ends.running[pod].started
                self.ends.leaves(pod, now + (self.wrong.get(owner, 1.0) - 1) * ran)
            self.state.fleet.give_back(allocation)
        if self.backfilling:
            self.backfilling.ends(self.job(number))


def run(world: World, *, queue: bool) -> Result:
    """Replay all arrivals of a world."""
    waits: dict[int, float] = {}  # by job that has started

    def starts(number: int, now: float, held: list[Allocation]) -> None:
        waits[number] = now - world.arrivals[number].time

    play(world, starts, queue=queue)
    return _result(world, waits)


def play(
    world: World,
    starts: Callable[[int, float, list[Allocation]], None],
    ends: Callable[[int], None] = lambda number: None,
    waits: Callable[[int, Sequence[int], float], None] = lambda number, ahead, now: None,
    *,
    queue: bool,
) -> None:
    """Replay all arrivals of a world. It calls ``starts`` with a job's number, the time and its allocations;
    ``ends``; and in a ``queue`` ``waits`` with the jobs ahead of it, and the time."""
    ending, running, waiting = list[tuple[float, int]](), dict[int, list[Allocation]](), list[int]()

    def start(number: int, now: float) -> bool:
        if (held := world.place(number, now)) is None:
            return False
        starts(number, now, held)
        running[number] = held
        heapq.heappush(ending, (now + world.arrivals[number].duration, number))
        return True

    for now, number, arrives in in_order([job.time for job in world.arrivals], ending):
        if not arrives:
            world.leave(number, running.pop(number), now)
            ends(number)
            _start_pending(world, waiting, start, now)
            continue
        world.learn(world.arrivals[number].template)
        if not start(number, now) and queue:
            waits(number, waiting, now)
            waiting.append(number)


def _start_pending(world: World, waiting: list[int], start: Callable[[int, float], bool], now: float) -> None:
    """Start the pending jobs that fit, those of the highest priority first."""
    if world.backfilling:
        world.backfilling.renew([world.job(number) for number in waiting], now)
    refused: set[object] = set()
    for number in sorted(waiting, key=lambda number: (-world.arrivals[number].priority, number)):
        kind = world.arrivals[number].template.name, world.closed_to(number, now)
        if kind in refused:
            continue
        if start(number, now):
            waiting.remove(number)
        else:
            refused.add(kind)


def _result(world: World, waits: Mapping[int, float]) -> Result:
    counted = range(world.warm, len(world.arrivals))
    jobs = [world.arrivals[number] for number in counted]
    began, ended = jobs[0].time, jobs[-1].time
    started = np.array([number in waits for number in counted])
    waited = np.array([waits.get(number, 0.0) for number in counted])
    gpus = np.array([job.template.gpus * job.template.gang for job in jobs])
    asked = gpus * [job.duration for job in jobs]
    big = np.array([job.template.big for job in jobs])
    every = world.arrivals[: counted.stop]
    runs = [(job.time + waits[number], job) for number, job in enumerate(every) if number in waits]
    used = sum(
        job.template.gpus * job.template.gang * max(min(start + job.duration, ended) - max(start, began), 0.0)
        for start, job in runs
    )
    of_big = waited[big] / world.life if big.any() else np.zeros(1)
    return Result(
        100 * float(asked[started].sum() / asked.sum()),
        100 * float((~started[big]).mean()) if big.any() else 0.0,
        float(of_big.mean()),
        100 * float(gpus @ waited / asked.sum()),
        float(np.quantile(of_big, 0.95)),
        float((waited[~big] / world.life).mean()) if not big.all() else 0.0,
        100 * used / (world.gpus * max(ended - began, 1e-9)),
    )


def world_of(text: Mapping[str, Any], policy: str, args: argparse.Namespace) -> World:
    """The world with the options of the arguments."""
    world = World(text, policy, args.load)
    if args.owners and world.arrivals[0].owner is None:
        world.give_owners(text["seed"], args.wrong)
    if args.limits:
        world.give_limits(text["seed"], (args.limits[0], args.limits[1]), args.declared)
    if args.urgent:
        world.give_priorities(text["seed"], args.urgent)
    if args.lifetimes:
        world.ends = LastEnds()
    return world


def _state(nodes: Sequence[Mapping[str, Any]]) -> State:
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": nodes}), "")
    assert not snapshot.problems
    state = state_of(Settings())
    for events in SnapshotSource(snapshot, "").list_once():
        state.apply(events)
    return state


def _template(entry: Mapping[str, Any], permitted: PermittedRows) -> Template:
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": [entry["pod"]]}), "")
    (pod,) = snapshot.pods.values()
    request = request_of(pod)
    learned = replace(request, node_set=node_requirement(pod))
    job = entry["gpus"], entry["gang"], entry["domain"], entry["big"]
    return Template(entry["name"], request, learned, permitted.rows_that_accept(pod), *job)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.worlds")
    parser.add_argument("worlds", type=Path, nargs="+", help="files, or directories of them")
    parser.add_argument("--way", choices=("drop", "queue"), default="drop")
    parser.add_argument("--load", type=float, help="requested GPUs, as a fraction (default: the world's)")
    parser.add_argument("--owners", action="store_true", help="draw run times by owner")
    parser.add_argument("--wrong", type=float, default=1.0, help="error factor of learned run times")
    parser.add_argument("--lifetimes", action="store_true", help="learn run times")
    parser.add_argument("--limits", type=float, nargs=2, metavar=("FROM", "TO"), help="of the run times")
    parser.add_argument("--declared", type=float, default=1.0, help="fraction of the jobs with limits")
    parser.add_argument("--urgent", type=float, default=0.0, help="fraction of the jobs of higher priority")
    parser.add_argument(
        "--reserve", type=lambda text: text.split(","), help=f"compare reservations: {','.join(WAYS)}"
    )
    parser.add_argument("--policies", type=lambda text: text.split(","), default=["inventory", *RIVALS])
    args = parser.parse_args(arguments)
    files = [
        path for given in args.worlds for path in (sorted(given.iterdir()) if given.is_dir() else [given])
    ]
    results = defaultdict[tuple[str, str], list[Result]](list)
    for path in files:
        text = json.loads(path.read_text())
        for way in args.reserve or ():
            world = world_of(text, args.policies[0], args)
            world.reserve(way)
            results[text["world"], way].append(run(world, queue=True))
        for policy in () if args.reserve else args.policies:
            world = world_of(text, policy, args)
            results[text["world"], policy].append(run(world, queue=args.way == "queue"))
    if args.reserve:
        print("\n".join(waits_table(results, args.reserve)))
        return
    print("\n".join(table(results, args.policies, queue=args.way == "queue")))


def table(
    results: Mapping[tuple[str, str], Sequence[Result]], policies: Sequence[str], *, queue: bool
) -> Iterator[str]:
    """A row for each world: both figures for each policy."""
    yield f"| world | {' | '.join(policies)} |"
    yield f"|---|{'--:|' * len(policies)}"
    for world in dict.fromkeys(name for name, _ in results):
        cells = []
        for policy in policies:
            runs = results[world, policy]
            first, second = ("gpu_wait", "wait") if queue else ("placed", "lost")
            cells.append(f"{_mean(runs, first)} / {_mean(runs, second)}")
        yield f"| {world} | {' | '.join(cells)} |"


def waits_table(results: Mapping[tuple[str, str], Sequence[Result]], ways: Sequence[str]) -> Iterator[str]:
    """A row for each world: for each way the mean wait of big jobs and its 95th percentile, that of small
    ones, that weighted by GPUs, and the GPU-hours until the last arrival."""
    yield f"| world | {' | '.join(ways)} |"
    yield f"|---|{'---|' * len(ways)}"
    figures = "wait", "late", "small", "gpu_wait", "used"
    for world in dict.fromkeys(name for name, _ in results):
        cells = ["; ".join(_mean(results[world, way], name) for name in figures) for way in ways]
        yield f"| {world} | {' | '.join(cells)} |"


def _mean(runs: Sequence[Result], name: str) -> str:
    return f"{fmean(getattr(one, name) for one in runs):.3g}"


if __name__ == "__main__":
    main()
