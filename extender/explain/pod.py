"""Explains where a pod fits, why it does not fit elsewhere, and what is missing: as JSON or in a terminal.

Changes nothing. Of kube-scheduler's own filters it knows those of ``k8s.node_filter``, ``other_resources``
and forecasts of the pod's claims, but not affinity between pods, topology spread and volumes. Every text and
list in an explanation is short, whatever the pod holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from extender.background import with_turns
from extender.cluster.other_resources import asked_by, is_of_dra, lacking_on
from extender.cluster.state import State
from extender.cluster.unoffered import not_offered, unoffered, unoffered_text
from extender.dialects import gpushare
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.dra.forecast import ELSEWHERE, Forecast
from extender.dra.node_search import NOTHING_FITS
from extender.explain.advice import advice_on
from extender.explain.answers import EvictorMode, Explanation, NodeAnswer, Refusal
from extender.explain.evictions import evictions_for
from extender.explain.gang_ways import way_for_gang
from extender.explain.hints import describe_gang, hints, missing_on, of_classes, uncounted_resources
from extender.explain.needs import missing_needs
from extender.explain.options import option_on
from extender.explain.words import admission_problem, as_admitted, is_manifest
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Node, Pod
from extender.protocol.node_names import Bytes, NodeNames
from extender.untrusted.limits import KEY, LISTED_NAMES, shorten
from extender.verbs.evaluate import Evaluation, evaluate, fitting_scores
from extender.verbs.eviction.promising import shortfall
from extender.verbs.gang_fit import with_gang_check
from packing.fleet.feasibility import fits_when_empty
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import Request

_AT_ONCE = 50
"""Nodes that are checked against a pod's rules before other tasks get their turn."""
BEST = 3
"""Nodes that are shown of those that fit."""
NO_DEVICES = "node does not have the devices that the pod's claims ask for"
OTHER_NODE = "the pod's nodeName is another node"
_SIZE = frozenset(
    {
        *(Reason.TOO_FEW_GPUS.text, Reason.NO_FREE_GPUS.text, Reason.FRAGMENTED.text),
        *(Reason.NO_FREE_CPU.text, Reason.NO_FREE_MEMORY.text),
    }
)
_UNKNOWN_REASONS = 20
"""Different reasons that are shown where devices are not known: they may quote what others wrote."""
Flags = npt.NDArray[np.bool_]


class Candidates:
    """The nodes that kube-scheduler would ask Stowage about for a pod, and why not about the others.

    ``used_up`` says of nodes among ``names`` what they have too little of, though Stowage may find that the
    pod fits there. It counts only there: the others say what evictions would have to change.
    """

    def __init__(self, state: State, pod: Pod) -> None:
        self._state, self._asked = state, asked_by(pod)
        self._filter = NodeFilter(pod)
        self._resources = uncounted_resources(pod)
        self._pinned = pod.node_name if is_manifest(pod) else ""
        self.names: list[str] = []
        self.passed_over: Counter[str] = Counter()
        self.used_up: dict[str, str] = {}

    def add(self, node: Node) -> None:
        if rejection := self.rejection(node):
            self.passed_over[rejection] += 1
            return
        self.names.append(node.name)
        if lack := next(lacking_on(self._state, node, self._asked), None):
            self.used_up[node.name] = lack.reason

    def rejection(self, node: Node) -> str:
        """Why kube-scheduler does not ask about the node, "" if it does."""
        if self._pinned and node.name != self._pinned:
            return OTHER_NODE
        missing = missing_on(node, [one for one in self._resources if not is_of_dra(self._state, node, one)])
        lacking = f"node does not offer {shorten(missing, KEY)}" if missing else ""
        return self._filter.rejection(node) or lacking


async def candidates_of(state: State, pod: Pod) -> Candidates:
    """Those among all nodes. The pod's rules may be long, so other tasks get their turn in between."""
    candidates = Candidates(state, pod)
    async for node in with_turns(list(state.nodes.values()), _AT_ONCE):
        candidates.add(node)
    return candidates


def explain(
    state: State,
    pod: Pod,
    candidates: Candidates | None = None,
    now: float | None = None,
    evictor: EvictorMode = "unknown",
    *,
    with_hints: bool = True,
) -> Explanation:
    """The pod against the candidates (by default those of all nodes), as things are. With a moment ``now``
    (Unix seconds) also who would be evicted for it, where it fits nowhere."""
    pod = as_admitted(pod, state.rights.queues.classes.by_name.get(pod.priority_class))
    found_hints = hints(state, pod) if with_hints else ()
    if candidates is None:
        candidates = Candidates(state, pod)
        for node in state.nodes.values():
            candidates.add(node)
    try:
        request = request_of(pod)
        problem = admission_problem(pod) if is_manifest(pod) else ""
    except RequestError as error:
        problem = str(error)
    if problem:
        return Explanation(shorten(pod.key, KEY), error=shorten(problem), hints=found_hints)
    names, passed_over = NodeNames.of(candidates.names), candidates.passed_over
    evaluation = with_gang_check(state, evaluate(state, pod, request, names))
    fit = zip(names, evaluation.codes == Reason.FITS, strict=True) if candidates.used_up else ()
    if used_up := {name for name, is_fit in fit if is_fit and name in candidates.used_up}:
        names = NodeNames.of([name for name in names if name not in used_up])
        passed_over = passed_over + Counter(candidates.used_up[name] for name in used_up)
        evaluation = with_gang_check(state, evaluate(state, pod, request, names))
    fits, *_ = _by_forecast(evaluation)
    scores = fitting_scores(np.where(fits, Reason.FITS, -1).astype(np.int8), evaluation.cost, evaluation.keys)
    explanation = explain_evaluation(state, names, evaluation, scores, dict(passed_over))
    others = uncounted_resources(pod) | of_classes(pod)
    uncounted: dict[str, int | str] = {shorten(name, KEY): text for name, text in others.items()}
    too_large = _too_large(state, evaluation, explanation)
    fits_or_may = explanation.fits or explanation.unknown
    missing = "" if fits_or_may or not request.wants_gpu else unoffered_text(state)
    explanation = replace(
        explanation,
        asks=explanation.asks | uncounted,
        node="" if is_manifest(pod) else pod.node_name,
        hints=(*found_hints, *too_large, *filter(None, [missing])),
    )
    if now is None or fits_or_may or too_large or pod.node_name or pod.gates:
        return explanation
    evictions = evictions_for(state, pod, list(names), now, evictor)
    return replace(explanation, evictions=evictions, gang_way=way_for_gang(state, pod, request, now))


def _too_large(state: State, evaluation: Evaluation, explanation: Explanation) -> tuple[str, ...]:
    """A sentence if no node would do even without its pods, though some have what the pod asks for."""
    if explanation.fits or _SIZE.isdisjoint(one.reason for one in explanation.refusals):
        return ()
    rows = evaluation.rows[evaluation.rows >= 0]
    if not rows.size or fits_when_empty(state.fleet, evaluation.request)[rows].any():
        return ()
    return ("No node is large enough for it, even without other pods: waiting does not help.",)


def explain_evaluation(
    state: State,
    names: NodeNames,
    evaluation: Evaluation,
    scores: Bytes | None = None,
    passed_over: dict[str, int] | None = None,
) -> Explanation:
    """An evaluation of these names (and the scores that they got), with what is free at this moment."""
    pod, request = evaluation.pod, evaluation.request
    fits, refused, unknown = _by_forecast(evaluation)
    fitting = np.flatnonzero(fits)
    shown = fitting[np.argsort(evaluation.keys[fitting])][:BEST]
    with state.fleet_view_for(pod) as fleet:
        options = [
            option_on(state, evaluation, i, names[i], None if scores is None else int(scores[i]))
            for i in shown.tolist()
        ]
        refusals = [
            _refusal(state, fleet, names, evaluation, Reason(int(code)))
            for code in np.flatnonzero(np.bincount(evaluation.codes))
            if code != Reason.FITS
        ]
    if refused.any():
        refusals += _by_claims(names, evaluation.forecasts, refused)
    return Explanation(
        pod=shorten(pod.key, KEY),
        asks=asks(request),
        gang=describe_gang(state, pod),
        nodes=len(names),
        fits=fitting.size,
        best=tuple(options),
        refusals=tuple(sorted(refusals, key=lambda refusal: -refusal.nodes)),
        unknown=_counted(evaluation.forecasts[i].problem for i in np.flatnonzero(unknown)),
        passed_over=passed_over or {},
    )


def asks(request: Request) -> dict[str, int | str]:
    """What a pod asks for, by what it is and in which unit."""
    asked: dict[str, int | str] = {"cpu (milli)": request.cpu_milli, "memory (MiB)": request.memory_mib}
    asked |= {shorten(name, KEY): count for name, count in request.devices[:LISTED_NAMES]}
    if part := request.shares:
        asked["GPUs"] = part.count
        asked |= {"of each: compute (milli)": part.compute_milli} if part.compute_milli else {}
        in_mib = (
            "of each: aliyun.com/gpu-mem" if part.resource == gpushare.RESOURCE else "of each: memory (MiB)"
        )
        asked |= {in_mib: part.memory_mib} if part.memory_mib else {}
        asked |= {"of each: memory (milli)": part.memory_milli} if part.memory_milli else {}
    if request.models is not None:
        asked["models"] = shorten(", ".join(sorted(request.models)))
    return asked | ({"NVLink island": "required"} if request.island else {})


def _by_forecast(evaluation: Evaluation) -> tuple[Flags, Flags, Flags]:
    """Which nodes fit, which lack devices for the pod's claims, and where that is not known: (N,) each.

    Nodes that Stowage refuses for any other reason are in none of them.
    """
    fits = evaluation.codes == Reason.FITS
    if not evaluation.forecasts:
        return fits, np.zeros_like(fits), np.zeros_like(fits)
    refused = np.array([forecast.refused for forecast in evaluation.forecasts], bool)
    known = np.array([not forecast.problem for forecast in evaluation.forecasts], bool)
    return fits & known & ~refused, fits & refused, fits & ~known & ~refused


def _by_claims(names: NodeNames, forecasts: Sequence[Forecast], refused: Flags) -> Iterator[Refusal]:
    """What the pod's claims refuse."""
    elsewhere = refused & np.array([one.problem == ELSEWHERE for one in forecasts], bool)
    why = {forecasts[i].problem for i in np.flatnonzero(refused & ~elsewhere).tolist()}
    of_pod = why.pop() if len(why) == 1 and NOTHING_FITS not in why else NO_DEVICES
    for reason, where in ((of_pod, refused & ~elsewhere), (ELSEWHERE, elsewhere)):
        if where.any():
            nearest, helps = names[int(where.argmax())], reason == NO_DEVICES
            yield Refusal(reason, int(where.sum()), eviction_helps=helps, nearest=nearest)


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason occurs, the most frequent first; the rarest of many are counted as one."""
    counts = Counter(map(shorten, reasons))
    shown = dict(counts.most_common(_UNKNOWN_REASONS))
    others = counts.total() - sum(shown.values())
    return shown | ({"other reasons": others} if others else {})


def _refusal(state: State, fleet: Fleet, names: NodeNames, evaluation: Evaluation, reason: Reason) -> Refusal:
    refused = np.flatnonzero(evaluation.codes == reason)
    nearest = int(refused[np.argmin(shortfall(fleet, evaluation.rows[refused], evaluation.request))])
    lacks = tuple(missing_needs(fleet, int(evaluation.rows[nearest]), evaluation.request))
    advice = advice_on(state, fleet, evaluation.pod, evaluation.request, names[nearest], reason)
    return Refusal(reason.text, refused.size, reason.eviction_helps, names[nearest], lacks, advice)


def explain_each(state: State, pod: Pod, nodes: Iterable[str]) -> list[NodeAnswer]:
    """An answer for each of these nodes, those that fit first, cheapest first.

    Raises ``RequestError`` where the pod's request cannot be read.
    """
    return sorted(_answers(state, pod, list(nodes)), key=NodeAnswer.order)


def _answers(state: State, pod: Pod, nodes: list[str]) -> Iterator[NodeAnswer]:
    request, candidates = request_of(pod), Candidates(state, pod)
    evaluation = with_gang_check(state, evaluate(state, pod, request, NodeNames.of(nodes)))
    with state.fleet_view_for(pod) as fleet:
        for index, name in enumerate(nodes):
            row, reason = int(evaluation.rows[index]), Reason(int(evaluation.codes[index]))
            node = state.nodes.get(name)
            forecast = evaluation.forecasts[index] if evaluation.forecasts else None
            if node is not None and (rejection := candidates.rejection(node)):
                yield NodeAnswer(name, fits=False, reason=rejection)
            elif reason is not Reason.FITS:
                needs = (need.text for need in missing_needs(fleet, row, request))
                lacks = *needs, *_unoffered(state, name)
                advice = advice_on(state, fleet, pod, request, name, reason)
                yield NodeAnswer(name, fits=False, reason=reason.text, lacks=lacks, advice=advice)
            elif forecast and (forecast.problem or forecast.refused):
                yield NodeAnswer(name, fits=False, reason=shorten(forecast.problem or NO_DEVICES))
            elif node is not None and (used_up := tuple(lacking_on(state, node, asked_by(pod)))):
                lacks = tuple(one.text for one in used_up[:LISTED_NAMES])
                yield NodeAnswer(name, fits=False, reason=used_up[0].reason, lacks=lacks)
            else:
                option = option_on(state, evaluation, index, name, None)
                yield NodeAnswer(name, fits=True, reason=reason.text, cost=option.cost, terms=option.terms)


def _unoffered(state: State, name: str) -> Iterator[str]:
    """What is the matter with GPUs that the node does not offer."""
    found = unoffered(state, name)
    if text := found.note if found else not_offered(state, name):
        yield shorten(text)
