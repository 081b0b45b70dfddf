"""The answer of ``stowage top`` as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from extender.cli.explain_text import WIDTH
from extender.explain.asks import amounts
from extender.explain.overview_lines import NodeLine, Overview, WaitingLine
from extender.untrusted.visible import columns, joined, visible, wrapped

By: TypeAlias = Literal["node", "model", "zone"]
Sort: TypeAlias = Literal["name", "model", "zone", "gpus", "whole", "free", "used", "memory", "pods"]
_HEAD = ("MODEL", "GPUS", "WHOLE", "FREE", "GIB FREE", "PODS", "NOTE")
_WIDE_HEAD = ("ZONE", "GPU USE %", "ISLANDS", "MIG FREE", "CPU FREE", "HOST GIB FREE")
_PROBLEMS, _NAMED = 10, 3
_WAITING_HEAD = ("PENDING", "QUEUE", "PRIORITY", "AGE", "STARTS", "REQUESTS", "WHY")


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of one model or zone. What is free counts on nodes that are on offer: ``whole`` and ``free``
    GPUs, memory, and MIG instances by profile."""

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
    open_lines = [line for line in lines if line.on_offer]
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
        mig=_free_mig(open_lines),
    )


def _free_mig(lines: Sequence[NodeLine]) -> dict[str, int]:
    free: Counter[str] = Counter()
    for line in lines:
        free.update(line.mig)
    return dict(free)


def in_order(lines: Sequence[NodeLine | Group], sort: Sort) -> list[NodeLine | Group]:
    """Texts from A to Z, amounts from the largest; equal ones by name."""
    return sorted(sorted(lines, key=_name), key=lambda line: _sort_key(line, sort))


def _name(line: NodeLine | Group) -> str:
    return line.node if isinstance(line, NodeLine) else line.name


def _sort_key(line: NodeLine | Group, sort: Sort) -> str | float:
    if sort in ("name", "model", "zone"):
        return str(getattr(line, sort, _name(line)))
    names = {"free": "free_gpus", "used": "used_gpus", "memory": "free_memory_mib"}
    return -float(getattr(line, names.get(sort, sort)))


def render(
    found: Overview, lines: Sequence[NodeLine | Group], by: By, now: float, *, wide: bool = False
) -> str:
    """These lines, a summary, and waiting pods. ``now`` in Unix seconds."""
    width = 0 if wide else WIDTH
    more = _WIDE_HEAD if wide and by == "node" else ()
    head = ("NODE", *_HEAD, *more) if by == "node" else (by.upper(), "NODES", *_HEAD[1:6], "MIG FREE")
    rows = [_node(line, wide=wide) if isinstance(line, NodeLine) else _group_row(line) for line in lines]
    texts = columns([head, *rows], width=width)
    sentences = [found.totals.text, *_mig(found.nodes), *_problems(found), *found.unread]
    texts += ["", *(one for text in sentences for one in wrapped(visible(text), width))]
    if found.waiting:
        waits = _without_empty([_WAITING_HEAD, *(_wait(line, now) for line in found.waiting)])
        texts += ["", *columns(waits, width=width)]
    if found.more_waiting:
        texts.append(f"and {found.more_waiting} more pending")
    return joined(texts)


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
    return f"{line.free_memory_mib >> 10} of {line.memory_mib >> 10}" if line.memory_mib else "not known"


def _profiles(mig: dict[str, int]) -> str:
    """``4x 3g.40gb, 7x 1g.10gb``: the largest profile first."""
    largest = sorted(mig.items(), key=lambda item: (-_slices(item[0]), item[0]))
    return ", ".join(f"{count}x {profile}" for profile, count in largest)


def _slices(profile: str) -> int:
    first = profile.partition("g.")[0]
    return int(first) if first.isdecimal() else 0


def _mig(nodes: Sequence[NodeLine]) -> Iterator[str]:
    """The free instances of each model that has any."""
    for group in groups([line for line in nodes if line.mig and line.on_offer], "model"):
        yield f"MIG instances free on {group.name}: {_profiles(group.mig)}"


def _without_empty(rows: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """Without columns of which no row but the heading has anything."""
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def _problems(found: Overview) -> Iterator[str]:
    """What is not known of nodes, once for each text."""
    nodes: dict[str, list[str]] = {}
    for line in found.nodes:
        if line.problem and line.problem not in line.note:
            nodes.setdefault(line.problem, []).append(line.node)
    for problem, names in islice(nodes.items(), _PROBLEMS):
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{', '.join(names[:_NAMED])}{more}: {problem}"
    if len(nodes) > _PROBLEMS:
        yield f"and {len(nodes) - _PROBLEMS} more problems of nodes"


def _wait(line: WaitingLine, now: float) -> tuple[str, ...]:
    age = _age(now - line.created) if line.created else "unknown"
    return line.pod, line.queue, str(line.priority), age, _starts(line, now), amounts(line.asks), line.why


def _starts(line: WaitingLine, now: float) -> str:
    """In how long, with a probability of 50 % and of 90 %."""
    if line.starts is None:
        return ""
    times = ("?" if at is None else _age(at - now) for at in (line.starts.half, line.starts.most))
    return " to ".join(times)


def _age(seconds: float) -> str:
    """As kubectl writes it, with one unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"
