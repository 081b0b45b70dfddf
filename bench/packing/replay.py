"""Single replays with every option of the published protocol:

python -m bench.packing.replay trace --nodes CSV --pods CSV... --policy fgd --mix known --bound
python -m bench.packing.replay mixes FILE [--departures] --policy inventory,mfi
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from extender.cli.precompile import choose_cache

if __name__ == "__main__":
    choose_cache()  # before the imports that load kernels

from bench.packing import mig
from bench.packing.filling import ARRIVING
from bench.packing.gains import gains
from bench.packing.mix_runs import replay_mixes
from bench.packing.policies import POLICIES
from bench.packing.report import table
from bench.packing.seeds import sample_size, seed_range
from bench.packing.trace_runs import Rows, TraceOptions, bound_trace, replay_trace
from bench.packing.traces import BadInput
from extender.cli.replay import policy_names
from extender.replay.report import aligned

_OUTPUTS: dict[str, Callable[[Rows], str]] = {
    "table": table,
    "json": lambda rows: json.dumps(rows, indent=1),
    "gains": lambda rows: aligned(gains(rows)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Replay and print; the exit code is 2 for invalid options or unusable files."""
    args = _parser().parse_args(argv)
    try:
        text = _OUTPUTS[args.output](args.replay(args))
    except (BadInput, ValueError, OSError) as error:
        print(f"bench.packing.replay: {error}", file=sys.stderr)
        return 2
    print(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.replay")
    commands = parser.add_subparsers(required=True, metavar="WORK")
    trace = commands.add_parser("trace", help="fill the nodes of a trace with its pods")
    trace.add_argument("--nodes", type=Path, required=True, metavar="CSV")
    trace.add_argument("--pods", type=Path, required=True, nargs="+", metavar="CSV")
    trace.add_argument("--arrival", type=_arrivals, default=(1.0,), help="multiples of the capacity (1.0)")
    mix_choices = ["learned", "known"]
    trace.add_argument("--mix", choices=mix_choices, default="learned", help="the policy's demand mix")
    trace.add_argument("--ties", choices=["fixed", "random"], default="fixed", help="among equal nodes")
    trace.add_argument("--node-order", choices=["file", "shuffle"], default="file")
    trace.add_argument("--scores", choices=["exact", "0-10"], default="exact", help="policy inventory only")
    trace.add_argument("--sample", type=sample_size, default=0, metavar="N", help="fitting nodes, 0 for all")
    trace.add_argument("--bound", action="store_true", help="add rows of the policy bound")
    trace.set_defaults(replay=_trace)
    mixes = commands.add_parser("mixes", help="request mixes on GPUs alone")
    mixes.add_argument("file", type=Path, metavar="FILE")
    mixes.add_argument("--departures", action="store_true", help="requests end again")
    mixes.set_defaults(replay=_mixes)
    mixed = tuple({*POLICIES, *mig.POLICIES})
    for command, names, outputs in (
        (trace, tuple(POLICIES), ["table", "json"]),
        (mixes, mixed, ["table", "json", "gains"]),
    ):
        known = lambda text, names=names: policy_names(text, names)  # noqa: E731
        command.add_argument("--policy", type=known, default=["inventory"], help="separated by commas")
        command.add_argument("--seeds", type=seed_range, default=seed_range("42-51"), help="(42-51)")
        command.add_argument("--output", choices=outputs, default="table")
    return parser


def _trace(args: argparse.Namespace) -> Rows:
    if args.scores != "exact" and args.policy != ["inventory"]:
        raise ValueError("--scores 0-10 needs --policy inventory")
    options = TraceOptions(
        args.arrival,
        random_ties=args.ties == "random",
        shuffle_nodes=args.node_order == "shuffle",
        sample=args.sample,
        known_mix=args.mix == "known",
        fixed_scale=args.scores == "0-10",
    )
    rows, _ = replay_trace(args.nodes, args.pods, args.policy, args.seeds, options)
    if args.bound:
        rows += bound_trace(args.nodes, args.pods, args.seeds, options)
    return rows


def _mixes(args: argparse.Namespace) -> Rows:
    return replay_mixes(args.file, args.policy, args.seeds, departures=args.departures)


def _arrivals(text: str) -> tuple[float, ...]:
    try:
        numbers = [float(item) for item in text.split(",")]
    except ValueError:
        numbers = [0.0]
    if not all(0 < number <= ARRIVING for number in numbers):
        percent = all(0 < number / 100 <= ARRIVING for number in numbers)
        hint = f" (for {text} %: {','.join(f'{number / 100:g}' for number in numbers)})" if percent else ""
        expected = f"multiples of the capacity up to {ARRIVING:g}, such as 1.0,1.3{hint}"
        raise argparse.ArgumentTypeError(f"invalid arrivals {text!r}; expected {expected}")
    return tuple(dict.fromkeys(numbers))


if __name__ == "__main__":
    sys.exit(main())
