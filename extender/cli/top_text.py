"""The answer of ``stowage top`` as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from extender.cli.explain_text import amounts
from extender.explain.overview_lines import NodeLine, Overview, WaitingLine
from extender.untrusted.visible import columns, joined

_NODE_HEAD = ("NODE", "MODEL", "GPUS", "WHOLE FREE", "FREE", "MEMORY FREE", "PODS", "NOTE")
_WIDE_HEAD = ("GPU USE %", "ISLANDS", "CPU FREE", "HOST MEMORY FREE")
_PROBLEMS, _NAMED = 10, 3
_WAITING_HEAD = ("WAITS", "QUEUE", "PRIORITY", "AGE", "ASKS FOR", "WHY")


def render(found: Overview, now: float, *, wide: bool = False) -> str:
    """Nodes, a summary, and waiting pods. ``now`` in Unix seconds."""
    head = (*_NODE_HEAD, *_WIDE_HEAD) if wide else _NODE_HEAD
    lines = columns([head, *(_node(line, wide=wide) for line in found.nodes)])
    lines += ["", found.totals.text, *_problems(found), *found.unread]
    if found.waiting:
        lines += ["", *columns([_WAITING_HEAD, *(_wait(line, now) for line in found.waiting)])]
    if found.more_waiting:
        lines.append(f"and {found.more_waiting} more pods wait")
    return joined(lines)


def _node(line: NodeLine, *, wide: bool) -> tuple[str, ...]:
    memory = (
        f"{line.free_memory_mib >> 10} of {line.memory_mib >> 10} GiB" if line.memory_mib else "not known"
    )
    cells: tuple[str, ...] = (
        line.node,
        line.model,
        str(line.gpus or "?"),
        str(line.whole),
        f"{line.free_gpus:.1f}",
        memory,
    )
    cells = (*cells, str(line.pods), line.note)
    if not wide:
        return cells
    use, islands = " ".join(map(str, line.used_percent)), "+".join(map(str, line.islands)) or "-"
    return (*cells, use, islands, f"{line.free_cpu_milli / 1000:g}", f"{line.free_host_memory_mib >> 10} GiB")


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
    return line.pod, line.queue, str(line.priority), age, amounts(line.asks), line.why


def _age(seconds: float) -> str:
    """As kubectl writes it, with one unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"
