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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    time: float
    duration: float
    template: Template
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of the arrivals that count. ``placed``: GPU-hours that ran, in percent of those requested;
    ``lost``: dropped big jobs, in percent; ``wait``: mean wait of big jobs, in mean run times; ``gpu_wait``:
    waits weighted by GPUs, in percent of all GPU-time."""

    placed: float
    lost: float
    wait: float
    gpu_wait: float


class World:
    """One world with its cluster, for one run."""

    def __init__(self, text: Mapping[str, Any], policy: str, load: float | None = None) -> None:
        longer = load / text["load"] if load else 1.0
        self.life, self.warm = text["life"] * longer, text["warm"]
        self.state = state = _state(text["nodes"])
        rows = [state.fleet.rows[name] for name in sorted(state.fleet.rows)]
        order = np.concatenate([rows, np.setdiff1d(np.arange(state.fleet.arrays.capacity), rows)])
        self._order = order.astype(np.int64)
        self.use(POLICIES[policy]())
        self.domains = state.nodes.network.ids(state.fleet)
        permitted = PermittedRows(state)
        templates = [_template(entry, permitted) for entry in text["templates"]]
        self.arrivals = [
            Arrival(t, duration * longer, templates[kind]) for t, duration, kind in text["arrivals"]
        ]
        self._seen = 0
        self.ends: LastEnds | None = None
        self.wrong = dict[int | None, float]()
        """By owner: ratio of the learned to the actual run time."""

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
        if (reasons_for(self.state.fleet, job.request)[job.rows] != 0).all():
            return None
        ways = [self._place_on(job, rows) for rows in self._places(job)]
        held = min((way for way in ways if way), key=lambda way: way[0], default=(0.0, None))[1]
        for place, allocation in enumerate(held or ()):
            self.state.fleet.take(allocation)
            if self.ends:
                spec = self.state.fleet.specs[allocation.row]
                assert spec is not None
                self.ends.starts(f"{number}/{place}", Running(spec.name, (owner,), now))
        return held

    def _places(self, job: Template) -> Iterator[Rows]:
        """The sets of rows in which to place a job: one domain, or anywhere."""
        if not job.domain:
            yield job.rows
            return
        copies = copies_that_fit(self.state.fleet, job.request)
        assert copies is not None  # a gang in one domain requests whole GPUs
        copies = np.where(job.rows, copies, 0)
        level = next((ids for ids in self.domains if (ids >= 0).any()), self.domains[0])
        for domain in np.unique(level[level >= 0]).tolist():
            if copies[level == domain].sum() >= job.gang:
                yield job.rows & (level == domain)

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


def run(world: World, *, queue: bool) -> Result:
    """Replay all arrivals of a world."""
    waits: dict[int, float] = {}

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
    ending: list[tuple[float, int, list[Allocation]]] = []
    waiting: list[int] = []

    def start(number: int, now: float) -> bool:
        if (held := world.place(number, now)) is None:
            return False
        starts(number, now, held)
        heapq.heappush(ending, (now + world.arrivals[number].duration, number, held))
        return True

    def pass_time(until: float) -> None:
        while ending and ending[0][0] <= until:
            now, done, held = heapq.heappop(ending)
            world.leave(done, held, now)
            ends(done)
            refused: set[str] = set()
            for number in [*waiting]:
                name = world.arrivals[number].template.name
                if name in refused:
                    continue
                if start(number, now):
                    waiting.remove(number)
                else:
                    refused.add(name)

    for number, job in enumerate(world.arrivals):
        pass_time(job.time)
        world.learn(job.template)
        if not start(number, job.time) and queue:
            waits(number, waiting, job.time)
            waiting.append(number)
    pass_time(np.inf)


def _result(world: World, waits: Mapping[int, float]) -> Result:
    sums = defaultdict[str, float](float)
    for number, job in enumerate(world.arrivals[world.warm :], world.warm):
        gpus, wait = job.template.gpus * job.template.gang, waits.get(number, 0.0)
        sums["asked"] += gpus * job.duration
        sums["placed"] += gpus * job.duration * (number in waits)
        sums["waited"] += gpus * wait
        if job.template.big:
            sums["big"] += 1
            sums["lost"] += number not in waits
            sums["big wait"] += wait / world.life
    big = max(sums["big"], 1)
    return Result(
        100 * sums["placed"] / sums["asked"],
        100 * sums["lost"] / big,
        sums["big wait"] / big,
        100 * sums["waited"] / sums["asked"],
    )


def world_of(text: Mapping[str, Any], policy: str, args: argparse.Namespace) -> World:
    """The world with the options of the arguments."""
    world = World(text, policy, args.load)
    if args.owners:
        world.give_owners(text["seed"], args.wrong)
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
    parser.add_argument("--policies", type=lambda text: text.split(","), default=["inventory", *RIVALS])
    args = parser.parse_args(arguments)
    files = [
        path for given in args.worlds for path in (sorted(given.iterdir()) if given.is_dir() else [given])
    ]
    results = defaultdict[tuple[str, str], list[Result]](list)
    for path in files:
        text = json.loads(path.read_text())
        for policy in args.policies:
            world = world_of(text, policy, args)
            results[text["world"], policy].append(run(world, queue=args.way == "queue"))
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


def _mean(runs: Sequence[Result], name: str) -> str:
    return f"{fmean(getattr(one, name) for one in runs):.3g}"


if __name__ == "__main__":
    main()
