"""Answers of ``stowage explain`` as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import time
from typing import TYPE_CHECKING

from extender.untrusted.visible import columns, joined, many, wrapped

if TYPE_CHECKING:
    from extender.explain.answers import (
        Decision,
        EvictionOption,
        Evictions,
        Explanation,
        NodeAnswer,
        Option,
        Refusal,
    )

_NAMED_VICTIMS, _NAMED_REASONS = 4, 3
_WHO_EVICTS = {
    "kube-scheduler": "It would fit if these pods were evicted, as kube-scheduler does at its next attempt:",
    "evictor": "It would fit if these pods were evicted. kube-scheduler does not do so, {}:",
}
_ENDING = "It would fit once these terminating pods have ended:"
_EVICTOR = {
    "unknown": "but the evictor does if it is enabled",
    "on": "but the evictor does",
    "recommend": "and the evictor only recommends it",
    "off": "and the evictor is disabled",
}


def render(explanation: Explanation, *, verbose: bool = False, width: int = 0) -> str:
    """An explanation as text. ``verbose`` adds scores and costs. ``width`` of its tables: 0 for any."""
    if explanation.error:
        said = f"{explanation.pod} cannot run on any node: {explanation.error}", *explanation.hints
        return joined(piece for line in said for piece in wrapped(line, width))
    lines = [f"{explanation.pod} requests {explanation.asked or 'nothing'}"]
    if explanation.node:
        lines += [f"Running on {explanation.node}. If it had to be placed again:"]
    if explanation.held:
        lines += [f"It cannot be scheduled yet: {explanation.held}. Once it is released:"]
    fits, nodes = explanation.fits, explanation.nodes + sum(explanation.passed_over.values())
    verdict = explanation.verdict
    tables: dict[str, list[tuple[str, ...]]] = {
        "Best:": [_option(option, verbose=verbose) for option in explanation.best] if fits else [],
        "Does not fit:": [_refusal(refusal, verdict.nearest) for refusal in explanation.refusals],
        "Unknown whether the pod's claims can be allocated there:": _counts(explanation.unknown),
        "Ruled out before Stowage is called:": _counts(explanation.passed_over),
    }
    unknown = sum(explanation.unknown.values())
    head = f"It fits on {fits or 'none'} of {many(nodes, 'node')}" + (
        f", unknown for {unknown}" if unknown else ""
    )
    if explanation.unchecked:
        head += f" (without checking its {', '.join(explanation.unchecked)})"
    if (fits or unknown) and not verdict.decides:
        lines += [head]
    else:
        lines += [f"{head}{'.' if verdict.why[:1].isupper() else ':'} {verdict.why}"]
        lines += [f"  {verdict.lacks}"] if verdict.lacks else []
        lines += ["", "What would help:", *(f"  {way}" for way in verdict.ways)] if verdict.ways else []
    if explanation.starts:
        lines += ["", explanation.starts.text(time())]
    if notes := [*explanation.hints, *([explanation.gang] if explanation.gang else [])]:
        lines += ["", *notes]
    lines += _sections(tables, width)
    if explanation.evictions:
        lines += _evictions(explanation.evictions, width)
    return joined(piece for line in lines for piece in wrapped(line, width))


def render_nodes(pod: str, answers: Sequence[NodeAnswer], *, verbose: bool = False, width: int = 0) -> str:
    """The answers for single nodes as text."""
    rows = []
    for answer in answers:
        said = "; ".join(answer.lacks) or answer.advice
        if answer.fits:
            cost = f"cost {answer.cost:.3g} ({_terms(answer.terms)})" if verbose else ""
            said = "; ".join(filter(None, (answer.advice, cost)))
        rows.append((answer.node, answer.reason, said))
    counts = Counter(answer.fits for answer in answers)
    head = f"{pod} fits on {counts[True] or 'none'} of {many(len(answers), 'node')}"
    head += f", unknown for {counts[None]}" if counts[None] else ""
    return joined([head, *(columns(rows, indent="  ", width=width) if rows else [])])


def render_decisions(decisions: Sequence[Decision], replica: str, note: str) -> str:
    """The decisions of a replica of Stowage about a pod, newest first, and its note."""
    rows = [(f"{d.at:%Y-%m-%d %H:%M:%S} UTC", d.verb, d.answer + _reasons(d)) for d in decisions]
    return joined([*_sections({f"Last decisions (of {replica}):": rows}), *(["", note] if note else [])])


def _reasons(decision: Decision) -> str:
    """Why most nodes did not fit, for a pod that fit nowhere."""
    found = decision.explanation
    refusals = found.refusals[:_NAMED_REASONS] if found and not found.fits else ()
    return f" ({'; '.join(f'{r.nodes}: {r.reason}' for r in refusals)})" if refusals else ""


def _option(option: Option, *, verbose: bool) -> tuple[str, ...]:
    gpus = f"GPU {', '.join(map(str, option.gpus))}" if option.gpus else ", ".join(option.devices)
    gpus = ", ".join(filter(None, (gpus, option.gives)))
    numbers = f"score {option.score}, cost {option.cost:.3g} ({_terms(option.terms)})" if verbose else ""
    return option.node, gpus, option.nvlink, option.why, numbers


def _terms(terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in terms.items())


def _refusal(refusal: Refusal, said: str) -> tuple[str, ...]:
    """The nodes with one reason, with the missing resources, but those of the node that is ``said``."""
    lacks = "; ".join(need.text for need in refusal.lacks if need.total)
    is_new = lacks and said != refusal.nearest
    return str(refusal.nodes), refusal.reason, f"nearest: {refusal.nearest} ({lacks})" if is_new else ""


def _counts(nodes_by_reason: Mapping[str, int]) -> list[tuple[str, ...]]:
    return [(str(nodes), reason) for reason, nodes in nodes_by_reason.items()]


def _evictions(evictions: Evictions, width: int) -> list[str]:
    """Pods that would be evicted and by what, why none on other nodes, and protected pods."""
    tables = {_ENDING: [_eviction(option) for option in evictions.best if not option.pods]}
    tables |= {
        _WHO_EVICTS[acts].format(_EVICTOR[evictions.evictor]): [
            _eviction(option) for option in evictions.best if option.pods and option.acts == acts
        ]
        for acts in _WHO_EVICTS
    }
    rest = "On other candidate nodes:" if evictions.best else "Preemption cannot help:"
    tables[rest] = _counts(evictions.elsewhere)
    tables["Pods on these nodes that cannot be evicted for it:"] = _counts(evictions.protected)
    return _sections(tables, width)


def _eviction(option: EvictionOption) -> tuple[str, ...]:
    victims = [*option.victims, *option.other_nodes]
    victims += [f"{pod} (terminating)" for pod in option.leaving]
    more = option.pods + len(option.leaving) - _NAMED_VICTIMS
    names = ", ".join(victims[:_NAMED_VICTIMS]) + (f" and {more} more" if more > 0 else "")
    return option.node, option.loses, names


def _sections(tables: Mapping[str, Sequence[tuple[str, ...]]], width: int = 0) -> list[str]:
    """The tables that have rows, each with its title."""
    shown = {title: columns(rows, indent="  ", width=width) for title, rows in tables.items() if rows}
    return [line for title, lines in shown.items() for line in ("", title, *lines)]
