"""Runs the replays of the comparison in parallel processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from bench.packing.mix_runs import replay_mixes
from bench.packing.trace_runs import Curve, Rows, TraceOptions, bound_trace, replay_trace

BOUND = "bound"
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Task:
    """One column of a table for one trace: a policy, or ``bound``, with seeds and options."""

    label: str
    trace: str
    policy: str
    seeds: tuple[int, ...]
    options: TraceOptions


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of a task, and the curve of its first seed (None for the bound)."""

    task: Task
    rows: Rows
    curve: Curve | None

    @property
    def allocation(self) -> float:
        """Mean over the seeds, in percent."""
        return fmean(row["allocation"] for row in self.rows)

    @property
    def knee(self) -> float | None:
        """Mean over the seeds that have a knee, in percent; None for the bound."""
        knees = [row["knee"] for row in self.rows if row["knee"] is not None]
        return fmean(knees) if knees else None


def nodes_file(data: Path) -> Path:
    """The node list of the published experiments."""
    return data / "openb_node_list_gpu_node.csv"


def run(data: Path, tasks: Sequence[Task], jobs: int) -> list[Result]:
    """The results, in the order of the tasks; each is reported on standard error."""
    results = []
    for result in spread(partial(_run_task, data), tasks, jobs):
        results.append(result)
        done = f"{len(results)}/{len(tasks)} {result.task.trace} {result.task.label}"
        print(f"{done}: {result.allocation:.2f}", file=sys.stderr, flush=True)
    return results


def run_mixes(
    path: Path, policies: Sequence[str], seeds: Sequence[int], *, departures: bool, jobs: int
) -> Rows:
    """The rows of request mixes under these policies, ordered by mix."""
    replay = partial(replay_mixes, path, seeds=seeds, departures=departures)
    rows = [row for found in spread(replay, [[policy] for policy in policies], jobs) for row in found]
    order = {key: i for i, key in enumerate(dict.fromkeys((row["mix"], row["load"]) for row in rows))}
    return sorted(rows, key=lambda row: order[row["mix"], row["load"]])


def spread(work: Callable[[_T], _R], tasks: Sequence[_T], jobs: int) -> Iterator[_R]:
    """``map`` with ``jobs`` processes."""
    if jobs == 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, tasks)


def _run_task(data: Path, task: Task) -> Result:
    traces = [data / f"openb_pod_list_{task.trace}.csv"]
    if task.policy == BOUND:
        return Result(task, bound_trace(nodes_file(data), traces, task.seeds, task.options), None)
    rows, curves = replay_trace(nodes_file(data), traces, [task.policy], task.seeds, task.options)
    return Result(task, rows, next(iter(curves.values())))
