"""The packing comparison: ``python -m bench.packing --data DIR [--seeds 42-44] [--out DIR]``.

DIR holds the openb node list and pod lists (alibaba/clusterdata, cluster-trace-gpu-v2023/csv). Prints a table
per question and writes them, with the pictures, to the output directory.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from extender import replay_report
from extender.replay_runs import TraceOptions, replay_mixes, replay_trace

HERE = Path(__file__).parent
TRACES = [
    *["default", "cpu050", "cpu100", "cpu200", "cpu250"],
    *["gpushare40", "gpushare60", "gpushare80", "gpushare100"],
    *["gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33"],
    *["multigpu20", "multigpu30", "multigpu40", "multigpu50"],
]
WAYS = {
    "known": TraceOptions(known_mix=True),
    "learnt": TraceOptions(),
    "shuffled": TraceOptions(known_mix=True, shuffle_nodes=True),
    "random ties": TraceOptions(known_mix=True, random_ties=True),
    "sample 50": TraceOptions(known_mix=True, sample=50),
}
SAMPLES = (10, 50, 125, 500, 0)
Rows = list[dict[str, Any]]


def main() -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(prog="bench.packing")
    parser.add_argument("--data", type=Path, required=True, help="directory of the openb CSV files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", choices=["ways", "policies", "samples", "mixes"], nargs="+")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    parts = {"ways": ways, "policies": policies, "samples": samples, "mixes": mixes}
    for name in args.only or parts:
        text, rows = parts[name](args)
        print(f"\n{name}\n{text}", flush=True)
        (args.out / f"{name}.txt").write_text(text + "\n")
        (args.out / f"{name}.json").write_text(json.dumps(rows))
    return 0


def ways(args: argparse.Namespace) -> tuple[str, Rows]:
    """The default policy on all traces: mix known or learnt, order, ties, sampling; and FGD as published."""
    found: dict[str, dict[str, Rows]] = {trace: {} for trace in TRACES}
    columns = [*WAYS, "fgd"]
    for trace in TRACES:
        for way, options in WAYS.items():
            found[trace][way] = _run(args, [trace], ["inventory"], options)[0]
        found[trace]["fgd"] = _run(args, [trace], ["fgd"], WAYS["shuffled"])[0]
    lines = [["trace", *columns, "± known"]]
    for trace in TRACES:
        means = [f"{_mean(found[trace][way]):.2f}" for way in columns]
        lines.append([trace, *means, f"{pstdev(row['allocation'] for row in found[trace]['known']):.2f}"])
    overall = [f"{fmean(_mean(found[trace][way]) for trace in TRACES):.2f}" for way in columns]
    lines.append(["mean", *overall, ""])
    return _aligned(lines), [row | {"way": w} for t in TRACES for w in columns for row in found[t][w]]


def policies(args: argparse.Namespace) -> tuple[str, Rows]:
    """Every policy on four traces, and a picture of allocation against arrivals."""
    names = ["inventory", "fgd", "best-fit", "gpu-packing", "dot-product", "most-allocated", "random"]
    rows, curves = _run(args, ["default", "gpushare60", "gpuspec33", "multigpu50"], names, WAYS["shuffled"])
    default = {label.split()[-1]: curve for label, curve in curves.items() if "default" in label}
    replay_report.plot(default, args.out / "allocation.png")
    return replay_report.table(rows), rows


def samples(args: argparse.Namespace) -> tuple[str, Rows]:
    """Allocation against how many fitting nodes the scheduler shows us: percentageOfNodesToScore."""
    rows: Rows = []
    for sample in SAMPLES:
        found, _ = _run(
            args,
            ["default", "gpuspec33"],
            ["inventory", "fgd"],
            TraceOptions(sample=sample, shuffle_nodes=True),
        )
        rows += [row | {"load": sample or "all"} for row in found]
    return replay_report.table(rows), rows


def mixes(args: argparse.Namespace) -> tuple[str, Rows]:
    """Two dimensions and MIG, fills and departures."""
    rows: Rows = []
    kinds = {
        "two-dimensional": ["inventory", "fgd", "best-fit", "least-squares", "dot-product"],
        "mig": ["inventory", "fgd", "best-fit", "mfi"],
    }
    texts = []
    for kind, names in kinds.items():
        for departures in (False, True):
            found = replay_mixes(
                HERE / f"{kind}-mixes.json", names, args.seeds, departures=departures, progress=_quiet
            )
            rows += [row | {"kind": kind, "departures": departures} for row in found]
            means = [f"{name} {_mean([r for r in found if r['policy'] == name]):.2f}" for name in names]
            title = f"{kind}, {'departures' if departures else 'fill'}: mean allocation {', '.join(means)}"
            texts.append(f"{title}\n{replay_report.table(found)}")
    return "\n\n".join(texts), rows


def _run(
    args: argparse.Namespace, traces: list[str], names: list[str], options: TraceOptions
) -> tuple[Rows, dict[str, Any]]:
    files = [args.data / f"openb_pod_list_{trace}.csv" for trace in traces]
    nodes = args.data / "openb_node_list_gpu_node.csv"
    print(f"{' '.join(traces)}: {' '.join(names)}", file=sys.stderr)
    return replay_trace(nodes, files, names, args.seeds, options, _quiet)


def _quiet(what: str, part: float) -> None:
    """No progress bar inside a benchmark."""


def _mean(rows: Rows) -> float:
    return fmean(row["allocation"] for row in rows)


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
