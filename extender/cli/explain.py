"""``stowage explain``: where one pod fits in a snapshot or a cluster, and why not elsewhere."""

from __future__ import annotations

import argparse
import os
import queue
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from extender.cli import source_args

if TYPE_CHECKING:
    from extender.cluster.state import State
    from extender.explain.evictions import EvictionOption, Evictions
    from extender.explain.pod import Explanation, Option, Refusal
    from extender.k8s.objects import Event, Pod
    from extender.settings import Settings
    from extender.source.interface import Source

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SYNC_SECONDS = 60
_NAMED_VICTIMS = 4
_WHO_EVICTS = {
    "kube-scheduler": "It would fit if these pods were evicted. kube-scheduler does so at its next attempt:",
    "evictor": "It would fit if these pods were evicted. kube-scheduler does not do so, {}:",
}
_EVICTOR = {
    "unknown": "the evictor does where it is on",
    "on": "the evictor does",
    "recommend": "and the evictor only recommends it",
    "off": "and the evictor is off",
}
_DEVICE_SECONDS = 1.0  # for the lists of optional kinds, which a cluster may not serve


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add ``explain`` to the command line."""
    parser = subparsers.add_parser(
        "explain",
        description="Say where a pod fits, where it does not, and what is missing. Changes nothing.",
    )
    text = "a manifest, - for standard input, or namespace/name of a pod in the cluster"
    parser.add_argument("pod", help=text)
    source_args.add_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, as YAML")
    text = "format of the answer (text)"
    parser.add_argument("--output", choices=("text", "json"), default="text", help=text)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command. The exit code is 0 whether or not the pod fits."""
    from pydantic_core import to_json

    from extender.cli import logs
    from extender.cli.precompile import loading_kernels
    from extender.settings import SettingsError
    from extender.settings_file import load
    from extender.source.interface import SourceError

    try:
        chosen = load(args.config, os.environ)
        logs.configure("warning")
        source = source_args.source_of(args)
        pod = _read_manifest(args.pod)
        with loading_kernels():
            explanation = _explain(pod, args.pod, source, chosen)
    except (SettingsError, SourceError, ValueError, OSError) as error:
        print(f"stowage explain: {error}", file=sys.stderr)
        return 1
    print(to_json(explanation, indent=2).decode() if args.output == "json" else render(explanation))
    return 0


def _explain(pod: Pod | None, name: str, source: Source, chosen: Settings) -> Explanation:
    """Explain ``pod``, or if it is None the cluster's pod of this name.

    Raises ``SettingsError``, ``SourceError`` and ``ValueError``.
    """
    from extender.cli.precompile import prepare_victim_kernels
    from extender.cluster.factory import state_of
    from extender.cluster.policy_refresh import plan_now
    from extender.explain.pod import explain

    state = state_of(chosen)
    state.can_search_victims = prepare_victim_kernels
    state.binds = chosen.bind
    _list_once(state, source)
    plan_now(state)
    if pod is None:
        if name not in state.pods:
            raise ValueError(f"{name} is not a file, and the cluster has no such pod (namespace/name)")
        pod = state.pods[name]
    return explain(state, pod, now=_moment(state, source))


def _moment(state: State, source: Source) -> float:
    """Now, in Unix seconds; for a snapshot the newest time in it, so that its answer stays the same."""
    if source.staleness():
        return time.time()
    pods, nodes = state.pods.values(), state.nodes.values()
    times = [max(pod.created, pod.started) for pod in pods] + [node.created for node in nodes]
    return max(times, default=0.0) or time.time()


def render(explanation: Explanation) -> str:
    """The explanation as text."""
    if explanation.error:
        return f"{explanation.pod} can run nowhere: {explanation.error}"
    requests = ", ".join(f"{name} {amount}" for name, amount in explanation.asks.items() if amount)
    fits, nodes = explanation.fits, explanation.nodes
    tables = {
        "Best:": [_option(option) for option in explanation.best] if fits else [],
        "Does not fit:": [_refusal(refusal) for refusal in explanation.refusals],
        "Unknown whether the claims of the pod get their devices there:": _counts(explanation.unknown),
        "Ruled out before Stowage was asked:": _counts(explanation.passed_over),
    }
    lines = [f"{explanation.pod} asks for {requests}", f"It fits on {fits or 'none'} of {nodes} nodes"]
    lines += [explanation.gang] if explanation.gang else []
    for title, rows in tables.items():
        if rows:
            lines += ["", title, *_table(rows)]
    if explanation.evictions:
        lines += _evictions(explanation.evictions)
    if not fits and (advice := _advice(explanation.refusals)):
        lines += ["", advice]
    return "\n".join(lines)


def _list_once(state: State, source: Source) -> None:
    """Apply the first list of each kind; of optional ones, of those that come in time. Raises
    ``SourceError``."""
    from extender.source.interface import SourceError
    from extender.source.watched_kinds import REQUIRED_KINDS, WATCHED_KINDS

    batches: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
    end = time.monotonic() + _SYNC_SECONDS
    source.start(batches.put)
    try:
        while not state.synced >= REQUIRED_KINDS:
            state.apply(batches.get(timeout=max(0.0, end - time.monotonic())))
        end = time.monotonic() + (_DEVICE_SECONDS if source.staleness() else 0.0)
        while not state.synced >= WATCHED_KINDS.keys() and (left := end - time.monotonic()) > 0:
            with suppress(queue.Empty):
                state.apply(batches.get(timeout=left))
    except queue.Empty:
        raise SourceError(f"{source.describe()} did not answer within {_SYNC_SECONDS} s") from None
    finally:
        source.stop()


def _read_manifest(name: str) -> Pod | None:
    """The pod of a file, or of standard input (``-``). None if there is no such file."""
    from extender.source.snapshot import parse_pod

    if name == "-":
        return parse_pod(sys.stdin.read(), "standard input")
    path = Path(name)
    return parse_pod(path.read_text(encoding="utf-8"), name) if path.exists() else None


def _option(option: Option) -> tuple[str, ...]:
    cost = ": ".join(filter(None, (f"cost {option.cost:.3g}", option.why)))
    gpus = f"GPU {', '.join(map(str, option.gpus))}" if option.gpus else ", ".join(option.devices)
    gpus = ", ".join(filter(None, (gpus, option.gives)))
    return option.node, f"score {option.score}", cost, gpus


def _refusal(refusal: Refusal) -> tuple[str, ...]:
    lacks = "; ".join(need.text for need in refusal.lacks if need.total)
    return str(refusal.nodes), refusal.reason, f"nearest is {refusal.nearest} ({lacks})" if lacks else ""


def _counts(nodes_by_reason: Mapping[str, int]) -> list[tuple[str, ...]]:
    return [(str(nodes), reason) for reason, nodes in nodes_by_reason.items()]


def _evictions(evictions: Evictions) -> list[str]:
    """Who would be evicted and by whom, why not elsewhere, and who is protected."""
    tables = {
        _WHO_EVICTS[acts].format(_EVICTOR[evictions.evictor]): [
            _eviction(option) for option in evictions.best if option.acts == acts
        ]
        for acts in _WHO_EVICTS
    }
    rest = "On the other nodes that could take it:" if evictions.best else "No eviction makes it fit:"
    tables[rest] = _counts(evictions.elsewhere)
    tables["Pods on these nodes that may not be evicted for it:"] = _counts(evictions.protected)
    lines: list[str] = []
    for title, rows in tables.items():
        if rows:
            lines += ["", title, *_table(rows)]
    return lines


def _eviction(option: EvictionOption) -> tuple[str, ...]:
    victims = [*option.victims, *(f"{pod} (on another node)" for pod in option.other_nodes)]
    more = option.pods - _NAMED_VICTIMS
    names = ", ".join(victims[:_NAMED_VICTIMS]) + (f" and {more} more" if more > 0 else "")
    return option.node, option.loses, names


def _advice(refusals: Sequence[Refusal]) -> str:
    """Where the pod can fit after waiting or eviction; "" if nowhere."""
    for refusal in refusals:
        if refusal.eviction_helps and refusal.lacks:
            return f"It can fit on {refusal.nearest} when other pods there end"
    return ""


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
