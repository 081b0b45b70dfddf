"""Quality of start forecasts, on worlds with a queue and on the jobs of Philly.

For a pending job the times are forecast by which it starts with a probability of 50 % and of 90 %, from the
completed jobs of its owner and of its size. Reported for all such jobs: the fraction that started in time
(coverage, target 50 and 90 %), and the mean pinball loss of both times in mean run times. The rivals:
``last``, the median and the 0.9 quantile of the last 100 waits of jobs of this size; and ``limits``, Slurm's
method (sched/backfill): all running jobs end at their limit, here two to five times their run time.

    python -m bench.packing.starts DIR --load 0.85
    python -m bench.packing.starts --philly jobs.csv --load 0.95
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bench.packing.worlds import Arrival, World, play
from extender.cluster.end_costs import EVERY
from packing.fleet.arrays import Doubles
from packing.fleet.node_usage import Allocation
from packing.model.lifetimes import PARTS, Lifetimes, stratified
from packing.plan.starts import Running, StartQueue, Stretch

FUTURES, ROWS, AHEAD = 64, 64, 10
"""Number of futures, of nodes considered for each job, and of jobs ahead of it that are placed before."""
_DAYS = 20
_LIMITS = 2.0, 5.0


Ends: TypeAlias = Callable[[int, float, int], Doubles]
"""Maps the number of a job, its age and a number of futures to the seconds that it will still run in each."""


class Forecast(NamedTuple):
    """The forecast for one job by one method: the times by which it starts, and when it started."""

    by: tuple[float, ...]
    started: float


class Placed(NamedTuple):
    """A job that has been running ``since``, and its allocations."""

    since: float
    held: list[Allocation]


class Forecaster:
    """Follows a world, and forecasts for the pending jobs."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.lifetimes, self.stretch = world, Lifetimes(), Stretch()
        self.running: dict[int, Placed] = {}
        self._limits = np.random.default_rng(seed).uniform(*_LIMITS, len(world.arrivals))
        self._waits: defaultdict[float, deque[float]] = defaultdict(lambda: deque(maxlen=100))
        self.open: dict[int, dict[str, tuple[float, ...]]] = {}
        self._undecided: dict[int, list[int]] = {}
        self.results: defaultdict[str, list[Forecast]] = defaultdict(list)

    def starts(self, number: int, now: float, held: list[Allocation]) -> None:
        job = self.world.arrivals[number]
        self.running[number] = Placed(now, held)
        if (made := self.open.pop(number, None)) is None:
            return
        self._waits[_size(job)].append(now - job.time)
        for way, by in made.items():
            if number >= self.world.warm:
                self.results[way].append(Forecast(by, now))
        self._judge(number, made, now, started=True)
        del self._undecided[number]

    def _judge(
        self, number: int, made: Mapping[str, tuple[float, ...]], now: float, *, started: bool
    ) -> None:
        """Learn from jobs that have started, and from those that did not start in time."""
        for place in [*self._undecided[number]]:
            if started or now > made["Stowage"][place]:
                self._undecided[number].remove(place)
                by = made["Stowage"][place]
                self.stretch.learn(PARTS[place], by, in_time=now <= by)

    def ends(self, number: int) -> None:
        self.lifetimes.ended(_kinds(self.world.arrivals[number]), self.world.arrivals[number].duration)
        del self.running[number]

    def waits(self, number: int, ahead: Sequence[int], now: float) -> None:
        """A job has to wait behind these jobs."""
        self._count_running(now)
        for other, made in self.open.items():
            self._judge(other, made, now, started=False)
        waits = self._waits[_size(self.world.arrivals[number])] or deque([0.0])
        last = tuple(now + float(np.quantile(waits, part)) for part in PARTS)
        mine = self._by(ahead, number, now, self._learned, FUTURES)
        limits = self._by(ahead, number, now, self._at_limit, 1)
        self.open[number] = {"Stowage": mine, "last": last, "limits": limits}
        self._undecided[number] = [*range(len(PARTS))]

    def _count_running(self, now: float) -> None:
        ages = defaultdict[Hashable, list[float]](list)
        for running, placed in self.running.items():
            for kind in _kinds(self.world.arrivals[running]):
                ages[kind].append(now - placed.since)
        self.lifetimes.count_running(ages)

    def _by(
        self, ahead: Sequence[int], number: int, now: float, ends: Ends, futures: int
    ) -> tuple[float, ...]:
        on_row: defaultdict[int, list[Running]] = defaultdict(list)
        soon = self.world.state.fleet.arrays.free_parts().sum(axis=0, dtype=np.float64)
        for running, placed in self.running.items():
            times = ends(running, now - placed.since, futures)
            for allocation in placed.held:
                on_row[allocation.row].append(Running(str(running), (allocation,), times))
                gpus = sum(count for _, count in allocation.devices)
                soon[allocation.row] += gpus / (1 + float(np.median(times)) / self.world.life)
        queue = StartQueue(self.world.state.fleet, lambda row: on_row[row], futures)
        for other in (*ahead[:AHEAD], number):
            job = self.world.arrivals[other]
            latest = np.zeros(futures)
            for _ in range(job.template.gang):
                rows = queue.candidates(job.template.request, job.template.rows, soon, ROWS)
                start = queue.start(job.template.request, rows)
                latest = np.maximum(latest, start.times)
                queue.take(str(other), job.template.request, start, ends(other, 0.0, futures))
        whole = start._replace(times=latest)
        by = self.stretch.times(whole, now) if futures > 1 else (float(latest[0]),) * len(PARTS)
        return tuple(now + seconds for seconds in by)

    def _learned(self, number: int, age: float, futures: int) -> Doubles:
        lifetime = self.lifetimes.of(*_kinds(self.world.arrivals[number])) or self.lifetimes.usual
        return lifetime.remaining(age, stratified(number, futures))

    def _at_limit(self, number: int, age: float, futures: int) -> Doubles:
        limit = self.world.arrivals[number].duration * self._limits[number]
        return np.full(futures, max(limit - age, 0.0))


def _size(job: Arrival) -> float:
    return job.template.gpus * job.template.gang


def _kinds(job: Arrival) -> tuple[Hashable, ...]:
    like = ("size", _size(job)), EVERY
    return like if job.owner is None else (("owner", job.owner), *like)


def run(world: World, seed: int) -> Forecaster:
    """Replay all arrivals of a world, with a queue in order of arrival in which jobs that fit overtake
    others."""
    forecaster = Forecaster(world, seed)
    play(world, forecaster.starts, forecaster.ends, forecaster.waits, queue=True)
    return forecaster


def philly(path: Path, load: float, days: int = _DAYS) -> dict[str, Any]:
    """The first days of Philly as a world: nodes of 8 GPUs, as many as this load needs; a job of more than 8
    GPUs is a gang of nodes. The owner of a job is its virtual cluster and size."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    jobs = [
        (datetime.fromisoformat(row["timestamp"]).timestamp(), float(row["duration"]), int(row["num_gpus"]))
        for row in rows
    ]
    start = jobs[len(jobs) // 4][0]
    jobs = [job for job in jobs if start <= job[0] < start + days * 86_400]
    seconds = jobs[-1][0] - start
    gpus = sum(min(duration, seconds) * gpus for _, duration, gpus in jobs) / seconds / load
    allocatable = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    nodes = [
        {
            "kind": "Node",
            "metadata": {"name": f"n{n:03}", "labels": {"nvidia.com/gpu.memory": "16384"}},
            "status": {"allocatable": allocatable},
        }
        for n in range(max(1, round(gpus / 8)))
    ]
    sizes = sorted({gpus for *_, gpus in jobs})
    templates = [_template(gpus) for gpus in sizes]
    arrivals = [(at - start, min(duration, seconds), sizes.index(gpus)) for at, duration, gpus in jobs]
    life = fmean(duration for _, duration, _ in arrivals)
    return {"world": "philly", "load": load, "life": life, "warm": len(arrivals) // 5, "nodes": nodes} | {
        "templates": templates, "arrivals": arrivals, "seed": 0,
    }  # fmt: skip


def _template(gpus: int) -> dict[str, Any]:
    each = min(gpus, 8)
    requests = {"nvidia.com/gpu": str(each), "cpu": str(each)}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ml"}, "spec": {"containers": containers}}
    gang = {"gang": -(-gpus // 8), "domain": False, "big": gpus >= 8}
    return {"name": str(gpus), "pod": pod, "gpus": each, **gang}


def table(results: Mapping[tuple[str, str], Sequence[Forecast]], lives: Mapping[str, float]) -> Iterator[str]:
    """A row for each world and method."""
    yield "| world | method | pending jobs | in time, 50 % | 90 % | loss, 50 % | 90 % |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for (world, way), made in results.items():
        cells = [
            f"{100 * fmean(one.started <= one.by[place] for one in made):.0f}" for place in range(len(PARTS))
        ]
        for place, part in enumerate(PARTS):
            late = [(one.started - one.by[place]) / lives[world] for one in made]
            cells.append(f"{fmean(max(part * one, (part - 1) * one) for one in late):.3f}")
        yield f"| {world} | {way} | {len(made):,} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.starts")
    parser.add_argument("worlds", type=Path, nargs="*", help="files, or directories of them")
    parser.add_argument("--philly", type=Path, help="jobs.csv")
    parser.add_argument("--load", type=float, default=0.85, help="requested GPUs, as a fraction of all")
    parser.add_argument("--days", type=int, default=_DAYS)
    args = parser.parse_args(arguments)
    files = [p for given in args.worlds for p in (sorted(given.iterdir()) if given.is_dir() else [given])]
    texts = [json.loads(path.read_text()) for path in files]
    texts += [philly(args.philly, args.load, args.days)] if args.philly else []
    results: defaultdict[tuple[str, str], list[Forecast]] = defaultdict(list)
    lives: dict[str, float] = {}
    for text in texts:
        world = World(text, "best-fit", args.load)
        if text["world"] != "philly":
            world.give_owners(text["seed"])
        lives[text["world"]] = world.life
        for way, made in run(world, text["seed"]).results.items():
            results[text["world"], way] += made
    print("\n".join(table(results, lives)))


if __name__ == "__main__":
    main()
