"""The packing comparison: ``python -m bench.packing --data DIR``.

DIR contains the node list and the pod lists of openb (alibaba/clusterdata, cluster-trace-gpu-v2023/csv). Each
part prints a table, and writes it with its rows as JSON and its plots to the output directory. For single
replays see ``bench.packing.replay``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

from extender.cli.precompile import choose_cache

if __name__ == "__main__":
    choose_cache()  # before the imports that load kernels

from bench.packing import plots, queue_plots, tables
from bench.packing.queued_timeline import SpotMarket
from bench.packing.queues import LEGEND, QUEUE_OF_QOS, QueueOptions, replay_queues
from bench.packing.report import table, wait_table
from bench.packing.runs import BOUND, Result, Task, nodes_file, run, run_mixes
from bench.packing.seeds import seed_range
from bench.packing.trace_runs import Rows, TraceOptions
from bench.packing.traces import read_nodes
from extender.replay.report import aligned
from extender.settings import DEFAULT_QUEUES

HERE = Path(__file__).parent
TRACES = [
    *["default", "cpu050", "cpu100", "cpu200", "cpu250"],
    *["gpushare40", "gpushare60", "gpushare80", "gpushare100"],
    *["gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33"],
    *["multigpu20", "multigpu30", "multigpu40", "multigpu50"],
]
FEW = ["default", "gpushare60", "gpuspec33", "multigpu50"]
"""The traces that differ the most: columns of the short table, and panels of the plots."""

LEARNED, KNOWN = TraceOptions(shuffle_nodes=True), TraceOptions(shuffle_nodes=True, known_mix=True)
POLICIES = {"inventory": LEARNED, "fgd": KNOWN} | dict.fromkeys([
    "best-fit", "gpu-packing", "gpu-clustering", "dot-product", "most-allocated", "least-allocated", "random"
], LEARNED)  # fmt: skip
"""Policy -> its replay options: ours learns the mix from the arrivals; FGD knows it, as published."""
VARIANTS = {
    "known": TraceOptions(known_mix=True),
    "learned": TraceOptions(),
    "shuffled": KNOWN,
    "random ties": TraceOptions(known_mix=True, random_ties=True),
    "sample 50": TraceOptions(known_mix=True, sample=50),
    "scores 0-10": TraceOptions(known_mix=True, random_ties=True, fixed_scale=True),
}
LOAD, SPOT = 0.8, SpotMarket(share=0.2, discount=0.65, rate=0.02)
"""For the part ``queues``: requested GPUs per GPU; a fifth of the GPUs on spot nodes at 35 % of the price,
each node interrupted every 50 hours."""
SAMPLES = (10, 50, 125, 500, 0)


def main() -> int:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    parts = {"policies": policies, "ways": ways, "samples": samples, "mixes": mixes, "queues": queues}
    for name in args.only or parts:
        text, rows = parts[name](args)
        print(f"\n{name}\n{text}", flush=True)
        (args.out / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        (args.out / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    return 0


def policies(args: argparse.Namespace) -> tuple[str, Rows]:
    """Every policy and the bound on the traces."""
    columns = POLICIES | {BOUND: TraceOptions()}
    chosen = args.policies or list(columns)
    results = _run(args, args.traces, ((label, label, columns[label]) for label in chosen))
    gpus = sum(len(node.gpus) for node in read_nodes(nodes_file(args.data)))
    plots.arrivals(results, FEW, args.out / "arrivals.png")
    plots.unallocated(results, gpus, args.out / "unallocated.png")
    short = tables.by_policy(results, FEW, gpus)
    if args.readme:
        tables.replace_in(args.readme, tables.by_policy(results, (), gpus), _command())
    long = tables.by_trace(results, chosen[0])
    return f"{aligned(long)}\n\n{aligned(short)}", _rows(results)


def ways(args: argparse.Namespace) -> tuple[str, Rows]:
    """The default policy with a known or learned mix, other node orders, ties and samples; and FGD."""
    columns = [(label, "inventory", options) for label, options in VARIANTS.items()]
    results = _run(args, args.traces, [*columns, ("fgd", "fgd", KNOWN)])
    return aligned(tables.by_trace(results, "known")), _rows(results)


def samples(args: argparse.Namespace) -> tuple[str, Rows]:
    """Allocation against the number of fitting nodes that kube-scheduler offers
    (percentageOfNodesToScore)."""
    columns = [
        (policy, policy, replace(POLICIES[policy], sample=sample))
        for policy in ("inventory", "fgd", "best-fit")
        for sample in SAMPLES
    ]
    results = _run(args, [trace for trace in args.traces if trace in FEW], columns)
    plots.samples(results, len(read_nodes(nodes_file(args.data))), args.out / "samples.png")
    lines = [["trace", "policy", *(str(sample or "all") for sample in SAMPLES)]]
    found = {(r.task.trace, r.task.label, r.task.options.sample): r.allocation for r in results}
    for trace, label in dict.fromkeys((result.task.trace, result.task.label) for result in results):
        lines.append([trace, label, *(f"{found[trace, label, sample]:.2f}" for sample in SAMPLES)])
    rows = [row | {"sample": result.task.options.sample} for result in results for row in result.rows]
    return aligned(lines), rows


def mixes(args: argparse.Namespace) -> tuple[str, Rows]:
    """Request mixes in two dimensions and of MIG profiles, fills and departures."""
    rows: Rows = []
    kinds = {
        "two-dimensional": ["inventory", "fgd", "best-fit", "least-squares", "dot-product"],
        "mig": ["inventory", "fgd", "best-fit", "mfi"],
    }
    texts = []
    for kind, names in kinds.items():
        for departures in (False, True):
            file = HERE / f"{kind}-mixes.json"
            found = run_mixes(file, names, args.seeds, departures=departures, jobs=args.jobs)
            rows += [row | {"kind": kind, "departures": departures} for row in found]
            by_name = {name: [row["allocation"] for row in found if row["policy"] == name] for name in names}
            means = (f"{name} {fmean(allocation):.2f}" for name, allocation in by_name.items())
            title = f"{kind}, {'departures' if departures else 'fill'}: mean allocation {', '.join(means)}"
            texts.append(f"{title}\n{table(found)}")
    return "\n\n".join(texts), rows


def queues(args: argparse.Namespace) -> tuple[str, Rows]:
    """The timeline of openb with three queues, under stock kube-scheduler and under Stowage, with and without
    checkpoints."""
    pods = [args.data / "openb_pod_list_default.csv"]
    texts, rows = [], []
    for name, checkpoint in (("no checkpoints", None), ("a checkpoint every hour", 3600.0)):
        options = QueueOptions(QUEUE_OF_QOS, DEFAULT_QUEUES, load=LOAD, checkpoint=checkpoint, spot=SPOT)
        replay = replay_queues(nodes_file(args.data), pods, args.seeds, options, lambda what, part: None)
        found = list(replay)
        queue_plots.queues(found, args.out / f"queues-{'saving' if checkpoint else 'not-saving'}.png")
        texts.append(f"{name}\n{wait_table(found)}\n{LEGEND}")
        rows += [row | {"checkpoint": checkpoint} for row in found]
    return "\n\n".join(texts), rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.packing")
    parser.add_argument("--data", type=Path, required=True, help="directory of the openb CSV files")
    parser.add_argument("--seeds", type=seed_range, default=seed_range("42-51"), help="such as 42-51 or 1,2")
    parser.add_argument("--traces", nargs="+", choices=TRACES, default=TRACES, metavar="TRACE")
    parser.add_argument("--policies", nargs="+", choices=[*POLICIES, BOUND], metavar="POLICY")
    parser.add_argument("--only", choices=["policies", "ways", "samples", "mixes", "queues"], nargs="+")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="directory (%(default)s)")
    parser.add_argument("--readme", type=Path, help="insert the short table of policies into this page")
    return parser.parse_args()


def _run(
    args: argparse.Namespace, traces: list[str], columns: Iterable[tuple[str, str, TraceOptions]]
) -> list[Result]:
    """A result for each trace and column (label, policy, options). Each seed is a separate task, except for
    the bound, which reuses its patterns."""
    tasks = [
        Task(label, trace, policy, seeds, options)
        for trace, (label, policy, options) in product(traces, columns)
        for seeds in ([tuple(args.seeds)] if policy == BOUND else [(seed,) for seed in args.seeds])
    ]
    merged: dict[tuple[str, str, TraceOptions], Result] = {}
    for result in run(args.data, tasks, args.jobs):
        key = result.task.trace, result.task.label, result.task.options
        first = merged.get(key)
        merged[key] = Result(first.task, [*first.rows, *result.rows], first.curve) if first else result
    return list(merged.values())


def _rows(results: list[Result]) -> Rows:
    return [row | {"column": result.task.label} for result in results for row in result.rows]


def _command() -> str:
    """The command line that reproduces the table of policies, without options that do not change it."""
    kept, drops = ["python -m bench.packing --data DIR --only policies"], False
    for word in sys.argv[1:]:
        if word.startswith("--"):
            drops = word in ("--data", "--only", "--jobs", "--out", "--readme")
        if not drops:
            kept.append(shlex.quote(word))
    return " ".join(kept)


if __name__ == "__main__":
    sys.exit(main())
