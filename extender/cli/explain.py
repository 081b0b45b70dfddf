"""``stowage explain``: where pods fit, and why not elsewhere, as the running Stowage or a cluster says."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from extender.cli import cluster_args
from extender.untrusted.visible import visible

if TYPE_CHECKING:
    from extender.cluster.state import State
    from extender.explain.answers import PodAnswer
    from extender.k8s.objects import Event, Pod
    from extender.settings import Settings
    from extender.source.state_dump import Header
    from extender.source.stowage_service import StowageService
    from extender.source.workloads import Template

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add ``explain`` to the command line."""
    parser = subparsers.add_parser(
        "explain",
        description="Show where a pod fits, where it does not, and what is missing. Changes nothing.",
    )
    text = "manifest with pods or pod templates, - for standard input, or NAMESPACE/POD"
    parser.add_argument("pod", help=text)
    cluster_args.add_running(parser)
    which = parser.add_mutually_exclusive_group()
    text = "result for this node (repeatable)"
    which.add_argument("--node", action="append", metavar="NAME", help=text)
    which.add_argument("--all", action="store_true", help="result for every node")
    text = "show scores and cost terms, in GPUs"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)
    cluster_args.add_output(parser, "text", "wide", "json", wide="any width")


def run(args: argparse.Namespace) -> int:
    """Run the command. The exit code is 0 whether or not the pods fit."""
    from extender import logs
    from extender.settings_file import load
    from extender.source.workloads import parse_templates

    settings = load(args.config, os.environ)
    logs.configure("warning")
    text = _manifest(args.pod)
    name = "standard input" if args.pod == "-" else args.pod
    templates = parse_templates(text, name) if text is not None else []
    cluster_args.say_source(args, "explain")
    answer = cluster_args.ask(args, "explain", lambda stowage: _asked(args, text, stowage))
    print(answer if answer is not None else _worked_out(args, text, name, templates, settings))
    return 0


def _asked(args: argparse.Namespace, manifest: str | None, stowage: StowageService) -> str:
    """The answer of the running Stowage, with its learnt demand and its last decisions; ``manifest`` is None
    for the name of a pod. Raises ``NotAsked``, and ``ValueError`` if Stowage refuses the question."""
    nodes = [("node", name) for name in args.node or ()]
    if manifest is not None:
        every = [("every", "true")] if args.all else []
        reply = stowage.post("/debug/explain/pods", manifest, [*nodes, *every])
        return _shown(args, _read_answers(reply, stowage, "answers"))
    path = f"/debug/pods/{quote(_key(args.pod, stowage))}"
    if args.all or nodes:
        return _shown(args, _read_answers([stowage.get(f"{path}/nodes", nodes)], stowage))
    return _reported(args, stowage.get(path, [("explained", "true")]), stowage)


def _read_answers(found: object, stowage: StowageService, key: str = "") -> list[PodAnswer]:
    from extender.explain.answers import PodAnswer

    return cluster_args.read_answer(list[PodAnswer], found, stowage, key)


def _key(name: str, stowage: StowageService) -> str:
    """``namespace/name`` of a pod. Raises ``ValueError`` if a name alone is not that of exactly one."""
    if "/" in name:
        return name
    reply = stowage.get("/debug/pods", [("name", name)])
    return _only(cluster_args.read_answer(list[str], reply, stowage, "pods"), name)


def _only(found: Sequence[str], name: str, near: str = "") -> str:
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{len(found)} pods are named {name}: write namespace/name")
    raise ValueError(f"{name} is not a file, and the cluster has no such pod (namespace/name){near}")


def _reported(args: argparse.Namespace, found: dict[str, Any], stowage: StowageService) -> str:
    """A pod of the cluster: where it fits now, and what the service has decided about it."""
    from extender.cli.explain_text import render, render_decisions
    from extender.explain.answers import PodReport

    report = cluster_args.read_answer(PodReport, found, stowage)
    if args.output == "json":
        more = {key: found[key] for key in ("note", "decisions", "replica")}
        return _json({**(found["now"] or {"pod": report.pod, "node": report.node}), **more})
    text = render(report.now, **_look(args)) if report.now else f"{report.pod} runs on {report.node}"
    decisions = render_decisions(report.decisions, report.replica.name, report.note)
    return "\n".join(filter(None, (text, decisions)))


def _worked_out(
    args: argparse.Namespace, manifest: str | None, name: str, templates: list[Template], settings: Settings
) -> str:
    """The answer from a file or the cluster. Raises ``SettingsError``, ``SourceError`` and ``ValueError``."""
    from extender.cli.precompile import kernels_for_question
    from extender.source.workloads import beside_pods

    source, settings, dump = cluster_args.source_with_settings(args, settings)
    batches, nodes, pods = cluster_args.listed(source)
    with kernels_for_question(nodes + pods):
        from extender.cluster.policy_refresh import choose_node_sets_now, plan_now
        from extender.explain.answers import PodAnswer
        from extender.explain.pod import explain_each, explain_template, fits_somewhere

        state = _state_of(batches, settings, dump)
        if manifest is not None:
            state.apply(beside_pods(manifest, name))
        beside, templates = templates, templates or [_find(state, args.pod)]
        names = _nodes(args, state)
        choose_node_sets_now(state)
        if any(fits_somewhere(state, template.pod) for template in templates):
            plan_now(state)
        if names is not None:
            answers = [
                PodAnswer(t.workload, t.pod.key, nodes=tuple(explain_each(state, t.pod, names)))
                for t in templates
            ]
        else:
            now = cluster_args.moment(source, state.pods.values(), dump)
            answers = [
                PodAnswer(t.workload, t.pod.key, explain_template(state, t, beside, now=now))
                for t in templates
            ]
    return "\n\n".join([*(_warnings(state) if args.output != "json" else ()), _shown(args, answers)])


def _state_of(batches: Iterable[Sequence[Event]], settings: Settings, dump: Header | None) -> State:
    """The cluster as it is now. Raises ``SettingsError``."""
    from extender.cluster.factory import state_of

    state = state_of(settings, dump)
    state.binds = settings.bind
    for events in batches:
        state.apply(events)
    return state


def _shown(args: argparse.Namespace, answers: Sequence[PodAnswer]) -> str:
    from extender.cli.explain_text import render, render_nodes

    if args.output == "json":
        values: list[Any] = [a.explanation if a.nodes is None else a.nodes for a in answers]
        return _json(values[0] if len(values) == 1 else values)
    texts = []
    for answer in answers:
        if answer.explanation is not None:
            text = render(answer.explanation, **_look(args))
        else:
            text = render_nodes(answer.pod, answer.nodes or (), **_look(args))
        texts.append(f"{visible(answer.workload)}:\n{text}" if answer.workload else text)
    return "\n\n".join(texts)


def _look(args: argparse.Namespace) -> dict[str, Any]:
    from extender.cli.explain_text import WIDTH

    return {"verbose": args.verbose, "width": 0 if args.output == "wide" else WIDTH}


def _json(value: object) -> str:
    from pydantic_core import to_json

    return to_json(value, indent=2).decode()


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

    known = state.pods.or_misaligned().values()
    pods: dict[str, Pod] = {pod.key: pod for pod in known if name in (pod.key, pod.name)}
    return Template(pods[_only([*pods], name, _did_you_mean(name, state.pods))])


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""
