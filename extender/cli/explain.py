"""``stowage explain``: where pods fit in a snapshot or a cluster, and why not elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from extender.cli import ask_service, source_args
from extender.untrusted.visible import visible

if TYPE_CHECKING:
    from extender.cluster.state import State
    from extender.k8s.objects import Pod
    from extender.settings import Settings
    from extender.source.interface import Source
    from extender.source.state_dump import Header
    from extender.source.workloads import Template

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add ``explain`` to the command line."""
    parser = subparsers.add_parser(
        "explain",
        description="Say where a pod fits, where it does not, and what is missing. Changes nothing.",
    )
    text = "manifest of pods or of anything with a pod template, - for standard input, or NAMESPACE/POD"
    parser.add_argument("pod", help=text)
    source_args.add_arguments(parser)
    ask_service.add_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, as YAML")
    which = parser.add_mutually_exclusive_group()
    text = "what this node says; may be repeated"
    which.add_argument("--node", action="append", metavar="NAME", help=text)
    which.add_argument("--all", action="store_true", help="what each node says")
    text = "show scores, and the terms of each cost, in GPUs"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)
    text = "format of the answer (text)"
    parser.add_argument("--output", choices=("text", "json"), default="text", help=text)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command. The exit code is 0 whether or not the pods fit."""
    from extender.cli import logs
    from extender.cli.explain_by_service import asked
    from extender.cli.precompile import loading_kernels
    from extender.settings import SettingsError
    from extender.settings_file import load
    from extender.source.interface import SourceError
    from extender.source.workloads import beside_pods, parse_templates

    try:
        chosen = load(args.config, os.environ)
        logs.configure("warning")
        text = _manifest(args.pod)
        name = "standard input" if args.pod == "-" else args.pod
        templates = parse_templates(text, name) if text is not None else []
        answer = ask_service.ask(args, "explain", lambda stowage: asked(args, text, stowage))
        if answer is not None:
            print(answer)
            return 0
        source = source_args.source_of(args)
        dump = source_args.dump_of(source)
        chosen = source_args.settings_of(args, dump) or chosen
        source_args.select_nodes(source, chosen)
        with loading_kernels():
            state = _state_of(source, chosen, dump)
            if text is not None:
                state.apply(beside_pods(text, name))
            answers = _answers(args, templates or [_find(state, args.pod)], state, source)
    except (SettingsError, SourceError, ValueError, OSError) as error:
        print(f"stowage explain: {error}", file=sys.stderr)
        return 1
    print(answers)
    return 0


def _state_of(source: Source, chosen: Settings, dump: Header | None = None) -> State:
    """The cluster as it is now. Raises ``SettingsError`` and ``SourceError``."""
    from extender.cluster.factory import state_of
    from extender.cluster.policy_refresh import plan_now

    state = state_of(chosen, dump)
    state.binds = chosen.bind
    for events in source.list_once():
        state.apply(events)
    plan_now(state)
    return state


def _answers(args: argparse.Namespace, templates: list[Template], state: State, source: Source) -> str:
    """The answers for all pods, in the format asked for."""
    from pydantic_core import to_json

    from extender.cli.explain_text import render, render_nodes
    from extender.explain.pod import explain, explain_each

    nodes = _nodes(args, state)
    if nodes is not None:
        each = [explain_each(state, one.pod, nodes) for one in templates]
        texts = [
            render_nodes(one.pod.key, answer, verbose=args.verbose)
            for one, answer in zip(templates, each, strict=True)
        ]
        values: list[object] = [*each]
    else:
        now = _moment(state, source)
        found = [explain(state, one.pod, now=now) for one in templates]
        texts = [render(answer, verbose=args.verbose) for answer in found]
        values = [*found]
    if args.output == "json":
        return to_json(values[0] if len(values) == 1 else values, indent=2).decode()
    titled = [
        f"{visible(one.workload)}:\n{text}" if one.workload else text
        for one, text in zip(templates, texts, strict=True)
    ]
    return "\n\n".join([*_warnings(state), *titled])


def _nodes(args: argparse.Namespace, state: State) -> list[str] | None:
    """The nodes of ``--node`` and ``--all``; None without either. Raises ``ValueError``."""
    if args.all:
        return sorted(state.nodes)
    names: list[str] | None = args.node
    for name in names or ():
        if name not in state.nodes:
            raise ValueError(f"there is no node {name}{_did_you_mean(name, state.nodes)}")
    return names


def _warnings(state: State) -> list[str]:
    """What makes every answer doubtful."""
    if not state.nodes:
        return ["There are no nodes here: was the snapshot made with 'kubectl get nodes,pods -A -o json'?"]
    if not state.pods:
        return [
            "There are no pods here, so every node counts as empty: was the snapshot made with pods, too?"
        ]
    return []


def _moment(state: State, source: Source) -> float:
    """Now, in Unix seconds; for a snapshot the newest time in it, so that its answer stays the same."""
    if source.watches():
        return time.time()
    if dump := source_args.dump_of(source):
        return dump.at
    pods, nodes = state.pods.values(), state.nodes.values()
    times = [max(pod.created, pod.started) for pod in pods] + [node.created for node in nodes]
    return max(times, default=0.0) or time.time()


def _manifest(name: str) -> str | None:
    """The text of a file or of standard input (``-``), None without such a file. Raises ``ValueError``."""
    if name == "-":
        return sys.stdin.read()
    path = Path(name)
    if not path.is_file():
        if path.is_dir():
            raise ValueError(f"{name} is a directory")
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{name}: is not text") from None


def _find(state: State, name: str) -> Template:
    """The pod with this namespace/name, or the only one with this name. Raises ``ValueError``."""
    from extender.source.workloads import Template

    pods: list[Pod] = [pod for pod in state.pods.values() if name in (pod.key, pod.name)]
    if len(pods) == 1:
        return Template(pods[0])
    if pods:
        raise ValueError(f"{len(pods)} pods are named {name}: write namespace/name")
    near = _did_you_mean(name, state.pods)
    raise ValueError(f"{name} is not a file, and the cluster has no such pod (namespace/name){near}")


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""
