"""The benefit and cost of moves for large jobs: timelines with and without them on generated traces.

    python -m bench.packing.consolidation --nodes 100 --load 0.9 --checkpoint 1800

60, 20, 10 and 10 % of the jobs request 1, 2, 4 and 8 GPUs of nodes with 8; run times are lognormal (median 1
h, mean 3 h); arrivals are Poisson, and request ``--load`` of the GPU-hours. The first three days, in which
the fleet fills up, are not counted. ``--trace`` uses the first ``--days`` of a published trace instead
(``bench/packing/job_traces.py``), its arrivals shifted by up to ``--jitter`` seconds in each seed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.packing.filling import build_fleet
from bench.packing.job_traces import read_jobs
from bench.packing.moving_timeline import MovingTimeline, Ways
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES
from bench.packing.seeds import seed_range
from bench.packing.timeline import Ended, TimedPod
from bench.packing.timeline_figures import waiting_times
from extender.replay.report import aligned
from packing.fleet.arrays import Doubles
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import Request, whole_gpus
from packing.plan.move_rule import MoveRule

SIZES, PARTS = (1, 2, 4, 8), (0.6, 0.2, 0.1, 0.1)
_GPUS, _HOUR, _DAY, _SIGMA = 8, 3600.0, 86_400.0, math.sqrt(2 * math.log(3))
_WARM_UP = 3 * _DAY
_WAITS: dict[str, Callable[[Doubles], Any]] = {
    "mean": np.mean,
    **{f"p{part}": partial(np.percentile, q=part) for part in (50, 95, 99)},
}
WAYS = {"best-fit": (), "best-fit + reservation": ("reserve",), "fgd": (), "inventory": ()}
WAYS |= {f"{name} + moves": ("move",) for name in ("best-fit", "fgd", "inventory")}
Figures = dict[str, float]


def generated(nodes: int, days: float, load: float, seed: int) -> list[TimedPod]:
    """Jobs that request ``load`` x the GPUs of ``nodes`` nodes, for ``days`` days."""
    rng = np.random.default_rng(seed)
    rate = load * nodes * _GPUS / (float(np.dot(SIZES, PARTS)) * 3 * _HOUR)
    arrivals = np.cumsum(rng.exponential(1 / rate, int(days * _DAY * rate)))
    sizes = rng.choice(SIZES, arrivals.size, p=PARTS)
    runtimes = np.clip(rng.lognormal(math.log(_HOUR), _SIGMA, arrivals.size), 60, 100 * _HOUR)
    runtimes *= load * nodes * _GPUS * days * _DAY / float(sizes @ runtimes)  # long jobs determine it
    return [_job(*job) for job in zip(sizes.tolist(), arrivals.tolist(), runtimes.tolist(), strict=True)]


def of_trace(path: Path, days: float, jitter: float, seed: int) -> list[TimedPod]:
    """The jobs of the first days of a trace; those larger than a node are left out."""
    rng, jobs = np.random.default_rng(seed), read_jobs(path)
    last = jobs[0][1] + days * _DAY
    late = rng.uniform(0, jitter, len(jobs)).tolist()
    return [
        _job(gpus, submitted + more, duration)
        for (gpus, submitted, duration), more in zip(jobs, late, strict=True)
        if gpus <= _GPUS and submitted <= last
    ]


def _job(gpus: int, created: float, duration: float) -> TimedPod:
    return TimedPod(Request(4000 * gpus, gpus << 33, shares=whole_gpus(gpus)), created, duration)


def replayed(nodes: int, jobs: Sequence[TimedPod], policy: str, ways: Ways) -> Figures:
    """The figures of one timeline, for the jobs that arrive after the warm-up. Waits and completion times in
    minutes; ``moves``, and GPU-hours ``lost`` and ``waited``, per 1,000 jobs."""
    gpus = (Gpu(80_000, divisible=True),) * _GPUS
    fleet = build_fleet([NodeSpec(f"n{n}", 128_000, 1 << 40, gpus) for n in range(nodes)])
    timeline = MovingTimeline(Placer(fleet, POLICIES[policy](), NodePicker(np.arange(nodes))), jobs, ways)
    began = time.perf_counter()
    runs = timeline.replay()
    first = min(job.created for job in jobs)
    counted = np.array([job.created >= first + _WARM_UP for job in jobs])
    size = np.array([job.request.gpus for job in jobs])
    waited = np.nan_to_num(waiting_times(runs, len(jobs)))
    ended = np.zeros(len(jobs))
    for run in runs:
        ended[run.pod] = max(ended[run.pod], run.ended)
    took = ended - [job.created for job in jobs]
    lost = sum(run.lost * size[run.pod] for run in runs if counted[run.pod]) / _HOUR
    thousands = counted.sum() / 1000
    figures = {
        f"wait_{name}_{gpus}": float(figure(waited[counted & (size == gpus)])) / 60
        for gpus in SIZES if (counted & (size == gpus)).any()
        for name, figure in _WAITS.items()
    }  # fmt: skip
    figures |= {
        f"jct_{gpus}": float(took[counted & (size == gpus)].mean()) / 60
        for gpus in SIZES if (counted & (size == gpus)).any()
    }  # fmt: skip
    return figures | {
        "jct": float(took[counted].mean()) / 60,
        "blocked": 100 * timeline.blocked / (max(job.created for job in jobs) - first),
        "moves": sum(run.how is Ended.EVICTED for run in runs if counted[run.pod]) / thousands,
        "lost": lost / thousands,
        "waited": float(waited[counted] @ size[counted]) / _HOUR / thousands,
        "waited+lost": (float(waited[counted] @ size[counted]) / _HOUR + lost) / thousands,
        "seconds": time.perf_counter() - began,
    }


def rows(args: argparse.Namespace) -> Iterator[tuple[str, int, Figures]]:
    """(Way, seed, figures) of each replay."""
    rule = MoveRule(price=args.price, small_wait=args.small_wait)
    for seed in args.seeds:
        if args.trace:
            jobs = of_trace(args.trace, args.days, args.jitter, seed)
        else:
            jobs = generated(args.nodes, args.days, args.load, seed)
        for name in args.ways:
            ways = Ways(rule, "move" in WAYS[name], "reserve" in WAYS[name], args.checkpoint)
            yield name, seed, replayed(args.nodes, jobs, name.split(" + ")[0], ways)


def table(found: Sequence[tuple[str, int, Figures]], shown: Sequence[str]) -> str:
    """Means over the seeds, a row for each way."""
    lines = [["", *shown]]
    for name in dict.fromkeys(name for name, *_ in found):
        of_way = [figures for way, _, figures in found if way == name]
        lines.append(
            [name, *(f"{np.mean([figures.get(key, math.nan) for figures in of_way]):.1f}" for key in shown)]
        )
    return aligned(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--days", type=float, default=14)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--checkpoint", type=float, default=math.inf, help="seconds (never)")
    parser.add_argument("--price", type=float, default=MoveRule().price)
    parser.add_argument("--small-wait", type=float, default=math.inf, help="seconds (no guard)")
    parser.add_argument("--seeds", type=seed_range, default=seed_range("1-3"))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--jitter", type=float, default=600)
    found = []
    for name, seed, figures in rows(parser.parse_args()):
        found.append((name, seed, figures))
        print(
            name, seed, *(f"{key}={value:.3g}" for key, value in figures.items()), file=sys.stderr, flush=True
        )
    print(table(found, [f"wait_{name}_{gpus}" for gpus in SIZES for name in _WAITS]))
    print(
        table(
            found,
            [*(f"jct_{gpus}" for gpus in SIZES), "jct", "blocked", "moves", "lost", "waited", "waited+lost"],
        )
    )


if __name__ == "__main__":
    main()
