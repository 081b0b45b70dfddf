"""Why a pod fits nowhere, and fixes, the cheapest first.

``explain``, ``top`` and the page show this one answer. Reasons that hold on every node, whatever runs there,
come first: a request that is rejected or larger than any node, then an annotation that no component reads or
a misspelled name, then a taint, a label or a model; last that all allowed nodes are full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.cluster.state import State
from extender.dialects.pod_request import DEVICE_MEMORY
from extender.dialects.shared_gpus import is_gpu_resource
from extender.explain.answers import EvictionOption, Evictions, Need, NeedKind, Refusal, Verdict
from extender.explain.candidates import Candidates, Rejection, uncordoned
from extender.explain.corrections import asking_instead
from extender.explain.fixes import Change, Finding, Fix, Rank
from extender.explain.needs import cpus_said, memory_said, reduced, replicas_given
from extender.explain.room import (
    added_nodes,
    ends,
    gang_ends,
    gang_fits_when_empty,
    held_without_gpus,
    layout_change_for,
    missing_members,
    pods_without_gpus,
    room_by_others,
)
from extender.explain.rule_changes import RuleChange, StillRefused, changes_for, try_rule_changes
from extender.explain.what_if import fitting_after, kept
from extender.explain.words import ADVICE, Said, Word
from extender.k8s.node_filter import Rule
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.visible import listed, many
from extender.verbs.evaluate import evaluate, hosts_when_empty, reason_on
from packing.fleet.feasibility import eviction_may_help, reason_on_row
from packing.model.reasons import Reason
from packing.model.request import Request

_TOO_LARGE = Finding(Word.TOO_LARGE(), Rank.NEVER)
_NAMED = 3
_WAYS = 4
"""Maximum number of rule changes shown, the most helpful first."""
_ACTORS = {"kube-scheduler": "kube-scheduler", "evictor": "the evictor"}
FULL, TOO_SMALL, OTHER = 1, 2, 3
RANKS: Mapping[str, int] = {
    Reason.GANG_DOES_NOT_FIT.name: 0,
    **{
        reason.name: TOO_SMALL
        for reason in (
            *(Reason.GPUS_TOO_SMALL, Reason.TOO_FEW_GPUS, Reason.ISLAND_TOO_SMALL, Reason.NO_FREE_GPUS),
            *(Reason.FRAGMENTED, Reason.NO_FREE_CPU, Reason.NO_FREE_MEMORY, Reason.TOO_MANY_REPLICAS),
            *(Reason.PARTS_OF_ONE_GPU, Reason.BELOW_MINIMUM, Reason.SMALL_DEVICES),
        )
    },
    Reason.REPARTITIONING.name: 4,
    Reason.UNKNOWN_NODE.name: 4,
    Reason.NO_SUCH_RESOURCE.name: 5,
}
"""Rank of each kind of refusal, the most informative first: the gang does not fit (the pod does), nodes are
``FULL`` or ``TOO_SMALL`` for the request, ``OTHER`` reasons, and last they have no such resource."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """``said``: where the pod fits, or the decisive reason, which may be a ``finding`` or a ``refusal`` of
    the nearest node; and the fixes."""

    said: Said
    fixes: tuple[Fix, ...] = ()
    refusal: Refusal | None = None
    finding: Finding | None = None

    def verdict(self) -> Verdict:
        """As shown."""
        refusal = self.refusal
        kind = refusal.kind if refusal and self.said.word is Word.REFUSED else self.said.word.name
        near = refusal if refusal and refusal.lacks else None
        return Verdict(
            why=self.finding.text if self.finding else str(self.said),
            lacks=str(Word.NEAREST(node=near.nearest, needs=_needs(near))) if near else "",
            ways=tuple(fix.text for fix in self.fixes),
            nearest=near.nearest if near else "",
            kind=kind,
            fixes=tuple(fix.said.word.name for fix in self.fixes),
        )

    @property
    def lacks(self) -> tuple[Need, ...]:
        """Missing resources on the nearest node."""
        return self.refusal.lacks if self.refusal else ()


@dataclass(frozen=True, slots=True)
class Question:
    """A pod that fits nowhere as far as is known, and why. ``evictions``: the evictions found, if searched.
    With a time ``now`` (Unix seconds), pods whose move or end would suffice are searched, too; ``settings``
    of the evictor determine whether it moves pods.
    """

    state: State
    pod: Pod
    request: Request
    candidates: Candidates
    refusals: Sequence[Refusal]
    evictions: Evictions | None = None
    now: float | None = None
    settings: Settings | None = None

    @property
    def every(self) -> int:
        """Number of all nodes."""
        return len(self.candidates.names) + sum(map(len, self.candidates.passed_over.values()))


def with_layout_change(asked: Question, found: Conclusion) -> Conclusion:
    """The same; if the pod would fit a node with another MIG layout, that is the first fix."""
    if asked.now is None or asked.pod.spec.claims:
        return found
    fix = layout_change_for(asked.state, asked.pod, asked.settings, asked.now)
    return replace(found, fixes=(fix, *found.fixes)) if fix else found


def decide(asked: Question, findings: Sequence[Finding]) -> Conclusion:
    """Why a pod fits nowhere."""
    if not asked.every:
        return Conclusion(Word.NO_NODE())
    changes, others = try_rule_changes(asked.state, asked.pod, asked.request, asked.candidates)
    refused = min(others, key=lambda change: _rank(change.refusal), default=None)
    too_small = refused.refusal if refused and _is_small(refused.refusal) else None
    first = min(asked.refusals, key=_rank, default=None)
    rank = _rank(first)[0] if first else OTHER
    by_rank = {finding.rank: finding for finding in reversed(findings)}
    said = [by_rank.get(Rank.NEVER), by_rank.get(Rank.WORD)]
    largest = first if rank == TOO_SMALL else too_small if rank > TOO_SMALL else None
    if not said[0] and largest and not changes:
        return Conclusion(_TOO_LARGE.said, tuple(_smaller(asked, largest)), largest, _TOO_LARGE)
    if finding := next(filter(None, said), None):
        return of_finding(finding)
    instead = *_opening(asked, changes), *_other_resources(asked, first)
    if starting := next((len(change.fits) for change in changes if change.fits and change.starts), 0):
        return Conclusion(Word.STARTING(nodes=many(starting, "node"), are=_are(starting)), instead)
    if first and rank <= TOO_SMALL:
        fixes = _smaller(asked, first) if rank == TOO_SMALL else _ways_when_full(asked, first, changes)
        more = instead if rank == TOO_SMALL else ()
        return Conclusion(_refused(asked, first), (*kept(asked.state, asked.pod, fixes), *more), first)
    if finding := by_rank.get(Rank.RULE):
        return _by_rule(asked, finding, refused if not changes else None, instead)
    if changes:
        return Conclusion(_rule(asked, changes[0].rules[0]), instead)
    return _without_room_anywhere(asked, first, refused)


def _by_rule(
    asked: Question, finding: Finding, refused: StillRefused | None, instead: tuple[Fix, ...]
) -> Conclusion:
    """A rule that no node meets. ``refused``: why no node would accept the pod without it either."""
    found = of_finding(finding)
    if finding.fix and finding.fix.pod:
        return found
    if refused and finding.said.word is Word.NO_SHARED_NODE:
        way = changes_for(asked.state, asked.pod, refused.rules, refused.node)
        return replace(found, fixes=(*found.fixes, Fix(way.said, later=True)))
    if refused:
        return _and_still_refused(asked, finding.said, refused)
    return replace(found, fixes=instead or found.fixes)


def _without_room_anywhere(
    asked: Question, first: Refusal | None, refused: StillRefused | None
) -> Conclusion:
    """No node could host the pod, full or empty, with or without the rules."""
    if refused and (first is None or _rank(refused.refusal) < _rank(first)):
        return _and_still_refused(asked, _rule(asked, refused.rules[0]), refused)
    if first:
        fixes = tuple(_other_resources(asked, first))
        fixes = fixes or ((Fix(Word.ADVICE(advice=first.advice)),) if first.advice else ())
        return Conclusion(_refused(asked, first), fixes, first)
    rules = asked.candidates.passed_over
    most = max(rules, key=lambda rule: len(rules[rule]))
    return Conclusion(_rule(asked, most))


def _refused(asked: Question, first: Refusal) -> Said:
    return Word.REFUSED(reason=first.reason, nodes=first.nodes, every=many(asked.every, "node"))


def _rule(asked: Question, rule: Rejection) -> Said:
    nodes, every = len(asked.candidates.passed_over[rule]), many(asked.every, "node")
    return Word.RULED_OUT(rule=rule.said, nodes=nodes, every=every)


def _and_still_refused(asked: Question, why: Said, refused: StillRefused) -> Conclusion:
    """This reason, and that none of the nodes that it excludes could host the pod."""
    refusal = refused.refusal
    said = Word.AND_STILL(why=why, reason=refusal.reason, nodes=many(refusal.nodes, "node"))
    return Conclusion(said, tuple(_smaller(asked, refusal)), refusal)


def _rank(refusal: Refusal) -> tuple[int, int, int]:
    """Sort key, the most informative refusal first."""
    otherwise = TOO_SMALL if refusal.eviction_helps and _is_small(refusal) else OTHER
    is_full = refusal.eviction_helps and refusal.can_host
    rank = FULL if is_full else RANKS.get(refusal.kind, otherwise)
    return rank, len(_too_small(refusal)), -refusal.nodes


def _is_small(refusal: Refusal) -> bool:
    """Whether the nearest node has too little even without pods."""
    return bool(_too_small(refusal))


def _too_small(refusal: Refusal) -> list[Need]:
    """Needs that the node cannot meet even without pods, except for devices that it does not have at all."""
    return [
        need
        for need in refusal.lacks
        if need.total < need.asked and (need.total or need.kind not in (NeedKind.DEVICES, NeedKind.COUNT))
    ]


def of_finding(finding: Finding) -> Conclusion:
    """The conclusion from a decisive finding."""
    return Conclusion(finding.said, (finding.fix,) if finding.fix else (), finding=finding)


def and_then(found: Conclusion, then: Conclusion) -> Conclusion:
    """The conclusion, with the outcome for the pod after its first fix."""
    fix = found.fixes[0]
    if then.said.word is Word.FITS:
        return replace(found, fixes=(fix._replace(then=Word.THEN_IT(why=then.said)),))
    if then.said.word is Word.UNKNOWN:
        return found
    needs = then.verdict().lacks
    why = Word.ALSO_LACKS(why=then.said, lacks=needs) if needs else then.said
    after = (next_fix._replace(later=True) for next_fix in then.fixes)
    return replace(found, fixes=(fix._replace(then=Word.THEN(why=why)), *after))


def _needs(refusal: Refusal) -> str:
    return "; ".join(need.text for need in refusal.lacks)


def _smaller(asked: Question, refusal: Refusal) -> Iterator[Fix]:
    """The largest request that the nearest node can meet, and further obstacles there."""
    needs = [_without_pinned(asked.state, need, refusal.nearest) for need in _too_small(refusal)]
    if less := [_at_most(need) for need in needs if need.total]:
        then = _then(asked, reduced(asked.request, needs), refusal.nearest)
        amounts = " and ".join(map(str, less))
        yield Fix(Word.REQUEST_LESS(amounts=amounts, node=refusal.nearest), then=then)
    elif refusal.advice and not needs:
        yield Fix(Word.ADVICE(advice=refusal.advice))
    for need in needs:
        if not need.total:
            yield Fix(Word.NOT_REPORTED(what=need.what, node=refusal.nearest))


def _without_pinned(state: State, need: Need, node: str) -> Need:
    """The need, with the total that the node has beside DaemonSets and static pods."""
    held = [taken for _, taken in held_without_gpus(state, node, pinned=True)]
    if need.kind is NeedKind.CPU:
        return replace(need, total=max(need.total - sum(taken.cpu_milli for taken in held), 0))
    if need.kind is NeedKind.MEMORY:
        return replace(need, total=max(need.total - sum(taken.memory_mib for taken in held), 0))
    return need


def _then(asked: Question, request: Request | None, node: str) -> Said | None:
    """The obstacle for this request on the node other than pods, None for none."""
    state = asked.state
    if request is None or node not in state.fleet.rows:
        return None
    reason = reason_on_row(state.fleet, request, state.fleet.rows[node])
    if reason is Reason.FITS and not state.binds:  # otherwise the pod's own request would count
        reason = reason_on(state, asked.pod, request, node)
    return None if reason is Reason.FITS or reason.eviction_helps else Word.THEN(why=reason.text)


def _at_most(need: Need) -> str | Said:
    match need.kind:
        case NeedKind.CPU:
            return cpus_said(need.total)
        case NeedKind.MEMORY:
            return memory_said(need.total)
        case NeedKind.GPU_MEMORY:
            return Word.GIB_OF_A_GPU(count=need.total >> 10)
        case NeedKind.EACH_GPU:
            return Word.MIB_IN(count=need.total, annotation=DEVICE_MEMORY)
        case NeedKind.GPUS:
            return many(need.total, "GPU")
        case NeedKind.BYTES:
            return Word.GIB_OF(count=need.total >> 30, what=need.what)
    return Word.DEVICES(count=need.total, what=need.what)


def _change_fix(asked: Question, change: RuleChange) -> Fix:
    """How to get past rules, how many nodes would then accept the pod, and what they would allocate."""
    if not change.counted:
        return Fix(change.way)
    count, state, gang = len(change.fits) or change.full, asked.state, asked.state.gangs.gang_of(asked.pod)
    is_whole = bool(change.fits) and state.gang_check and gang is not None and gang.to_place > 1
    word = Word.ACCEPTS if change.fits else Word.ACCEPTS_FULL
    then = (Word.ACCEPTS_PERHAPS if change.doubt else word)(
        nodes=many(count, "node"),
        what=(Word.WHOLE_GANG if is_whole else Word.IT)(),
        are=_are(count),
        doubt=change.doubt,
        given=_parts_given(asked, change),
    )
    opened = {change.node.name: uncordoned(change.node)}
    trial = Change(change.pod, opened, among=change.fits) if change.fits and not change.doubt else None
    return Fix(change.way, change=trial, then=then, tried=not is_whole)


def _opening(asked: Question, changes: Sequence[RuleChange]) -> Iterator[Fix]:
    """The changes of rules that are enough; for a gang else the first one together with more nodes."""
    state, nothing = asked.state, True
    for fix in kept(state, asked.pod, (_change_fix(asked, change) for change in changes[:_WAYS])):
        nothing = False
        yield fix
    for change in changes[:1] if nothing else ():
        for more in added_nodes(state, change.pod, asked.request, [change.node.name]):
            yield Fix(Word.BOTH(first=change.way, second=more.said))


def _parts_given(asked: Question, change: RuleChange) -> str:
    """Allocations of nodes that are less than the requested whole GPUs."""
    fleet = asked.state.fleet
    given = Counter(replicas_given(fleet, fleet.rows[name], asked.request) for name in change.fits)
    most, count = next(iter(Counter({text: n for text, n in given.items() if text}).most_common(1)), ("", 0))
    if not most:
        return ""
    everywhere = count == len(change.fits)
    return str(Word.THERE_GETS(given=most) if everywhere else Word.SOME_GET(count=count, given=most))


def _other_resources(asked: Question, first: Refusal | None) -> Iterator[Fix]:
    """Alternative resources, on nodes that its rules allow but that lack its resource."""
    if first is None or first.kind != Reason.NO_SUCH_RESOURCE.name:
        return
    state, names = asked.state, NodeNames.of(asked.candidates.names)
    nodes = [state.nodes[name] for name in names]
    offered = Counter(
        name
        for node in nodes
        for name, count in node.allocatable.items()
        if count != "0" and is_gpu_resource(name)
    )
    for fix in asking_instead(asked.pod, [name for name, _ in offered.most_common(_NAMED)]):
        assert fix.pod is not None
        change = Change(fix.pod, among=asked.candidates.names)
        if fits := fitting_after(state, asked.pod, change):
            then = Word.ALLOWED_FIT(nodes=many(len(fits), "node"))
            yield fix._replace(then=then, change=change, tried=True)
            return
        evaluation = evaluate(state, fix.pod, state.request_of(fix.pod), names)
        takes = hosts_when_empty(state, state.fleet, evaluation) & eviction_may_help(evaluation.codes)
        if count := int(np.count_nonzero(takes)):
            full = Word.ACCEPTS_FULL(nodes=many(count, "node"), what=Word.IT(), are=_are(count), given="")
            yield fix._replace(then=full)
            return


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _ways_when_full(asked: Question, first: Refusal, changes: Sequence[RuleChange]) -> Iterator[Fix]:
    """Wait for an eviction; open a node; wait for a pod that moves or ends, or evict it; add a node."""
    state, pod, request = asked.state, asked.pod, asked.request
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang is not None and gang.to_place > 1:
        yield from _ways_for_gang(asked, first, changes)
        return
    found = asked.evictions or Evictions()
    best = next(iter(found.best), None)
    acts = best is not None and (best.acts == "kube-scheduler" or found.evictor == "on")
    if best and not best.pods:
        count, pods = len(best.leaving), listed(best.leaving, _NAMED)
        yield Fix(Word.WAIT_ENDING(pods=pods, node=best.node, are=_are(count), s="s" * (count == 1)))
    elif best and acts:
        yield Fix(Word.WAIT_EVICTION(actor=_ACTORS[best.acts], pods=_pods(best)))
    for change in changes:
        starts = not change.counted and change.full
        if starts or (change.fits and [rule.rule for rule in change.rules] == [Rule.CORDONED]):
            yield _change_fix(asked, change)
    if asked.now is not None and (moves := room_by_others(state, pod, asked.settings, asked.now)):
        yield moves
    elif not (best and best.leaving):
        names = [name for name in asked.candidates.names if name not in asked.candidates.used_up]
        yield from ends(state, pod, request, names)
    yield from pods_without_gpus(state, pod, request, first)
    if best and best.pods and not acts:
        yield Fix(Word.EVICT(pods=_pods(best), by=Word.BY_EVICTOR() if best.other_nodes else ""))
    if first.kind != Word.NO_DEVICES.name:
        yield from added_nodes(state, pod, request, [first.nearest])


def _ways_for_gang(asked: Question, first: Refusal, changes: Sequence[RuleChange]) -> Iterator[Fix]:
    """Open nodes; wait for pods that move or end; add nodes; make the gang smaller."""
    state, pod, request = asked.state, asked.pod, asked.request
    nothing = True
    if asked.now is not None:
        missing = missing_members(state, pod)
        moves = room_by_others(state, pod, asked.settings, asked.now)
        fixes = [
            *(_change_fix(asked, change) for change in changes[:_WAYS] if change.fits),
            *([moves] if moves else gang_ends(state, pod, request, asked.candidates.names, missing)),
            *added_nodes(state, pod, request, [first.nearest]),
        ]
        for fix in kept(state, pod, fixes):
            nothing = False
            yield fix
    if nothing and not gang_fits_when_empty(state, pod, request):
        yield Fix(Word.SMALLER_GANG())
    elif nothing:
        yield Fix(Word.ADVICE(advice=ADVICE[Reason.GANG_DOES_NOT_FIT]))


def _pods(option: EvictionOption) -> str:
    text = Word.ON_NODE(pods=listed(option.victims, _NAMED), node=option.node) if option.victims else ""
    elsewhere = listed(option.other_nodes, _NAMED)
    return " and ".join(map(str, filter(None, (text, elsewhere))))
