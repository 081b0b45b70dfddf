"""Why a pod fits where it fits, or nowhere, and what is missing: read by people, as JSON or in a terminal.

Pure: the state and a pod in, values out. What kube-scheduler checks by itself (taints, affinity, volumes) is
not known here; of its filters only cordons and the node selector are followed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from extender.dialects import RequestError, request_of
from extender.dra.forecast import Forecast
from extender.names import Bytes, NodeNames
from extender.objects import Pod
from extender.snapshot import Snapshot
from extender.source import Unavailable
from extender.state import PossiblyBound, Rows, State
from extender.verbs.verdict import Verdict, judge
from packing.fleet import Fleet
from packing.ranking import best, levels
from packing.reasons import Reason
from packing.request import Request
from packing.shape import meaning

BEST = 3
"""Nodes that are shown of those that fit."""


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
    """``nodes`` were asked about, ``fits`` of them fit; ``passed_over`` counts those not worth asking about.

    ``error``: the request itself is wrong, whatever the nodes have.
    """

    pod: str
    asks: dict[str, int | str] = field(default_factory=dict)
    error: str = ""
    nodes: int = 0
    fits: int = 0
    best: tuple[Option, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    passed_over: dict[str, int] = field(default_factory=dict)


def parse_pod(text: str, name: str) -> Pod:
    """The one pod of a manifest, JSON or YAML, that ``name`` tells from others. Raises ``ValueError``."""
    found = Snapshot()
    try:
        found.add(text, name)
    except Unavailable as error:
        raise ValueError(str(error)) from None
    if found.problems:
        raise ValueError(str(found.problems[0]))
    if len(found.pods) != 1:
        raise ValueError(f"{name}: holds {len(found.pods)} pods instead of one (kind: Pod)")
    return next(iter(found.pods.values()))


def explain(state: State, pod: Pod, possibly_bound: PossiblyBound = ()) -> Explanation:
    """The pod against every node, as things are now."""
    try:
        request = request_of(pod)
    except RequestError as error:
        return Explanation(pod.key, error=str(error))
    worth_asking, passed_over = _worth_asking(state, pod)
    names = NodeNames.of(worth_asking)
    verdict = judge(state, pod, request, names, possibly_bound)
    fits = verdict.codes == Reason.FITS
    scores = np.zeros(len(names), np.uint8)
    scores[fits] = levels(verdict.cost[fits], verdict.keys[fits])
    return explain_verdict(state, names, verdict, scores, passed_over)


def explain_verdict(
    state: State,
    names: NodeNames,
    verdict: Verdict,
    scores: Bytes | None = None,
    passed_over: dict[str, int] | None = None,
) -> Explanation:
    """What a verdict says about these names (and with these scores) in numbers of this moment."""
    pod, request = verdict.pod, verdict.request
    fitting = np.flatnonzero(verdict.codes == Reason.FITS)
    shown = fitting[best(verdict.keys[fitting], BEST)]
    shown = shown[np.argsort(verdict.keys[shown])]
    with state.as_for(pod, verdict.possibly_bound) as fleet:
        options = [
            _option(state, verdict, i, names[i], None if scores is None else int(scores[i]))
            for i in shown.tolist()
        ]
        refusals = [
            _refusal(fleet, names, verdict, Reason(int(code)))
            for code in np.flatnonzero(np.bincount(verdict.codes))
            if code != Reason.FITS
        ]
    return Explanation(
        pod=pod.key,
        asks=asks(request),
        nodes=len(names),
        fits=fitting.size,
        best=tuple(options),
        refusals=tuple(sorted(refusals, key=lambda refusal: -refusal.nodes)),
        passed_over=passed_over or {},
    )


def asks(request: Request) -> dict[str, int | str]:
    """A request in words: what by how much."""
    said: dict[str, int | str] = {"cpu (milli)": request.cpu_milli, "memory (MiB)": request.memory_mib}
    said |= dict(request.devices) | dict(request.profiles)
    if part := request.shares:
        said["GPUs"] = part.count
        said |= {"of each: compute (milli)": part.compute_milli} if part.compute_milli else {}
        said |= {"of each: memory (MiB)": part.memory_mib} if part.memory_mib else {}
        said |= {"of each: memory (milli)": part.memory_milli} if part.memory_milli else {}
    if request.models is not None:
        said["models"] = ", ".join(sorted(request.models))
    return said | ({"NVLink island": "required"} if request.island else {})


def _worth_asking(state: State, pod: Pod) -> tuple[list[str], dict[str, int]]:
    """Nodes that kube-scheduler would ask about, as far as is known here, and why not about the others."""
    passed_over: Counter[str] = Counter()
    names = []
    for node in state.nodes.values():
        if node.unschedulable:
            passed_over["node is cordoned"] += 1
        elif any(node.labels.get(key) != value for key, value in pod.spec.node_selector):
            passed_over["node selector does not match"] += 1
        else:
            names.append(node.name)
    return names, dict(passed_over)


def _option(state: State, verdict: Verdict, index: int, name: str, score: int | None) -> Option:
    row, request = int(verdict.rows[index]), verdict.request
    forecast = verdict.forecasts[index] if verdict.forecasts else Forecast()
    claims = {"claims": forecast.cost} if forecast.devices else {}
    if forecast.regret:
        claims["less wanted"] = forecast.regret
    return Option(
        node=name,
        score=score,
        cost=float(verdict.cost[index]),
        terms=state.policy.terms(state.fleet, request, row) | claims,
        gpus=state.policy.choose(state.fleet, request, row),
        devices=tuple(map("/".join, forecast.devices)),
        devices_unknown=forecast.why,
    )


def _refusal(fleet: Fleet, names: NodeNames, verdict: Verdict, reason: Reason) -> Refusal:
    refused = np.flatnonzero(verdict.codes == reason)
    index = int(refused[np.argmin(_lacking(fleet, verdict.rows[refused], verdict.request))])
    needs = _needs(fleet, int(verdict.rows[index]), verdict.request)
    lacks = tuple(need for need in needs if need.free < need.asked)
    return Refusal(reason.text, refused.size, reason.eviction_helps, names[index], lacks)


def _lacking(fleet: Fleet, rows: Rows, request: Request) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How far each row is from having what is asked, each thing by its own measure: (len(rows),)."""
    lacking = np.zeros(rows.size, np.float64)
    for free, asked in ((fleet.cpu, request.cpu_milli), (fleet.node_memory, request.memory_mib)):
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
        Need("cpu (milli)", request.cpu_milli, int(fleet.cpu[row]), shape.cpu_milli),
        Need("memory (MiB)", request.memory_mib, int(fleet.node_memory[row]), shape.memory_mib),
    ]
    for name, count in request.devices:
        resource = fleet.resources.get(name)
        free, total = (0, 0) if resource is None else (fleet.free[resource, row], fleet.total[resource, row])
        needs.append(Need(name, count, int(free), int(total)))
    if part := request.shares:
        mib = [fleet.share_mib(row, gpu, request) for gpu in range(len(shape.gpus))]
        enough = [
            fleet.divisible[gpu, row] and fleet.compute[gpu, row] >= part.compute_milli and free >= mib[gpu]
            for gpu, free in enumerate(fleet.memory[: len(shape.gpus), row])
        ]
        what = f"GPUs with {part.compute_milli} milli and {max(mib, default=0)} MiB"
        needs.append(Need(what, part.count, sum(map(bool, enough)), len(shape.gpus)))
    return needs
