"""Explains where a pod fits, why it does not fit elsewhere, and what is missing: as JSON or in a terminal.

Changes nothing. Of kube-scheduler's own filters it knows those of ``k8s.node_filter``, ``other_resources``
and forecasts of the pod's claims, but not affinity between pods, topology spread and volumes. Every text and
list in an explanation is short, whatever the pod holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np

from extender.cluster.gang_placement import WaitingMembers
from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.cluster.unoffered import unoffered_note
from extender.dialects.pod_request import WHOLE_GPU, as_whole
from extender.dialects.pod_resources import RequestError
from extender.explain.answers import EvictorMode, Explanation, NeedKind, NodeAnswer
from extender.explain.candidates import Candidates, all_candidates
from extender.explain.fixes import Finding, Rank, is_manifest, meant, nearest_name, written_as
from extender.explain.hints import (
    admission_problem,
    describe_gang,
    gates_said,
    hidden_gpus,
    hidden_said,
    hints,
)
from extender.explain.holders import holders_on
from extender.explain.needs import asked_text, asks, need_of, others_asked
from extender.explain.options import NodeOption, compared, option_on
from extender.explain.refusals import (
    advice_on,
    by_forecast,
    doubts,
    lacking,
    misaligned_pod,
    needs_on,
    refusals_of,
)
from extender.explain.room import evictions_for, layout_change_for
from extender.explain.verdict import and_then, decide
from extender.explain.what_if import Question, domain_of_most, fit_at_once, missing_members
from extender.explain.words import Said, Word
from extender.k8s.objects import Pod, Unchecked
from extender.protocol.node_names import Bytes, NodeNames
from extender.queues.gang_words import GANG, GANG_MIN, words_of
from extender.settings import Settings
from extender.source.workloads import Template
from extender.untrusted.limits import GANG_READ, KEY, LISTED_NAMES, shorten
from extender.untrusted.visible import listed, many
from extender.verbs.evaluate import Evaluation, evaluate, fitting_scores, form_on
from extender.verbs.gang_fit import with_gang_check
from extender.verbs.gang_room import Supposed, gang_would_fit, wants_dra
from extender.verbs.reason_codes import codes_for
from packing.fleet.downgrade import device_on
from packing.model.reasons import Reason
from packing.model.request import Request

BEST = 3
"""Maximum number of fitting nodes shown."""
_MENDS = 4
_PLAIN = {Word.NO_GPU, Word.OF_DEFAULT}
"""Notes that are not problems for a pod without GPUs."""
_NAMED = 4
_WITHOUT_GPUS = (NeedKind.CPU, NeedKind.MEMORY, NeedKind.COUNT, NeedKind.BYTES)
_UNKNOWN_REASONS = 20
"""Maximum number of reasons shown for unknown devices: they may quote text of others."""


def explain(
    state: State,
    pod: Pod,
    candidates: Candidates | None = None,
    now: float | None = None,
    settings: Settings | None = None,
) -> Explanation:
    """Evaluate the pod against the candidates (by default of all nodes) in the current state. With a time
    ``now`` (Unix seconds), a pod that fits nowhere is also searched for evictions and moves that would
    suffice, and for all fixes, else only for the first; ``settings`` of the service, None if unknown.
    Scheduling gates of the pod are ignored."""
    if not pod.gates:
        found, _ = explained(state, pod, candidates, now, settings)
        problem = state.gangs.never_tried(pod)
        return replace(found, held=problem, plain=False) if problem and found.node == "" else found
    gang = state.gangs.gang_of(pod)
    members = state.gangs.members(gang.key) if gang else ()
    with state.gangs.supposing([replace(member, gates=()) for member in members if member.gates]):
        found, _ = explained(state, replace(pod, gates=()), candidates, None, settings)
    return replace(found, held=str(gates_said(pod)), gang=describe_gang(state, pod), plain=False)


def explain_template(
    state: State,
    template: Template,
    beside: Sequence[Template],
    candidates: Candidates | None = None,
    now: float | None = None,
    settings: Settings | None = None,
) -> Explanation:
    """A pod of a manifest, with the templates ``beside`` it: the pods of one gang count together, as
    ``filter`` counts them once they exist. It is said whether those that belong together fit at once."""
    pod = _in_gang(template).pod
    created = ((state.admission.as_created(_in_gang(made).pod)[0], made.copies) for made in beside)
    copies = (
        replace(made, name=f"{made.name}-{number}" if number else made.name, gates=())
        for made, count in created
        for number in range(count)
    )
    new = [copy for copy in islice(copies, GANG_READ) if copy.key not in state.pods]
    with state.gangs.supposing(new):
        found = explain(state, pod, candidates, now, settings)
        if found.error:
            return found
        if said := _mistake_of(template, Word.REJECTED):
            verdict = Finding(said, Rank.NODES).verdict()
            only = replace(found, error=str(said), fits=0, best=(), verdict=verdict, plain=False)
            return replace(only, hints=(), hint_kinds=(), evictions=None)
        if said := _mistake_of(template, Word.REJECTED_EXCERPT):
            found = found.with_hint(Finding(said).text, said.word.name)
        if not found.fits:
            return found
        together, all_fit = _together(state, state.admission.as_created(pod)[0], template.copies)
        if together is None:
            return replace(found, plain=found.plain and all_fit)
        found = found.with_hint(together.text, together.said.word.name)
        return replace(found, plain=found.plain and all_fit)


def _mistake_of(template: Template, word: Word) -> Said | None:
    """Why the API server would reject the template, or an excerpt of it if that is the ``word``."""
    wanted = (m for m in template.mistakes if m.excerpt == (word is Word.REJECTED_EXCERPT))
    near = ((mistake, nearest_name(mistake.wrong, mistake.known)) for mistake in wanted)
    return next((word(why=f"{m.text}{meant(name)}") for m, name in near if name or m.certain), None)


def _together(state: State, pod: Pod, copies: int) -> tuple[Finding | None, bool]:
    """How many of the pods that belong together fit at once, None for a single pod or if unknown; and whether
    all do, as far as is known."""
    gang, request = state.gangs.gang_of(pod), state.request_of(pod)
    if gang is None:
        fit = fit_at_once(state, pod, request, copies) if copies > 1 else 0
        word = Word.FIT_AT_MOST if Unchecked.SPREAD in pod.unchecked else Word.FIT_AT_ONCE
        finding = Finding(word(copies=copies, fit=fit)) if fit else None
        return finding, fit in (0, copies)
    if gang.to_place < 2 or wants_dra(state, WaitingMembers(pod, request)):
        return None, True
    whole = gang_would_fit(state, pod, request, Supposed(state.nodes))
    word = Word.TOGETHER_NOW if whole else Word.TOGETHER_LATER
    return Finding(word(pods=gang.to_place)), whole


def _in_gang(template: Template) -> Template:
    """The pod with the gang that the controller of its workload is expected to create, as annotations of
    Stowage."""
    if not template.together or words_of(template.pod):
        return template
    labels = {GANG: template.workload.split()[1], GANG_MIN: str(template.together)}
    return template._replace(pod=replace(template.pod, labels={**template.pod.labels, **labels}))


def explained(
    state: State,
    pod: Pod,
    candidates: Candidates | None,
    now: float | None,
    settings: Settings | None,
    mends: int = _MENDS,
) -> tuple[Explanation, Finding]:
    """``mends``: number of mistakes corrected one after the other, to report the next obstacle."""
    node = "" if is_manifest(pod) or pod.misaligned else pod.node_name
    pod, notes = _as_new(state, pod, node)
    findings = hints(state, pod)
    if problem := _request_problem(state, pod):
        found = Finding(problem, Rank.NODES)
        error = Explanation(shorten(pod.key, KEY), error=str(problem), verdict=found.verdict())
        return _with_hints(error, findings), found
    request, candidates = state.request_of(pod), candidates or all_candidates(state, pod)
    names, evaluation, used_up = _evaluated(state, pod, request, candidates)
    passed_over = Counter({str(rule.said): len(nodes) for rule, nodes in candidates.passed_over.items()})
    passed_over += Counter(candidates.used_up[name].reason for name in used_up)
    fits, *_ = by_forecast(evaluation)
    scores = fitting_scores(np.where(fits, Reason.FITS, -1).astype(np.int8), evaluation.cost, evaluation.keys)
    explanation = explain_evaluation(state, names, evaluation, scores, _counted(passed_over))
    volumes = () if all(state.admission.volumes_of(pod)) else ("volumes",)
    unchecked = (*volumes, *pod.unchecked)
    evictions, known = None, _if_any_fits(explanation, findings, unchecked)
    if known is None:
        if now is not None and not node:
            evictor: EvictorMode = settings.evictor if settings else "unknown"
            evictions = evictions_for(state, pod, [*names, *candidates.excluded], now, evictor)
        lacks = ((name, candidates.used_up[name]) for name in sorted(used_up))
        refusals = *explanation.refusals, *lacking(state.fleet, request, lacks)
        asked = Question(state, pod, request, candidates, refusals, evictions, now, settings)
        found = _why_nowhere(asked, findings, mends)
        evictions = None if found.rank is Rank.NEVER else evictions
        if now is not None:
            notes += *_gang_fits(state, pod, request), *_held_by(state, found)
    else:
        found = known
    notes += [finding for finding in findings if finding.said is not found.said]
    notes += _share_instead(state, pod, request, candidates, explanation)
    if request.wants_gpu or pod.spec.claims:
        notes += (Finding(Word.UNLISTED(text=text)) for text in state.unlisted_texts()[:_NAMED])
    notes += doubts(state, pod, (name for name, fit in zip(names, fits, strict=True) if fit))
    needs = found.refusal.lacks if found.refusal else ()
    if request.wants_gpu and any(need.kind not in _WITHOUT_GPUS for need in needs):
        hidden = hidden_gpus(state)
        notes += [Finding(hidden_said(hidden))] if hidden else []
    others = others_asked(state, pod)
    words = {note.said.word for note in notes}
    is_plain = bool(explanation.fits) and not explanation.gang
    explanation = replace(
        explanation,
        asks={**explanation.asks, **others},
        asked=asked_text(request, others),
        node=node,
        unchecked=unchecked,
        evictions=evictions,
        verdict=found.verdict(),
        plain=is_plain and Word.NO_GPU in words and words <= _PLAIN,
    )
    return _with_hints(explanation, notes), found


def _why_nowhere(asked: Question, findings: Sequence[Finding], mends: int) -> Finding:
    """Why the pod fits on no node, with what would help; of a mistake, with the next obstacle once it is
    corrected."""
    found = decide(asked, findings, None if asked.now is not None else 1)
    mended = found.fixes[0].pod if found in findings and found.fixes else None
    if mended and mends:
        keeps_rules = mended.spec is asked.pod.spec and mended.volume_claims == asked.pod.volume_claims
        candidates = asked.candidates if keeps_rules else None
        _, then = explained(asked.state, mended, candidates, asked.now, asked.settings, mends - 1)
        found = and_then(found, then)
    layouts = layout_change_for(asked, asked.now) if asked.now is not None else ()
    return found._replace(fixes=(*layouts, *found.fixes))


def _gang_fits(state: State, pod: Pod, request: Request) -> Iterator[Finding]:
    """How many members of the pod's gang fit, if they are alike."""
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang and (missing := missing_members(state, pod)) > 1:
        fit = fit_at_once(state, pod, request, missing)
        if domains := state.gangs.domains_of(pod):
            name = domain_of_most(state, pod, request, fit)
            most = Word.MOST_ROOM(domain=shorten(name, KEY), fit=fit) if fit else ""
            yield Finding(Word.NO_ROOM_IN_ONE(level=domains[0].level, missing=missing, most=most))
            return
        yield Finding(Word.GANG_FITS(missing=missing, fit=fit or "None", s="s" * (fit < 2)))


def _held_by(state: State, found: Finding) -> Iterator[Finding]:
    """Who holds the GPUs of the nearest node, if it could host the pod without them."""
    near = found.refusal
    if near and near.can_host and any(need.kind not in _WITHOUT_GPUS for need in near.lacks):
        lines = holders_on(state, near.nearest)
        held = [f"{line.pod} ({line.gpus:g} GPU{'s' * (line.gpus != 1)})" for line in lines]
        if held:
            yield Finding(Word.HELD_BY(node=near.nearest, pods=listed(held, _NAMED, " pods")))


def _with_hints(explanation: Explanation, findings: Sequence[Finding]) -> Explanation:
    texts, kinds = tuple(f.text for f in findings), tuple(f.said.word.name for f in findings)
    return replace(explanation, hints=texts, hint_kinds=kinds)


def _as_new(state: State, pod: Pod, node: str) -> tuple[Pod, list[Finding]]:
    """The pod as pending, or for a pod that runs on the ``node`` a pending copy; and what admission adds,
    or why kubelet rejected it."""
    if node:
        pod = replace(pod, uid=f"{pod.uid}-copy", node_name="", claims=())
    pod, added = state.admission.as_created(pod)
    refused = misaligned_pod(state, pod)
    pod = replace(pod, node_name="", phase="Pending") if refused else pod
    notes = Finding(Word.ADDED(what=added)) if added else None, refused
    return pod, [*filter(None, notes)]


def _request_problem(state: State, pod: Pod) -> Said | None:
    """Why the pod fits nowhere, whatever is free on nodes; None for no reason."""
    try:
        state.request_of(pod)
    except RequestError as error:
        return Word.INVALID(problem=shorten(str(error)))
    if is_manifest(pod) and (over := state.admission.exceeded(pod)):
        quota, name, more = over
        used, hard = (shorten(dict(amounts).get(name, "0"), KEY) for amounts in (quota.used, quota.hard))
        return Word.OVER_QUOTA(quota=quota.name, used=used, hard=hard, name=shorten(name, KEY), more=more)
    return admission_problem(state, pod) if is_manifest(pod) else None


def _evaluated(
    state: State, pod: Pod, request: Request, candidates: Candidates
) -> tuple[NodeNames, Evaluation, set[str]]:
    """The evaluation of the candidates, except nodes that reject the pod only for resources that Stowage does
    not place by, or that have too little of these even without pods; and the names of the others."""
    names = NodeNames.of(candidates.names)
    evaluation = with_gang_check(state, evaluate(state, pod, request, names))
    fit = dict(zip(names, evaluation.codes == Reason.FITS, strict=True)) if candidates.used_up else {}
    used_up = {name for name, lack in candidates.used_up.items() if fit[name] or lack.asked > lack.total}
    if used_up:
        names = NodeNames.of([name for name in names if name not in used_up])
        evaluation = with_gang_check(state, evaluate(state, pod, request, names))
    return names, evaluation, used_up


def _share_instead(
    state: State, pod: Pod, request: Request, candidates: Candidates, found: Explanation
) -> Iterator[Finding]:
    """Whether the best node allocates a share of a GPU to a pod that does not state its needs, although whole
    GPUs are free for it."""
    if not found.best or as_whole(request) == request:
        return
    best, names = found.best[0], NodeNames.of(candidates.names)
    gets = device_on(state.fleet, state.fleet.rows[best.node], request)
    if gets and not gets.whole and evaluate(state, pod, as_whole(request), names).certain.any():
        share, annotation = best.gives or Word.A_FRACTION(), written_as("annotations", {WHOLE_GPU: "true"})
        yield Finding(Word.SHARE_INSTEAD(node=best.node, share=share, annotation=annotation))


def fits_somewhere(state: State, pod: Pod) -> bool:
    """Whether the pod may fit on any node, so that costs are compared; also where only its claims decide."""
    if pod.spec.claims or state.devices.extended_resources:
        return True
    with suppress(RequestError), state.fleet_view_for(pod) as fleet:
        rows = np.arange(len(fleet.specs))
        return bool((codes_for(state, fleet, pod, state.request_of(pod), rows) == Reason.FITS).any())
    return False


def _if_any_fits(found: Explanation, findings: Iterable[Finding], unchecked: Sequence[str]) -> Finding | None:
    first = next((finding for finding in findings if finding.rank is Rank.NEVER), None)
    if first and (found.fits or found.unknown):
        return first
    if found.fits:
        doubt = Word.NOT_CHECKED(filters=", ".join(unchecked)) if unchecked else ""
        return Finding(Word.FITS(nodes=many(found.fits, "node"), doubt=doubt), Rank.NODES)
    return Finding(Word.UNKNOWN(why=next(iter(found.unknown))), Rank.NODES) if found.unknown else None


def explain_evaluation(
    state: State,
    names: NodeNames,
    evaluation: Evaluation,
    scores: Bytes | None = None,
    passed_over: dict[str, int] | None = None,
) -> Explanation:
    """An evaluation of these names (and their scores), with the resources that are free now."""
    pod, request = evaluation.pod, evaluation.request
    fits, _, unknown = by_forecast(evaluation)
    fitting = np.flatnonzero(fits)
    shown = fitting[np.argsort(evaluation.keys[fitting])][:BEST]
    with state.fleet_view_for(pod) as fleet:
        options = [
            option_on(state, evaluation, i, names[i], None if scores is None else int(scores[i]))
            for i in shown.tolist()
        ]
        rows = evaluation.rows[shown].tolist()
        forms = [form_on(fleet, row, request) for row in rows]
        placements = list(map(NodeOption, rows, forms, options))
        options = compared(fleet, placements, evaluation.rows[fitting])
        refusals = refusals_of(state, fleet, names, evaluation)
    return Explanation(
        pod=shorten(pod.key, KEY),
        asks=asks(request),
        asked=asked_text(request, {}),
        gang=describe_gang(state, pod),
        nodes=len(names),
        fits=fitting.size,
        best=tuple(options),
        refusals=tuple(sorted(refusals, key=lambda refusal: -refusal.nodes)),
        unknown=_counted(Counter(shorten(evaluation.forecasts[i].problem) for i in np.flatnonzero(unknown))),
        passed_over=passed_over or {},
    )


def _counted(counts: Counter[str]) -> dict[str, int]:
    """How often each reason occurs, the most frequent first; the rarest of many are counted as one."""
    shown = dict(counts.most_common(_UNKNOWN_REASONS))
    others = counts.total() - sum(shown.values())
    return shown | ({str(Word.OTHER_REASONS()): others} if others else {})


def explain_each(state: State, pod: Pod, nodes: Iterable[str]) -> list[NodeAnswer]:
    """An answer for each of these nodes, those that fit first, cheapest first.

    Raises ``RequestError`` where the pod's request cannot be read.
    """
    return sorted(_answers(state, pod, list(nodes)), key=NodeAnswer.order)


def _answers(state: State, pod: Pod, nodes: list[str]) -> Iterator[NodeAnswer]:
    pod, _ = state.admission.as_created(pod)
    request, candidates = state.request_of(pod), Candidates(state, pod)
    evaluation = with_gang_check(state, evaluate(state, pod, request, NodeNames.of(nodes)))
    with state.fleet_view_for(pod) as fleet:
        for index, name in enumerate(nodes):
            reason = Reason(int(evaluation.codes[index]))
            node = state.nodes.get(name)
            forecast = evaluation.forecasts[index] if evaluation.forecasts else None
            if node is not None and (rejection := candidates.rejection(node)):
                yield NodeAnswer(name, fits=False, reason=str(rejection.said))
            elif reason is not Reason.FITS:
                needs = [need.text for need in needs_on(state, fleet, evaluation, index, name)]
                lacks = *needs, *filter(None, [shorten(unoffered_note(state, name))])
                advice = advice_on(state, fleet, pod, request, name, reason)
                yield NodeAnswer(name, fits=False, reason=reason.text, lacks=lacks, advice=advice)
            elif forecast and (forecast.problem or forecast.refused):
                fits = False if forecast.refused else None
                yield NodeAnswer(name, fits=fits, reason=shorten(forecast.problem or str(Word.NO_DEVICES())))
            elif node is not None and (used_up := tuple(lacking_on(state, node, asked_by(pod)))):
                lacks = tuple(need_of(lack).text for lack in used_up[:LISTED_NAMES])
                yield NodeAnswer(name, fits=False, reason=used_up[0].reason, lacks=lacks)
            else:
                option = option_on(state, evaluation, index, name, None)
                doubt = shorten(state.numa.doubt(pod, name))
                known = str(Word.NUMA_DOUBT(why=doubt)) if doubt else ""
                yield NodeAnswer(name, True, reason.text, (), known, option.cost, option.terms)
