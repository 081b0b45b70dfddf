"""The audit as text, Markdown, and one HTML file that loads nothing. Names in it are untrusted."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from string import Template

from extender.data import CLUSTER
from extender.explain.gpu_use import NO_WASTE, TITLES, Step
from extender.plan.audit import Audit, GpuSums, StepLine, Worst
from extender.plan.bill import COMPARED, Bill
from extender.untrusted.visible import columns, joined, listed, many, visible, wrapped

_BAR, _GROUPS, _PRINTED = 24, 12, 4
_CELLS = ((60, "34px"), (400, "22px"), (10**9, "12px"))
"""Size of a node on the map, by the number of nodes."""
_COLORS: Mapping[str, tuple[str, Sequence[Step]]] = {
    "use": ("in good use", (Step.IN_USE,)),
    "held": ("held, not measured", (Step.NOT_MEASURED,)),
    "start": ("pending pods fit", (Step.STARTING,)),
    "over": ("held, but unused or too expensive", (Step.UNDERUSED, Step.CHEAPER)),
    "idle": ("idle, no pending pod needs it", (Step.IDLE, Step.TOO_FEW)),
    "wait": (
        "idle while pods are pending",
        (Step.FRAGMENTED, Step.CPU_OR_MEMORY, Step.MIG_LAYOUT, Step.RULE, Step.GATED),
    ),
    "hold": ("reserved", (Step.RESERVED,)),
    "off": ("closed or broken", (Step.CLOSED, Step.BROKEN)),
    "unread": ("not readable", (Step.NOT_READABLE,)),
}
"""Colors of the page, each with its meaning and its steps."""
_SCORING = {
    "": "as it happened",
    "least-allocated": "kube-scheduler, least allocated",
    "most-allocated": "kube-scheduler, most allocated",
    "inventory": "Stowage",
}
_COLOR_OF = {step: color for color, (_, steps) in _COLORS.items() for step in steps}


def as_text(audit: Audit, width: int = 0) -> str:
    """The audit in lines of this width, 0 for unlimited: the waterfall, then the largest waste first."""
    rows = [("installed", _number(audit.installed), "#" * _BAR, "", "", "")]
    for line, start, part in _waterfall(audit):
        first, size = round(_BAR * start), max(round(_BAR * part), 1)
        bar = "." * min(first, _BAR - size) + "#" * size
        change = round(line.gpus - audit.before.steps[line.step], 1) if audit.before else 0.0
        changed = f"{change:+,.1f}".removesuffix(".0") if change else ""
        rows.append((line.title, _number(line.gpus), bar, *_amounts(audit, line), changed))
    lines = [*wrapped(_headline(audit), width), "", *columns(rows, right=(1, 3, 4, 5), width=width)]
    for place, line in enumerate(audit.wastes, 1):
        lines += ["", f"{place}. {_gpus(line.gpus)} {line.title}"]
        mend = (f"{_verb(line)}: {line.mend.command}", _promise(line)) if line.mend else ()
        texts = *filter(None, mend), *(f"{_number(worst.gpus):>5}  {text}" for worst, text in _worst(line))
        lines += [f"   {text}" for part in texts for text in wrapped(part, width and width - 3)]
    lines += ["", *columns([*_groups(audit)], right=(1, 2), width=width), ""]
    if audit.bill:
        bill = columns([*_bill_rows(audit.bill)], right=range(1, 5), width=width)
        lines += [*wrapped(_bill_text(audit.bill), width), *bill, ""]
    return joined([*lines, *(text for note in _notes(audit) for text in wrapped(note, width))]).rstrip()


def as_markdown(audit: Audit) -> str:
    """The audit as Markdown: the text in a block, in which nothing is markup."""
    return f"# GPU audit\n\n```text\n{as_text(audit).replace('```', '')}\n```"


def _headline(audit: Audit) -> str:
    if not audit.wastes:
        return f"{audit.name}: no waste found among {_gpus(audit.installed)}."
    share, cost = 100 * audit.wasted / max(audit.installed, 1), _money(audit.cost, audit.currency)
    hours = " and ".join(filter(None, (f"{audit.gpu_hours:,.0f} GPU-hours", cost)))
    wasted = f"{_number(audit.wasted)} of {_gpus(audit.installed)} wasted ({share:.0f} %)"
    since = ""
    if before := audit.before:
        change = f"{audit.wasted - before.wasted:+,.1f} GPUs"
        evenly = (audit.wasted + before.wasted) / 2 * (audit.at - before.at) / 3600
        since = f" Since {_moment(before.at)}: {change}; {evenly:,.0f} GPU-hours."
    return f"{audit.name}: {wasted}.{since} A month like this moment: {hours}."


def _waterfall(audit: Audit) -> Iterator[tuple[StepLine, float, float]]:
    """Each step with GPUs, and its start and width as fractions: it takes from what the steps before left."""
    left, whole = 1.0, max(audit.installed, 1)
    for line in audit.steps:
        left = max(left - line.gpus / whole, 0.0)
        if line.gpus:
            yield line, left, line.gpus / whole


def _amounts(audit: Audit, line: StepLine) -> tuple[str, str]:
    return f"{line.gpu_hours:,.0f} GPU-hours", _money(line.cost, audit.currency)


def _promise(line: StepLine) -> str:
    """What the mend of a step achieved on a copy, "" if it was not tried."""
    if line.mend is None or line.mend.frees is None:
        return ""
    starts = line.mend.starts
    pods = f"; {many(len(starts), 'pending pod')} can start: {listed(starts, 3)}" if starts else ""
    frees = f"frees {_gpus(line.mend.frees)}" if line.mend.frees else "frees nothing today"
    if line.step is Step.IDLE and line.mend.frees:
        frees = f"nodes with {_gpus(line.mend.frees)} could be removed"
    return f"tried on a copy: {frees}{pods}"


def _verb(line: StepLine) -> str:
    return "mend" if line.mend and line.mend.frees else "see"


def _notes(audit: Audit) -> Iterator[str]:
    """What is no waste as far as is known, and what is not counted."""
    for line in audit.steps:
        if line.mend and not line.wasted:
            yield f"{_number(line.gpus)} {line.title}: see {line.mend.command}"
    yield from (f"Not counted: {note}" for note in audit.notes)
    yield from (f"Not replayed: {note}" for note in (audit.bill.notes if audit.bill else ()))


def _worst(line: StepLine) -> Iterator[tuple[Worst, str]]:
    return ((worst, f"{worst.name}{f': {worst.why}' * bool(worst.why)}") for worst in line.worst)


def _groups(audit: Audit) -> Iterator[tuple[str, str, str, str]]:
    yield audit.by.upper(), "GPUS", "WASTED", "MOST OF IT"
    for group in audit.groups[:_GROUPS]:
        wasted = [step for step in group.steps if step not in NO_WASTE]
        most = TITLES[max(wasted, key=lambda step: group.steps[step])] if wasted else ""
        yield group.name or "(none)", _number(group.gpus), _number(group.wasted), most
    if (more := len(audit.groups) - _GROUPS) > 0:
        yield f"and {more} more", "", "", "-o json has all"


def _bill_text(bill: Bill) -> str:
    """Whether other scoring would have let jobs start earlier."""
    hours, jobs = f"{(bill.until - bill.since) / 3600:.0f} hours", many(bill.jobs, "job")
    default, last = bill.lines[1], bill.lines[-1]
    if (saved := default.waited - last.waited) < 1 or not last.earlier:
        gain = "With Stowage, none would have started earlier than with kube-scheduler's default"
    else:
        gain = (
            f"With Stowage, {last.earlier} would have started earlier than with kube-scheduler's default, "
            f"{last.later} later, and pods would have been pending for {saved:,.0f} GPU-hours less"
        )
    return f"The last {hours}, replayed: {jobs}. {gain}."


def _bill_rows(bill: Bill) -> Iterator[tuple[str, str, str, str, str]]:
    yield "GPU-HOURS", "USED", "PENDING", "JOBS EARLIER", "LATER"
    for line in bill.lines:
        starts = ("", "") if line.policy in ("", COMPARED[0]) else (str(line.earlier), str(line.later))
        yield _SCORING[line.policy], f"{line.used:,.1f}", f"{line.waited:,.1f}", *starts


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _number(amount: float) -> str:
    return f"{amount:,.1f}".removesuffix(".0")


def _gpus(amount: float) -> str:
    return f"{_number(amount)} GPU{'' if amount == 1 else 's'}"


def _money(amount: float | None, currency: str) -> str:
    return "" if amount is None else f"{amount:,.0f} {currency}".strip()


def as_html(audit: Audit) -> str:
    """The page. The texts between the tags pass ``_safe``."""
    page = Template(CLUSTER.with_name("audit.html").read_text(encoding="utf-8"))
    result, _, month = _headline(audit).removeprefix(f"{audit.name}: ").partition(". ")
    bill, shown = audit.bill, [_COLOR_OF[line.step] for line, *_ in _waterfall(audit)]
    return page.substitute(
        name=_safe(audit.name),
        headline=_safe(result),
        month=_safe(f"{month} {_moment(audit.at)}"),
        steps="".join(_steps(audit)),
        wastes="".join(_waste(place, line) for place, line in enumerate(audit.wastes, 1)),
        cell=next(size for most, size in _CELLS if len(audit.nodes) <= most),
        map="".join(_map(audit.nodes)),
        key="".join(f"<span>{_square(f'var(--{c})')}{_COLORS[c][0]}</span>" for c in _COLORS if c in shown),
        by=audit.by,
        groups=_table(_groups(audit)),
        bill=f'<section class="bill"><h2>{_safe(_bill_text(bill))}</h2>{_table(_bill_rows(bill))}</section>'
        if bill
        else "",
        notes="<br>".join(map(_safe, _notes(audit))),
    )


def _table(rows: Iterable[Sequence[str]]) -> str:
    cells = ("".join(f"<td>{_safe(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _safe(text: str) -> str:
    return html.escape(visible(text))


def _square(fill: str, title: str = "") -> str:
    return f'<i title="{_safe(title)}" style="background:{fill}"></i>'


def _steps(audit: Audit) -> Iterator[str]:
    yield _step("installed", 0.0, 1.0, "muted", _number(audit.installed), "")
    for line, start, part in _waterfall(audit):
        amount = next(filter(None, reversed(_amounts(audit, line))))
        yield _step(line.title, start, part, _COLOR_OF[line.step], _number(line.gpus), amount)


def _step(title: str, start: float, part: float, color: str, count: str, amount: str) -> str:
    x, size = 100 * start, max(100 * part, 0.4)
    bar = f'<rect x="{x:.2f}" width="{size:.2f}" height="10" fill="var(--{color})"/>'
    svg = f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>'
    return f'<div class="step"><span>{title}</span>{svg}<b>{count}</b><span>{_safe(amount)}</span></div>'


def _waste(place: int, line: StepLine) -> str:
    mend = f'<p class="mend">{_verb(line)}: <code>{_safe(line.mend.command)}</code></p>' if line.mend else ""
    worst = "".join(f"<li>{_safe(f'{_number(of.gpus)}: {text}')}</li>" for of, text in _worst(line))
    title = f"<h3>{place}. {_gpus(line.gpus)} {line.title}</h3>"
    more = ' class="more"' * (place > _PRINTED)
    return f"<div{more}>{title}{mend}<p>{_safe(_promise(line))}</p><ul>{worst}</ul></div>"


def _map(nodes: Sequence[GpuSums]) -> Iterator[str]:
    for pool, members in groupby(sorted(nodes, key=lambda node: node.pool), lambda node: node.pool):
        squares = list[str]()
        for node in members:
            used = (f"{_number(count)} {TITLES[step]}" for step, count in node.steps.items())
            squares.append(_square(_fill(node), f"{node.name}: {'; '.join(used)}"))
        yield f'<p>{_safe(pool)}: {many(len(squares), "node")}</p><div class="map">{"".join(squares)}</div>'


def _fill(node: GpuSums) -> str:
    """The colors of a node's steps from bottom to top, in proportion."""
    stops, filled = list[str](), 0.0
    for step in sorted(node.steps, key=lambda step: list(_COLOR_OF).index(step)):
        before, filled = filled, filled + 100 * node.steps[step] / node.gpus
        stops.append(f"var(--{_COLOR_OF[step]}) {before:.0f}% {filled:.0f}%")
    return f"linear-gradient(to top,{','.join(stops)})"
