"""``stowage top``: the nodes with their GPUs, and the pods pending for GPUs."""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from extender.cli import cluster_args
from extender.cli.cluster_args import whole_number
from extender.explain.answers import NodeLine, Overview, WaitingLine
from extender.untrusted.terminal import clear_screen, line_width
from extender.untrusted.visible import columns, csv_text, joined, listed, visible, wrapped

if TYPE_CHECKING:
    from extender.cluster.state import State
    from extender.explain.answers import Overview
    from extender.k8s.objects import Event
    from extender.settings import Settings
    from extender.source.interface import Source
    from extender.source.stowage_service import StowageService

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


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
_WAITING_HEAD = ("PENDING", "QUEUE", "PRIORITY", "AGE", "STARTS", "REQUESTS", "WHY")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "top",
        usage="%(prog)s [OPTION ...] [NODE ...]",
        description="Show the free GPUs of each node, and the pods pending for GPUs.",
    )
    parser.add_argument("node", nargs="*", help="only these nodes (all)")
    cluster_args.add_running(parser)
    cluster_args.add_namespace(parser, "show the pending pods of this namespace")
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
    from extender import logs
    from extender.settings_file import load

    files = args.snapshot or []  # argparse takes all words after --snapshot
    args.node += [str(path) for path in files[1:] if not path.exists()]
    args.snapshot = [*files[:1], *(path for path in files[1:] if path.exists())] or None
    settings = load(args.config, os.environ)
    logs.configure("warning")
    cluster_args.say_source(args, "top")
    for found, now in _overviews(args, settings):
        if args.watch and args.output in ("table", "wide"):
            clear_screen()
        print(_shown(found, now, args), flush=True)
    return 0


def _overviews(args: argparse.Namespace, settings: Settings) -> Iterator[tuple[Overview, float]]:
    """The fleet and the time in Unix seconds, once or every 2 s: from the running Stowage, or else from the
    source."""
    if first := cluster_args.ask(args, "top", lambda stowage: (stowage, _asked(args, stowage))):
        stowage, found = first
        yield found, time.time()
        while args.watch:
            time.sleep(_PAUSE)
            yield _asked(args, stowage), time.time()
        return
    from extender.cli.precompile import kernels_for_question

    source, settings, dump = cluster_args.source_with_settings(args, settings)
    batches, nodes, pods = cluster_args.listed(source)
    with kernels_for_question(nodes + pods):
        from extender.cluster.census import CensusTaker
        from extender.cluster.factory import check_policy, state_of
        from extender.explain.overview import overview
    check_policy(settings.policy)
    state = state_of(settings.model_copy(update={"policy": _POLICY}), dump)
    state.learner.stopped = True  # nothing is placed, so no demand matters
    census = CensusTaker(state)
    for _ in _states(state, source, batches, watch=args.watch):
        found = asyncio.run(overview(state, census, args.waiting, args.namespace))
        yield found, cluster_args.moment(source, state.pods.values(), dump)


def _asked(args: argparse.Namespace, stowage: StowageService) -> Overview:
    from extender.explain.answers import Overview
    from extender.untrusted.limits import DECISIONS_LISTED

    asked = [("waiting", str(min(args.waiting, DECISIONS_LISTED))), ("namespace", args.namespace or "")]
    found = stowage.get("/debug/overview", asked)
    return cluster_args.read_answer(Overview, found, stowage, "overview")


def _shown(found: Overview, now: float, args: argparse.Namespace) -> str:
    from pydantic_core import to_json, to_jsonable_python

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
    if args.output == "name":
        names = [f"node/{line.node}" if isinstance(line, NodeLine) else line.name for line in lines]
        return joined([*names, *(f"pod/{pod.pod}" for pod in found.waiting)])
    if args.output == "csv":
        values = to_jsonable_python(lines)
        cells = [[_cell(value) for value in line.values()] for line in values]
        return csv_text([*([] if args.no_headers else map(list, values[:1])), *cells])
    if args.output in ("json", "yaml"):
        shown = to_jsonable_python(found) | {f"{args.by}s": lines}
        text = to_json(shown, indent=None if args.watch else 2).decode()
        return cluster_args.structured(text, args.output)
    return render(found, lines, args.by, now, wide=args.output == "wide", headers=not args.no_headers)


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
    rows = [_node(line, wide=wide) if isinstance(line, NodeLine) else _group_row(line) for line in lines]
    if not headers:
        return joined(columns(rows, width=width))
    texts = columns([head, *rows], width=width)
    sentences = [found.totals.text, *_late(found, now), *_mig(found.nodes), *_problems(found), *found.unread]
    texts += ["", *(line for text in sentences for line in wrapped(visible(text), width))]
    if found.waiting:
        waiting = [_waiting_row(line, now) for line in found.waiting]
        used = [i for i in range(len(_WAITING_HEAD)) if any(row[i] for row in waiting)]
        table = [[row[i] for i in used] for row in (_WAITING_HEAD, *waiting)]
        texts += ["", *columns(table, width=width)]
    if found.more_waiting:
        texts.append(f"and {found.more_waiting} more pending")
    return joined(texts)


def _late(found: Overview, now: float) -> Iterator[str]:
    """Queues with a pod that has been pending for longer than the wait objective."""
    for name, (oldest, objective) in found.totals.objectives.items():
        if now - oldest > objective:
            waited, allowed = _age(now - oldest), _age(objective)
            yield f"queue {name}: a pod has been pending for {waited}, longer than {allowed}"


def _node(line: NodeLine, *, wide: bool) -> tuple[str, ...]:
    gpus, whole, free = str(line.gpus or "?"), str(line.whole), f"{line.free_gpus:.1f}"
    memory = _memory(line)
    cells = (line.node, line.model, gpus, whole, free, memory, str(line.pods), line.note)
    if not wide:
        return cells
    use, islands = " ".join(map(str, line.used_percent)), "+".join(map(str, line.islands)) or "-"
    host = f"{line.free_cpu_milli / 1000:g}", str(line.free_host_memory_mib >> 10)
    return (*cells, line.zone or "-", use, islands, _profiles(line.mig) or "-", *host)


def _group_row(group: Group) -> tuple[str, ...]:
    amounts = str(group.nodes), str(group.gpus), str(group.whole), f"{group.free_gpus:.1f}"
    return (group.name, *amounts, _memory(group), str(group.pods), _profiles(group.mig) or "-")


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


def _mig(nodes: Sequence[NodeLine]) -> Iterator[str]:
    """Free instances, by model."""
    for group in groups([line for line in nodes if line.mig and line.on_offer], "model"):
        yield f"MIG instances free on {group.name}: {_profiles(group.mig)}"


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


def _waiting_row(line: WaitingLine, now: float) -> tuple[str, ...]:
    age = _age(now - line.created) if line.created else "unknown"
    return line.pod, line.queue, str(line.priority), age, _starts(line, now), line.asked, line.why


def _starts(line: WaitingLine, now: float) -> str:
    """Time until the expected start, with a probability of 50 % and of 90 %."""
    if line.starts is None:
        return ""
    times = ("?" if at is None else _age(at - now) for at in (line.starts.half, line.starts.most))
    return " to ".join(times)


def _age(seconds: float) -> str:
    """As in kubectl, with one unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"
