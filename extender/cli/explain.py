"""``stowage explain``: where pods fit and why not elsewhere, from the running Stowage or a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from urllib.parse import quote

from extender.cli import cluster_args
from extender.cli.cluster_args import did_you_mean
from extender.source.errors import BadInput
from extender.untrusted.terminal import line_width
from extender.untrusted.visible import many, visible

if TYPE_CHECKING:
    from extender.cluster.state import State
    from extender.explain.answers import Explanation, PodAnswer
    from extender.settings import Settings
    from extender.source.dry_run import Outcome
    from extender.source.stowage_service import StowageService
    from extender.source.workloads import Template

_SHORT = {"po": "pod", "deploy": "deployment", "rs": "replicaset", "sts": "statefulset", "cj": "cronjob"}
"""kubectl's short names of kinds."""
_NAMED = 8
_SUFFIXES = ".json", ".yaml", ".yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTION ...] [-f FILE | NAMESPACE/POD | KIND/NAME | -A]"
    parser.description = "Show where a pod fits and what is missing, or all pending pods (-A, -n)."
    text = "manifest, NAMESPACE/POD, or KIND/NAME such as job/train"
    parser.add_argument("pod", nargs="*", help=text)
    text = "manifest or folder, - for stdin (repeatable)"
    parser.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help=text)
    parser.add_argument("-R", "--recursive", action="store_true", help="also folders in folders of -f")
    cluster_args.add_running(parser)
    cluster_args.add_namespace(parser, "namespace of pods and manifests (any)")
    which = parser.add_mutually_exclusive_group()
    text = "result for this node (repeatable)"
    which.add_argument("--node", action="append", metavar="NAME", help=text)
    which.add_argument("--all", action="store_true", help="result for every node")
    text = "show the last decisions before 26h (ago) or 2026-11-27T03:00"
    parser.add_argument("--before", type=_moment, metavar="TIME", help=text)
    text = "show scores and cost terms, in GPUs"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)
    text = "exit with 0: all pods fit, 1: not all, 2: error"
    parser.add_argument("--exit-code", action="store_true", help=text)
    names = "nodes that fit best"
    formats = "text", "wide", "json", "yaml", "csv", "name"
    cluster_args.add_output(parser, *formats, wide="any width", name=names)


def _moment(text: str) -> datetime:
    """Parse a time in the local time zone, or a duration before now."""
    from extender.untrusted.duration import as_seconds

    try:
        if "-" in text:
            return datetime.fromisoformat(text).astimezone()
        return datetime.now(UTC) - timedelta(seconds=as_seconds(text))
    except (ValueError, OverflowError):
        expected = "expected how long ago, such as 26h, or a time such as 2026-11-27T03:00"
        raise argparse.ArgumentTypeError(f"invalid time {text!r}; {expected}") from None


class _Answer(NamedTuple):
    """The answer for a pod. ``nodes``: all or some of the nodes where it fits."""

    value: object
    text: str
    nodes: Sequence[str]


def run(args: argparse.Namespace) -> int:
    """Run the command. The exit code is 0 whether or not the pods fit, unless ``--exit-code`` is set."""
    if not (args.pod or args.filename or args.all_namespaces) and len(args.snapshot or ()) > 1:
        args.pod = [str(args.snapshot.pop())]  # argparse takes all words after --snapshot
    if args.pod or args.filename:
        return _explain(args)
    from extender.cli.top import show_pending

    if args.node or args.all or args.before:
        raise BadInput("--node, --all and --before require a pod or manifest")
    return show_pending(args)


def _explain(args: argparse.Namespace) -> int:
    from extender.source.workloads import parse_templates

    words = args.pod
    if len(words) > 1 and _kind(words[0]):  # job train
        words = [f"{words[0]}/{name}" for name in words[1:]]
    given = (part for name in args.filename for part in ([name] if Path(name).exists() else name.split(",")))
    files = [*given, *filter(_is_file, words)]
    pods = [name for name in words if name not in files]
    text, name = _manifest(files, args.namespace, recursive=args.recursive)
    templates, outcomes = parse_templates(text, name) if text is not None else [], list["Outcome"]()
    settings = cluster_args.begin(args, "explain")
    if text is not None and (rest := cluster_args.dry_run_client(args)):
        from extender.source.dry_run import dry_run

        text, outcomes = dry_run(rest, text, name)
        templates = parse_templates(text, name, _complete(outcomes))
    answers = cluster_args.ask(args, "explain", lambda stowage: _asked(args, text, outcomes, pods, stowage))
    warnings: list[str] = []
    if answers is None and args.before:
        raise ValueError("only a running Stowage has past decisions: see --url and --stowage-namespace")
    if answers is None:
        answers, warnings = _worked_out(args, text, name, templates, outcomes, pods, settings)
    if args.output in ("json", "yaml"):
        values = [answer.value for answer in answers]
        print(cluster_args.structured(values[0] if len(values) == 1 else values, args.output))
    elif args.output == "name":
        for name in dict.fromkeys(name for answer in answers for name in answer.nodes):
            print(f"node/{name}")
    else:
        print("\n\n".join([*warnings, *filter(None, (answer.text for answer in answers))]))
    return int(args.exit_code and not all(answer.nodes for answer in answers))


def _is_file(word: str) -> bool:
    """Whether a word means a file, also if it does not exist, or "-" for standard input."""
    return word == "-" or word.endswith((*_SUFFIXES, ".gz")) or Path(word).exists()


def _kind(word: str) -> str:
    """The kind that a word means in kubectl, in lower case; "" for none."""
    from extender.k8s.objects import JobKind, KubeflowKind

    kinds = {
        *_SHORT.values(),
        "job",
        "daemonset",
        *map(str.lower, (*get_args(JobKind), *get_args(KubeflowKind))),
    }
    word = word.lower().partition(".")[0]  # job.batch
    kind = _SHORT.get(word, word)
    return kind if kind in kinds else kind[:-1] if kind[:-1] in kinds and kind.endswith("s") else ""


def _asked(
    args: argparse.Namespace,
    manifest: str | None,
    outcomes: Sequence[Outcome],
    pods: Sequence[str],
    stowage: StowageService,
) -> list[_Answer]:
    """Answers of the running Stowage, with its learned demand and last decisions, for the pods in a manifest
    and for pods by name. Raises ``NotAsked``, and ``ValueError`` if Stowage rejects the query."""
    nodes, answers = [("node", name) for name in args.node or ()], []
    if manifest is not None:
        every = [("every", "true")] if args.all else []
        complete = [("complete", str(number)) for number in _complete(outcomes)]
        reply = stowage.post("/debug/explain/pods", manifest, [*nodes, *every, *complete])
        answers += _answers(args, _read_answers(reply, stowage, "answers"), outcomes)

    def named(name: str, kind: str) -> list[str]:
        query = [("name", name)] + [("kind", kind)] * (kind != "pod")
        return cluster_args.read_answer(list[str], stowage.get("/debug/pods", query), stowage, "pods")

    for word in pods:
        is_key = word.count("/") == 1 and not _kind(word.partition("/")[0])
        key = word if is_key else _only(word, args.namespace, named)
        path = f"/debug/pods/{quote(key)}"
        if args.all or nodes:
            answers += _answers(args, _read_answers([stowage.get(f"{path}/nodes", nodes)], stowage))
        else:
            past = [("before", args.before.isoformat())] if args.before else [("explained", "true")]
            answers.append(_reported(args, stowage.get(path, past), stowage))
    return answers


def _read_answers(found: object, stowage: StowageService, key: str = "") -> list[PodAnswer]:
    from extender.explain.answers import PodAnswer

    return cluster_args.read_answer(list[PodAnswer], found, stowage, key)


def _only(
    word: str, namespace: str | None, named: Callable[[str, str], Sequence[str]], known: Collection[str] = ()
) -> str:
    """``namespace/name`` of a pod by its name, or of the first pod of a workload. ``named``: all keys for a
    name and kind, ``known``: those of all pods. Raises ``ValueError`` for no pod or several."""
    *before, name = word.split("/")
    kind = _kind(before[0]) if before else ""
    space = before[-1] if before and not (kind and len(before) == 1) else namespace
    found = [key for key in named(name, kind or "pod") if not space or key.startswith(f"{space}/")]
    if not found and before and before[0] in ("no", "node", "nodes"):
        raise ValueError(f"{word} is a node: see stowage top {name}, or explain -f FILE --node {name}")
    if not found and kind and word in named(name, "pod"):  # a namespace named like a kind
        return word
    if kind not in ("", "pod") and not found:
        from_template = f"kubectl get {kind} {name} -o yaml | stowage explain -f -"
        raise ValueError(f"{word} has no pods in the cluster. To explain its template: {from_template}")
    if len(found) > 1 and (kind in ("", "pod") or len({key.partition("/")[0] for key in found}) > 1):
        raise ValueError(f"{len(found)} pods are named {word}: specify namespace/name or -n NAMESPACE")
    if not found:
        near = did_you_mean(word, known)  # slow for many pods
        raise ValueError(f"{word} is not a file, and the cluster has no such pod (namespace/name){near}")
    return found[0]


def _reported(args: argparse.Namespace, found: dict[str, Any], stowage: StowageService) -> _Answer:
    """The answer for a pod in the cluster: where it fits now, and the decisions of the service about it."""
    from extender.cli.explain_text import render, render_decisions
    from extender.explain.answers import PodReport, plain

    report = cluster_args.read_answer(PodReport, found, stowage)
    more = {"note": report.note, "decisions": report.decisions, "replica": report.replica}
    value = (plain(report.now) if report.now else {"pod": report.pod, "node": report.node}) | more
    text = f"{report.pod} runs on {report.node}" if report.node else ""
    text = render(report.now, **_look(args)) if report.now and not args.before else text
    decisions = render_decisions(report.decisions, report.replica.name, report.note)
    nodes = _fitting(report.now) if report.now else [*filter(None, [report.node])]
    return _Answer(value, "\n".join(filter(None, (text, decisions))), nodes)


def _fitting(found: Explanation) -> list[str]:
    fits = found.fits and not found.verdict.decides  # rejected by the API server, say
    best = [option.node for option in found.best] if fits else []
    return [found.node] if found.node else best


def _worked_out(
    args: argparse.Namespace,
    manifest: str | None,
    name: str,
    beside: list[Template],
    outcomes: Sequence[Outcome],
    pods: Sequence[str],
    settings: Settings,
) -> tuple[list[_Answer], list[str]]:
    """Answers from a file or the cluster, and warnings about them. Raises ``SettingsError``, ``SourceError``
    and ``ValueError``."""
    from extender.cli.precompile import kernels_for_question
    from extender.source.workloads import beside_pods

    source, settings, dump = cluster_args.source_with_settings(args, settings)
    batches, *counts = cluster_args.listed(source)
    with kernels_for_question(sum(counts)):
        from extender.cluster.factory import state_of
        from extender.cluster.policy_refresh import choose_node_sets_now, plan_now
        from extender.explain.answers import PodAnswer
        from extender.explain.pod import explain_each, explain_template, fits_somewhere
        from extender.explain.start_forecast import forecast_at

        state = state_of(settings, dump)
        state.binds = settings.bind
        for events in batches:
            state.apply(events)
        if manifest is not None:
            state.apply(beside_pods(manifest, name))
        templates = [*beside, *(_find(state, word, args.namespace) for word in pods)]
        names = _nodes(args, state)
        choose_node_sets_now(state)
        if any(fits_somewhere(state, template.pod) for template in templates):
            plan_now(state)
        now, answers = cluster_args.moment(source, state.pods.values(), dump), []
        for template in templates:
            nodes = None if names is None else tuple(explain_each(state, template.pod, names))
            found = explain_template(state, template, beside, now=now) if names is None else None
            if found and not (found.fits or found.error or found.held or found.node):
                found = replace(found, starts=forecast_at(state, template.pod, now))
            answers.append(PodAnswer(template.workload, template.pod.key, found, nodes))
    warnings = []
    if not state.nodes:
        warnings = ["No nodes found. Was the snapshot created with 'kubectl get nodes,pods -A -o json'?"]
    elif not state.pods:
        warnings = ["No pods found, so every node counts as empty. Was the snapshot created with pods?"]
    return _answers(args, answers, outcomes), warnings


def _complete(outcomes: Sequence[Outcome]) -> list[int]:
    return [number for number, outcome in enumerate(outcomes) if outcome.complete]


def _answers(
    args: argparse.Namespace, answers: Sequence[PodAnswer], outcomes: Sequence[Outcome] = ()
) -> list[_Answer]:
    """Answers as text, with the ``outcomes`` of dry runs of the first pods. Pods without GPUs that fit share
    a line, except with ``--verbose`` or for one pod."""
    from extender.cli.explain_text import render, render_nodes

    dry = [answer.with_dry_run(*outcome) for answer, outcome in zip(answers, outcomes, strict=False)]
    answers = [*dry, *answers[len(dry) :]]
    found: list[_Answer] = []
    plain: list[int] = []
    for answer in answers:
        title = f"{visible(answer.workload)}:\n" if answer.workload else ""
        if answer.explanation is None:
            text = title + render_nodes(answer.pod, answer.nodes or (), **_look(args))
            fitting = [node.node for node in answer.nodes or () if node.fits]
            found.append(_Answer(answer.nodes, text, fitting))
            continue
        text, fitting = "", _fitting(answer.explanation)
        if len(answers) > 1 and not args.verbose and answer.explanation.plain:
            plain.append(len(found))
        else:
            text = title + render(answer.explanation, **_look(args))
        found.append(_Answer(answer.explanation, text, fitting))
    if plain:
        fit = f"{many(len(plain), 'pod')} without GPUs {'fits' if len(plain) == 1 else 'fit'} (details: -v): "
        named = ", ".join(visible(answers[i].pod) for i in plain[:_NAMED]) + " ..." * (len(plain) > _NAMED)
        found[plain[-1]] = found[plain[-1]]._replace(text=fit + named)
    return found


def _look(args: argparse.Namespace) -> dict[str, Any]:
    return {"verbose": args.verbose, "width": line_width(wide=args.output == "wide")}


def _nodes(args: argparse.Namespace, state: State) -> list[str] | None:
    """The nodes of ``--node`` and ``--all``; None without either. Raises ``ValueError``."""
    if args.all:
        return sorted(state.nodes)
    names: list[str] | None = args.node
    for name in names or ():
        if name not in state.nodes:
            raise ValueError(f"there is no node {name}{did_you_mean(name, state.nodes)}")
    return names


def _manifest(files: Sequence[str], namespace: str | None, *, recursive: bool) -> tuple[str | None, str]:
    """The text of files, folders (``recursive``: also subfolders) and standard input (``-``), None without
    any, and its name. Raises ``ValueError``."""
    from extender.source.workloads import merged
    from extender.untrusted.files import FileReader
    from extender.untrusted.limits import SNAPSHOT_YAML

    texts: list[tuple[str, str]] = []
    reader = FileReader(SNAPSHOT_YAML)
    for name in files:
        if "://" in name:
            raise ValueError(f"{name} is a URL. Download it: curl -L {name} | stowage explain -f -")
        path = Path(name)
        try:
            entries = sorted(path.rglob("*") if recursive else path.iterdir()) if path.is_dir() else []
        except OSError as error:
            raise ValueError(f"{name}: cannot be read: {error.strerror}") from None
        manifests = [entry for entry in entries if entry.name.removesuffix(".gz").endswith(_SUFFIXES)]
        paths = [entry for entry in manifests if not entry.is_dir()] if path.is_dir() else [path]
        if not paths:
            raise ValueError(f"{name}: has no file {', '.join('*' + suffix for suffix in _SUFFIXES)}")
        texts += [("standard input" if name == "-" else str(file), reader.read_text(file)) for file in paths]
    if not texts:
        return None, ""
    is_plain = len(texts) == 1 and not namespace
    return texts[0][1] if is_plain else merged(texts, namespace), ", ".join(name for name, _ in texts)


def _find(state: State, word: str, namespace: str | None) -> Template:
    """The pod with this name, or the first pod of a workload. Raises ``ValueError``."""
    from extender.source.workloads import Template, pods_named

    known = state.pods.or_misaligned().values()
    key = _only(word, namespace, partial(pods_named, known), state.pods)
    return Template(next(pod for pod in known if pod.key == key))
