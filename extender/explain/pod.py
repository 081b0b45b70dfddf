"""Why a pod fits where it fits, or nowhere, and what is missing: read by people, as JSON or in a terminal.

Pure: the state and a pod in, values out. Of the filters that kube-scheduler has itself, those of
``k8s.scheduling_rules`` and what is foreseen of the pod's claims count; affinity between pods, topology
spread and volumes are not known here. Every text and list in an explanation is short, whatever the pod holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from extender.cluster.state import PossiblyBound, Rows, State
from extender.dialects.pod_request import RequestError, request_of
from extender.dra.forecast import Forecast
from extender.k8s.objects import Node, Pod
from extender.k8s.scheduling_rules import NodeFilter
from extender.protocol.node_names import Bytes, NodeNames
from extender.untrusted.limits import KEY, LISTED_NAMES, shorten
from extender.verbs.evaluate import Evaluation, evaluate
from extender.verbs.scores import best, node_scores
from packing.fleet.fleet import Fleet
from packing.model.node_spec import meaning
from packing.model.reasons import Reason
from packing.model.request import Request

BEST = 3
"""Nodes that are shown of those that fit."""
NO_DEVICES = "node does not have the devices that the pod's claims ask for"
_UNKNOWN_REASONS = 20
"""Reasons that are told apart where devices are not known: they may name what others wrote."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a pod asks of one node, in whole units that ``what`` names."""

    what: str
    asked: int
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nodes that cannot take the pod for one reason, and which of them is nearest to it and what it lacks."""

    reason: str
    nodes: int
    eviction_helps: bool
    nearest: str
    lacks: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """A node that fits: its score if it was given one, its cost, and the parts that it was rounded from.

    ``devices`` are what kube-scheduler would give the pod's claims there; where that is not known,
    ``devices_unknown`` says why.
    """

    node: str
    score: int | None
    cost: float
    terms: dict[str, float]
    gpus: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    devices_unknown: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """``nodes`` were asked about, ``fits`` of them fit.

    ``unknown`` counts, by reason, those where it is not known whether the pod's claims get their devices, and
    that fit otherwise; ``passed_over``, by reason, nodes that kube-scheduler rules out before it asks.
    ``error``: the request itself is wrong, whatever the nodes have.
    """

    pod: str
    asks: dict[str, int | str] = field(default_factory=dict)
    error: str = ""
    nodes: int = 0
    fits: int = 0
    best: tuple[Option, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)


class Candidates:
    """The nodes that kube-scheduler would ask about for a pod, and why not about the others."""

    def __init__(self, pod: Pod) -> None:
        self._filter = NodeFilter(pod.rules, pod.spec.node_selector)
        self.names: list[str] = []
        self.passed_over: Counter[str] = Counter()

    def add(self, nodes: Iterable[Node]) -> None:
        """Sort these nodes in."""
        for node in nodes:
            obstacle = self._filter.obstacle(node.name, node.labels, node.taints, node.unschedulable)
            if obstacle:
                self.passed_over[obstacle] += 1
            else:
                self.names.append(node.name)


def explain(state: State, pod: Pod, possibly_bound: PossiblyBound = ()) -> Explanation:
    """The pod against every node, as things are now."""
    candidates = Candidates(pod)
    candidates.add(state.nodes.values())
    return explain_candidates(state, pod, candidates, possibly_bound)


def explain_candidates(
    state: State, pod: Pod, candidates: Candidates, possibly_bound: PossiblyBound = ()
) -> Explanation:
    """The pod against these nodes, as things are now."""
    try:
        request = request_of(pod)
    except RequestError as error:
        return Explanation(shorten(pod.key, KEY), error=shorten(str(error)))
    names = NodeNames.of(candidates.names)
    verdict = evaluate(state, pod, request, names, possibly_bound)
    fits, _, _ = _told_apart(verdict)
    scores = np.zeros(len(names), np.uint8)
    scores[fits] = node_scores(verdict.cost[fits], verdict.keys[fits])
    return explain_verdict(state, names, verdict, scores, dict(candidates.passed_over))


def explain_verdict(
    state: State,
    names: NodeNames,
    verdict: Evaluation,
    scores: Bytes | None = None,
    passed_over: dict[str, int] | None = None,
) -> Explanation:
    """What a verdict says about these names (and with these scores) in numbers of this moment."""
    pod, request = verdict.pod, verdict.request
    fits, refused, unknown = _told_apart(verdict)
    fitting = np.flatnonzero(fits)
    shown = fitting[best(verdict.keys[fitting], BEST)]
    shown = shown[np.argsort(verdict.keys[shown])]
    with state.fleet_view_for(pod, verdict.possibly_bound) as fleet:
        options = [
            _option(state, verdict, i, names[i], None if scores is None else int(scores[i]))
            for i in shown.tolist()
        ]
        refusals = [
            _refusal(fleet, names, verdict, Reason(int(code)))
            for code in np.flatnonzero(np.bincount(verdict.codes))
            if code != Reason.FITS
        ]
    if refused.any():
        nearest = names[int(refused.argmax())]
        refusals.append(Refusal(NO_DEVICES, int(refused.sum()), eviction_helps=True, nearest=nearest))
    return Explanation(
        pod=shorten(pod.key, KEY),
        asks=asks(request),
        nodes=len(names),
        fits=fitting.size,
        best=tuple(options),
        refusals=tuple(sorted(refusals, key=lambda refusal: -refusal.nodes)),
        unknown=_counted(verdict.forecasts[i].problem for i in np.flatnonzero(unknown)),
        passed_over=passed_over or {},
    )


def asks(request: Request) -> dict[str, int | str]:
    """A request in words: what by how much."""
    said: dict[str, int | str] = {"cpu (milli)": request.cpu_milli, "memory (MiB)": request.memory_mib}
    said |= _first(request.devices) | _first(request.profiles)
    if part := request.shares:
        said["GPUs"] = part.count
        said |= {"of each: compute (milli)": part.compute_milli} if part.compute_milli else {}
        said |= {"of each: memory (MiB)": part.memory_mib} if part.memory_mib else {}
        said |= {"of each: memory (milli)": part.memory_milli} if part.memory_milli else {}
    if request.models is not None:
        said["models"] = shorten(", ".join(sorted(request.models)))
    return said | ({"NVLink island": "required"} if request.island else {})


def _first(counts: Iterable[tuple[str, int]]) -> dict[str, int | str]:
    return {shorten(name, KEY): count for name, count in islice(counts, LISTED_NAMES)}


def _told_apart(verdict: Evaluation) -> tuple[Flags, Flags, Flags]:
    """Which nodes fit, which lack devices for the pod's claims, and of which that is not known: (N,) each.

    Nodes that Stowage refuses for anything else are in none of them.
    """
    fits = verdict.codes == Reason.FITS
    if not verdict.forecasts:
        return fits, np.zeros_like(fits), np.zeros_like(fits)
    refused = np.array([forecast.refused for forecast in verdict.forecasts], bool)
    known = np.array([not forecast.problem for forecast in verdict.forecasts], bool)
    return fits & known & ~refused, fits & refused, fits & ~known & ~refused


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason comes, the most frequent first, and the rare ones of many together."""
    counts = Counter(map(shorten, reasons))
    shown = dict(counts.most_common(_UNKNOWN_REASONS))
    others = counts.total() - sum(shown.values())
    return shown | ({"other reasons": others} if others else {})


def _option(state: State, verdict: Evaluation, index: int, name: str, score: int | None) -> Option:
    row, request = int(verdict.rows[index]), verdict.request
    forecast = verdict.forecasts[index] if verdict.forecasts else Forecast()
    claims = {"claims": forecast.cost} if forecast.devices else {}
    if forecast.first_available_penalty:
        claims["less wanted"] = forecast.first_available_penalty
    return Option(
        node=name,
        score=score,
        cost=float(verdict.cost[index]),
        terms=state.policy.terms(state.fleet, request, row) | claims,
        gpus=state.policy.choose(state.fleet, request, row),
        devices=tuple(map("/".join, forecast.devices[:LISTED_NAMES])),
        devices_unknown=shorten(forecast.problem),
    )


def _refusal(fleet: Fleet, names: NodeNames, verdict: Evaluation, reason: Reason) -> Refusal:
    refused = np.flatnonzero(verdict.codes == reason)
    index = int(refused[np.argmin(_lacking(fleet, verdict.rows[refused], verdict.request))])
    needs = _needs(fleet, int(verdict.rows[index]), verdict.request)
    lacks = tuple(need for need in needs if need.free < need.asked)
    return Refusal(reason.text, refused.size, reason.eviction_helps, names[index], lacks)


def _lacking(fleet: Fleet, rows: Rows, request: Request) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How far each row is from having what is asked, each thing by its own measure: (len(rows),)."""
    lacking = np.zeros(rows.size, np.float64)
    amounts = (fleet.free_cpu, request.cpu_milli), (fleet.free_memory, request.memory_bytes)
    for free, asked in amounts:
        lacking += np.maximum(asked - free[rows], 0) / max(asked, 1)
    for name, count in request.devices:
        free_devices = fleet.free[fleet.resources[name]][rows] if name in fleet.resources else 0
        lacking += np.maximum(count - free_devices, 0) / count
    if (part := request.shares) and part.compute_milli:
        largest = (fleet.compute * fleet.divisible)[:, rows].max(axis=0)
        lacking += np.maximum(part.compute_milli - largest, 0) / part.compute_milli
    return lacking


def _needs(fleet: Fleet, row: int, request: Request) -> list[Need]:
    """What the request means on a node, thing by thing; nothing for a node that is not known."""
    shape = fleet.shapes[row] if row >= 0 else None
    if shape is None:
        return []
    request = meaning(shape, request)
    needs = [
        Need("cpu (milli)", request.cpu_milli, int(fleet.free_cpu[row]), shape.cpu_milli),
        Need("memory (MiB)", request.memory_mib, -(-int(fleet.free_memory[row]) >> 20), shape.memory_mib),
    ]
    for name, count in request.devices[:LISTED_NAMES]:
        resource = fleet.resources.get(name)
        free, total = (0, 0) if resource is None else (fleet.free[resource, row], fleet.total[resource, row])
        needs.append(Need(shorten(name, KEY), count, int(free), int(total)))
    if part := request.shares:
        mib = [fleet.share_mib(row, gpu, request) for gpu in range(len(shape.gpus))]
        enough = [
            fleet.divisible[gpu, row] and fleet.compute[gpu, row] >= part.compute_milli and free >= mib[gpu]
            for gpu, free in enumerate(fleet.memory[: len(shape.gpus), row])
        ]
        what = f"GPUs with {part.compute_milli} milli and {max(mib, default=0)} MiB"
        needs.append(Need(what, part.count, sum(map(bool, enough)), len(shape.gpus)))
    return needs
