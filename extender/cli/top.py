"""``stowage top``: the nodes with their GPUs, the pods that hold these, and the pods pending for GPUs."""

from __future__ import annotations

import argparse
import asyncio
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from extender.cli import cluster_args
from extender.cli.cluster_args import whole_number
from extender.explain.answers import HolderLine, NodeLine, Overview, WaitingLine, plain
from extender.source.errors import BadInput
from extender.untrusted.terminal import clear_screen, line_width
from extender.untrusted.visible import columns, csv_text, joined, listed, visible, wrapped

if TYPE_CHECKING:
    from extender.cluster.census import CensusTaker
    from extender.cluster.state import State
    from extender.k8s.objects import Event
    from extender.settings import Settings
    from extender.source.interface import Source
    from extender.source.stowage_service import StowageService

T = TypeVar("T")
_WAITING = 20
"""Pending pods shown by default."""
_MOST = 1_000_000
_POLICY = "best-fit"
"""Costs are not shown, and this policy needs no tables."""
_PAUSE = 2.0
"""Seconds between two tables."""
_waiting = whole_number(0, _MOST, "a whole number from 0")
By: TypeAlias = Literal["node", "model", "zone"]
Sort: TypeAlias = Literal["name", "model", "zone", "gpus", "whole", "free", "used", "memory", "pods"]
_HEAD = ("MODEL", "GPUS", "WHOLE", "FREE", "GIB FREE", "PODS", "NOTE")
_WIDE_HEAD = ("ZONE", "GPU USE %", "ISLANDS", "MIG FREE", "CPU FREE", "HOST GIB FREE")
_PROBLEMS, _NAMED = 10, 3
_WAITING_HEAD = ("PENDING", "POSITION", "QUEUE", "PRIORITY", "AGE", "STARTS", "REQUESTS", "WHY")
_HOLDER_HEAD = ("POD", "NODE", "GPUS", "HOLDS", "DEVICES", "QUEUE", "PRIORITY", "SINCE", "UNTIL", "JOB")
_PODS = "po", "pod", "pods"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTION ...] [NODE ... | pods]"
    parser.description = "Show the free GPUs and the pending pods, or the pods that hold GPUs."
    parser.add_argument("node", nargs="*", help="only these nodes (all); pods: the pods with GPUs")
    cluster_args.add_running(parser)
    cluster_args.add_namespace(parser, "the pods of this namespace (all)")
    text = "with pods: those of this node (repeatable)"
    parser.add_argument("--node", action="append", default=[], dest="on", metavar="NAME", help=text)
    text = "with pods: those with these labels, such as app=train"
    parser.add_argument("-l", "--selector", default="", metavar="LABELS", help=text)
    more = "any width, with each GPU, zone, islands, MIG, CPU, memory"
    cluster_args.add_output(
        parser, "table", "wide", "json", "yaml", "csv", "name", wide=more, csv="the nodes"
    )
    parser.add_argument("--no-headers", action="store_true", help="print only the rows of the nodes")
    text = "one line per node, model or zone (node)"
    parser.add_argument("--by", choices=get_args(By), default="node", help=text)
    text = f"{', '.join(get_args(Sort))}: numbers in descending order (name)"
    parser.add_argument(
        "--sort", "--sort-by", choices=get_args(Sort), default="name", metavar="COLUMN", help=text
    )
    text = f"maximum number of pending pods shown ({_WAITING})"
    parser.add_argument("--waiting", type=_waiting, default=_WAITING, metavar="N", help=text)
    parser.add_argument("-w", "--watch", action="store_true", help="refresh every 2 s, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    files = args.snapshot or []  # argparse takes all words after --snapshot
    args.node += [str(path) for path in files[1:] if not path.exists()]
    args.snapshot = [*files[:1], *(path for path in files[1:] if path.exists())] or None
    settings = cluster_args.begin(args, "top")
    if args.node[:1] and args.node[0] in _PODS:
        if args.node[1:] or args.by != "node" or args.sort != "name":
            raise BadInput("top pods has no names, --by or --sort: see --node, -n and -l")
        show: Callable[[Any, float, argparse.Namespace], str] = _holders_shown
        answers: Iterator[tuple[Any, float]] = _answers(args, settings, "top", _holders_asked, _holders)
    elif args.on or args.selector:
        raise BadInput("--node and -l select pods: stowage top pods")
    else:
        show, answers = _shown, _answers(args, settings, "top", _asked, _overview)
    for found, now in answers:
        if args.watch and args.output in ("table", "wide"):
            clear_screen()
        print(show(found, now, args), flush=True)
    return 0


def show_pending(args: argparse.Namespace) -> int:
    """``stowage explain`` without a pod: the pending pods, and when they are expected to start. The exit code
    is 0 whether or not they fit, unless ``--exit-code`` is set."""
    args.waiting, args.watch, args.no_headers, args.forecast = _MOST, False, False, True
    settings = cluster_args.begin(args, "explain")
    [(found, now)] = _answers(args, settings, "explain", _asked, _overview)
    lines, width = found.waiting, line_width(wide=args.output == "wide")
    nothing = f"No pods pending for GPUs{f' in {args.namespace}' * bool(args.namespace)}"
    names = [f"pod/{line.pod}" for line in lines]
    print(_formatted(args, names, lines, lines, lambda: joined(_pending(found, now, width) or [nothing])))
    return int(args.exit_code and any(line.kind != "FITS" for line in lines))


def _answers(
    args: argparse.Namespace,
    settings: Settings,
    command: str,
    asked: Callable[[argparse.Namespace, StowageService], T],
    worked_out: Callable[[argparse.Namespace, State, CensusTaker, float], T],
) -> Iterator[tuple[T, float]]:
    """An answer and the time in Unix seconds, once or every 2 s: ``asked`` from the running Stowage, or else
    ``worked_out`` from the source."""
    if first := cluster_args.ask(args, command, lambda stowage: (stowage, asked(args, stowage))):
        stowage, found = first
        yield found, time.time()
        while args.watch:
            time.sleep(_PAUSE)
            yield asked(args, stowage), time.time()
        return
    from extender.cli.precompile import kernels_for_question

    source, settings, dump = cluster_args.source_with_settings(args, settings)
    batches, nodes, pods = cluster_args.listed(source)
    with kernels_for_question(nodes + pods):
        from extender.cluster.census import CensusTaker
        from extender.cluster.factory import check_policy, state_of
    check_policy(settings.policy)
    state = state_of(settings.model_copy(update={"policy": _POLICY}), dump)
    state.learner.stopped = True  # nothing is placed, so no demand matters
    census = CensusTaker(state)
    for _ in _states(state, source, batches, watch=args.watch):
        now = cluster_args.moment(source, state.pods.values(), dump)
        yield worked_out(args, state, census, now), now


def _overview(args: argparse.Namespace, state: State, census: CensusTaker, now: float) -> Overview:
    from extender.explain.overview import overview
    from extender.explain.start_forecast import forecasts_at

    starts = forecasts_at(state, now).of if "forecast" in args else lambda pod: None
    return asyncio.run(overview(state, census, args.waiting, args.namespace, starts))


def _holders(args: argparse.Namespace, state: State, census: CensusTaker, now: float) -> list[HolderLine]:
    from extender.explain.holders import holder_lines

    return asyncio.run(holder_lines(state, args.on, args.namespace or "", args.selector))


def _holders_asked(args: argparse.Namespace, stowage: StowageService) -> list[HolderLine]:
    query = [("node", name) for name in args.on]
    query += [("namespace", args.namespace or ""), ("selector", args.selector)]
    found = stowage.get("/debug/pods", query)
    return cluster_args.read_answer(list[HolderLine], found, stowage, "holders")


def _asked(args: argparse.Namespace, stowage: StowageService) -> Overview:
    from extender.explain.answers import Overview
    from extender.untrusted.limits import DECISIONS_LISTED

    asked = [("waiting", str(min(args.waiting, DECISIONS_LISTED))), ("namespace", args.namespace or "")]
    found = stowage.get("/debug/overview", asked)
    return cluster_args.read_answer(Overview, found, stowage, "overview")


def _shown(found: Overview, now: float, args: argparse.Namespace) -> str:
    names = args.node[args.node[0] in ("no", "node", "nodes") :] if args.node else []  # as kubectl top node
    names = [name.rpartition("/")[2] for name in names]  # node/NAME
    if unknown := [name for name in names if name not in {line.node for line in found.nodes}]:
        raise ValueError(
            f"no node with GPUs is named {unknown[0]}; pods: stowage explain, or top -n NAMESPACE"
        )
    if names:
        nodes = tuple(line for line in found.nodes if line.node in names)
        found = replace(found, nodes=nodes, waiting=(), more_waiting=0)
    lines = in_order(found.nodes if args.by == "node" else groups(found.nodes, args.by), args.sort)
    names = [f"node/{line.node}" if isinstance(line, NodeLine) else line.name for line in lines]
    names += [f"pod/{pod.pod}" for pod in found.waiting]
    wide, headers = args.output == "wide", not args.no_headers
    text = partial(render, found, lines, args.by, now, wide=wide, headers=headers)
    return _formatted(args, names, lines, plain(found) | {f"{args.by}s": lines}, text)


def _holders_shown(found: Sequence[HolderLine], now: float, args: argparse.Namespace) -> str:
    def text() -> str:
        rows, width = [_holder_row(line, now) for line in found], line_width(wide=args.output == "wide")
        return joined(_table(_HOLDER_HEAD, rows, width, headers=not args.no_headers) or ["No pod has GPUs"])

    return _formatted(args, [f"pod/{line.pod}" for line in found], found, found, text)


def _formatted(
    args: argparse.Namespace,
    names: Sequence[str],
    lines: Sequence[object],
    value: object,
    text: Callable[[], str],
) -> str:
    """An answer in the format of ``-o``: its ``names``, its ``lines`` as CSV, its ``value``, or its text."""
    if args.output == "name":
        return joined(names)
    if args.output == "csv":
        values = plain(lines)
        cells = [[_cell(value) for value in line.values()] for line in values]
        return csv_text([*([] if args.no_headers else map(list, values[:1])), *cells])
    if args.output in ("json", "yaml"):
        return cluster_args.structured(value, args.output, indent=None if args.watch else 2)
    return text()


def _holder_row(line: HolderLine, now: float) -> tuple[str, ...]:
    holds = ", ".join(f"{count} {name}" for name, count in line.resources.items())
    since = _age(now - line.since) if line.since else "unknown"
    until = f"{_age(line.until - now)} ({line.limit})" if line.until else ""
    texts = holds, ", ".join(line.devices), line.queue, str(line.priority), since, until, line.job
    return line.pod, line.node, f"{line.gpus:g}", *texts


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, headers: bool = True
) -> list[str]:
    """The columns with any text, and their titles; [] without rows."""
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    shown = [[row[i] for i in used] for row in ([head] * headers + [*rows] if rows else ())]
    return columns(shown, width=width) if shown else []


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return _profiles(value)
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _states(
    state: State, source: Source, listed: Iterable[Sequence[Event]], *, watch: bool
) -> Iterator[None]:
    """Update the state before each step: first with the ``listed`` events, then every 2 s. Raises
    ``SourceError``."""
    for events in listed:
        state.apply(events)
    yield
    if not watch:
        return
    batches: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
    source.start(batches.put)
    try:
        while True:
            time.sleep(_PAUSE)
            with suppress(queue.Empty):
                while True:
                    state.apply(batches.get_nowait())
            yield
    finally:
        source.stop()


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of one model or zone. Free resources (``whole`` and ``free`` GPUs, memory, and MIG instances
    by profile) count only on nodes on offer."""

    name: str
    nodes: int
    gpus: int
    whole: int
    free_gpus: float
    used_gpus: float
    free_memory_mib: int
    memory_mib: int
    pods: int
    mig: dict[str, int]


def groups(nodes: Sequence[NodeLine], by: By) -> list[Group]:
    """The nodes by model or zone, "unknown" for those without one."""
    found: dict[str, list[NodeLine]] = {}
    for line in nodes:
        found.setdefault((line.zone if by == "zone" else line.model) or "unknown", []).append(line)
    return [_group(name, lines) for name, lines in found.items()]


def _group(name: str, lines: Sequence[NodeLine]) -> Group:
    open_lines, mig = [line for line in lines if line.on_offer], Counter[str]()
    for line in open_lines:
        mig.update(line.mig)
    return Group(
        name,
        len(lines),
        gpus=sum(line.gpus for line in lines),
        whole=sum(line.whole for line in open_lines),
        free_gpus=round(sum(line.free_gpus for line in open_lines), 3),
        used_gpus=round(sum(line.used_gpus for line in lines), 3),
        free_memory_mib=sum(line.free_memory_mib for line in open_lines if not line.in_units),
        memory_mib=sum(line.memory_mib for line in lines if not line.in_units),
        pods=sum(line.pods for line in lines),
        mig=dict(mig),
    )


def in_order(lines: Sequence[NodeLine | Group], sort: Sort) -> list[NodeLine | Group]:
    """Sort texts in ascending order, amounts in descending order, and equal values by name."""
    names = {"free": "free_gpus", "used": "used_gpus", "memory": "free_memory_mib"}

    def key(line: NodeLine | Group) -> tuple[str | float, str]:
        name = line.node if isinstance(line, NodeLine) else line.name
        if sort in ("name", "model", "zone"):
            return str(getattr(line, sort, name)), name
        return -float(getattr(line, names.get(sort, sort))), name

    return sorted(lines, key=key)


def render(
    found: Overview,
    lines: Sequence[NodeLine | Group],
    by: By,
    now: float,
    *,
    wide: bool = False,
    headers: bool = True,
) -> str:
    """These lines; with ``headers`` also a summary, and pending pods. ``now`` in Unix seconds."""
    width = line_width(wide=wide)
    more = _WIDE_HEAD if wide and by == "node" else ()
    head = ("NODE", *_HEAD, *more) if by == "node" else (by.upper(), "NODES", *_HEAD[1:6], "MIG FREE")
    rows = [_row(line, wide=wide) for line in lines]
    if not headers:
        return joined(columns(rows, width=width))
    texts = columns([head, *rows], width=width)
    sentences = [found.totals.text]
    for name, (oldest, objective) in found.totals.objectives.items():
        if now - oldest > objective:
            waited, allowed = _age(now - oldest), _age(objective)
            sentences.append(f"queue {name}: a pod has been pending for {waited}, longer than {allowed}")
    for group in groups([line for line in found.nodes if line.mig and line.on_offer], "model"):
        sentences.append(f"MIG instances free on {group.name}: {_profiles(group.mig)}")
    sentences += [*_problems(found), *found.unread]
    texts += ["", *(line for text in sentences for line in wrapped(visible(text), width))]
    waiting = _pending(found, now, width)
    return joined([*texts, *([""] if found.waiting else []), *waiting])


def _pending(found: Overview, now: float, width: int) -> list[str]:
    rows = list[tuple[str, ...]]()
    for line in found.waiting:
        age = _age(now - line.created) if line.created else "unknown"
        place, texts = str(line.position or "held"), (_starts(line, now), line.asked, line.why)
        rows.append((line.pod, place, line.queue, str(line.priority), age, *texts))
    table = _table(_WAITING_HEAD, rows, width)
    return [*table, *([f"and {found.more_waiting} more pending"] if found.more_waiting else [])]


def _row(line: NodeLine | Group, *, wide: bool) -> tuple[str, ...]:
    if isinstance(line, Group):
        amounts = str(line.nodes), str(line.gpus), str(line.whole), f"{line.free_gpus:.1f}"
        return (line.name, *amounts, _memory(line), str(line.pods), _profiles(line.mig) or "-")
    gpus, whole, free = str(line.gpus or "?"), str(line.whole), f"{line.free_gpus:.1f}"
    memory = _memory(line)
    cells = (line.node, line.model, gpus, whole, free, memory, str(line.pods), line.note)
    if not wide:
        return cells
    use, islands = " ".join(map(str, line.used_percent)), "+".join(map(str, line.islands)) or "-"
    host = f"{line.free_cpu_milli / 1000:g}", str(line.free_host_memory_mib >> 10)
    return (*cells, line.zone or "-", use, islands, _profiles(line.mig) or "-", *host)


def _memory(line: NodeLine | Group) -> str:
    if isinstance(line, NodeLine) and line.in_units:
        return f"{line.free_memory_mib} of {line.memory_mib} units"
    return f"{line.free_memory_mib >> 10} of {line.memory_mib >> 10}" if line.memory_mib else "unknown"


def _profiles(mig: dict[str, int]) -> str:
    """``4x 3g.40gb, 7x 1g.10gb``: the largest profile first."""

    def order(item: tuple[str, int]) -> tuple[int, str]:
        slices = item[0].partition("g.")[0]
        return -int(slices) if slices.isdecimal() else 0, item[0]

    return ", ".join(f"{count}x {profile}" for profile, count in sorted(mig.items(), key=order))


def _problems(found: Overview) -> Iterator[str]:
    """Problems of nodes that their notes do not mention, grouped by text."""
    nodes: dict[str, list[str]] = {}
    for line in found.nodes:
        if line.problem and line.problem not in line.note:
            nodes.setdefault(line.problem, []).append(line.node)
    for problem, names in islice(nodes.items(), _PROBLEMS):
        yield f"{listed(names, _NAMED)}: {problem}"
    if len(nodes) > _PROBLEMS:
        yield f"and {len(nodes) - _PROBLEMS} more node problems"


def _starts(line: WaitingLine, now: float) -> str:
    """Time until the expected start, with a probability of 50 % and of 90 %."""
    if line.starts is None:
        return ""
    times = line.starts.half, line.starts.most
    if times == (None, None):
        return "unknown"
    if all(at is not None and at <= now for at in times):
        return "now"
    return " to ".join("?" if at is None else _age(at - now) for at in times)


def _age(seconds: float) -> str:
    """As in kubectl, with one unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"
