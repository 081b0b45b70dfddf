"""Why a pod fits nowhere, and fixes, the cheapest first.

``explain``, ``top`` and the page show this one answer. Reasons that hold on every node, whatever runs there,
come first: a request that is rejected or larger than any node, then an annotation that no component reads or
a misspelled name, then a taint, a label or a model; last that all allowed nodes are full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from extender.cluster.state import State
from extender.dialects.shared_gpus import is_gpu_resource
from extender.explain.answers import EvictionOption, Evictions, Need, NeedKind, Refusal
from extender.explain.candidates import LIFTED, Rejection, untolerated
from extender.explain.fixes import Change, Finding, Fix, Rank, asking_instead
from extender.explain.needs import at_most, reduced
from extender.explain.refusals import OTHER, TOO_SMALL, rank, too_small
from extender.explain.room import added_nodes, ends, held_without_gpus, pods_without_gpus, room_by_others
from extender.explain.rule_changes import Opening, openings
from extender.explain.what_if import (
    Question,
    fitting_after,
    gang_fits_when_empty,
    kept,
    unplaceable_member,
)
from extender.explain.words import ADVICE, Said, Word
from extender.k8s.node_filter import Rule
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import listed, many
from extender.verbs.evaluate import evaluate, hosts_when_empty, reason_on
from packing.fleet.feasibility import eviction_may_help, reason_on_row
from packing.model.reasons import Reason
from packing.model.request import Request

_NAMED = 3
_WAYS = 4
"""Maximum number of rule changes shown, the most helpful first."""
_ROLES = "node-role.kubernetes.io/"
"""Taints of nodes with a role, such as ``control-plane``: other pods should not tolerate them."""
_ACTORS = {"kube-scheduler": "kube-scheduler", "evictor": "the evictor"}


def decide(asked: Question, findings: Sequence[Finding], most: int | None = None) -> Finding:
    """Why a pod fits nowhere, with at most so many fixes: fixes cost evaluations."""
    if not asked.every:
        return Finding(Word.NO_NODE(), Rank.NODES)
    helping, others = openings(asked)
    refused = min(others, key=lambda opening: rank(_refusal(opening)), default=None)
    first = min(asked.refusals, key=rank, default=None)
    rank_of_first = rank(first)[0] if first else OTHER
    by_rank = {finding.rank: finding for finding in reversed(findings)}
    largest = first if rank_of_first == TOO_SMALL else None
    if rank_of_first > TOO_SMALL and refused and too_small(_refusal(refused)):
        largest = refused.refusal
    if Rank.NEVER not in by_rank and largest and not helping:
        return Finding(Word.TOO_LARGE(), Rank.NEVER, None, tuple(_smaller(asked, largest)), largest)
    if finding := by_rank.get(Rank.NEVER) or by_rank.get(Rank.WORD):
        return finding
    asking = _other_resources(asked, first)
    fitting = next(asking, None) if helping and most != 0 else None
    served = first if fitting and fitting.change else None  # its rules lead to nodes with another resource
    ways = [fitting] if fitting else []
    instead = chain(ways if served else (), _opening(asked, helping), () if served else ways, asking)
    starting = next((opening for opening in helping if opening.fits and opening.starts), None)
    if starting:
        count = len(starting.fits)
        said = Word.STARTING(nodes=many(count, "node"), are=_are(count))
    elif first and rank_of_first <= TOO_SMALL:
        said, refusal = _refused(asked, first), first
        full = _ways_when_full(asked, first, helping)
        fixes = chain(_smaller(asked, first), instead) if rank_of_first == TOO_SMALL else full
        return Finding(said, Rank.NODES, None, tuple(islice(fixes, most)), refusal)
    elif finding := by_rank.get(Rank.RULE):
        return _by_rule(asked, finding, refused if not helping else None, instead)
    elif helping:
        said = _refused(asked, served) if served else _rule(asked, helping[0].rules[0])
    else:
        return _without_room_anywhere(asked, first, refused)
    return Finding(said, Rank.NODES, fixes=tuple(islice(instead, most)))


def _refusal(opening: Opening) -> Refusal:
    assert opening.refusal is not None  # of those that do not help
    return opening.refusal


def _by_rule(asked: Question, finding: Finding, refused: Opening | None, instead: Iterable[Fix]) -> Finding:
    """A rule that no node meets. ``refused``: why no node would accept the pod without it either."""
    if finding.fixes and finding.fixes[0].pod:
        return finding
    if refused and finding.said.word is Word.NO_SHARED_NODE:
        then = Fix(refused.fix.said, later=True)
        return finding._replace(fixes=(*finding.fixes, then))
    if refused:
        return _and_still_refused(asked, finding.said, refused)
    return finding._replace(fixes=tuple(instead) or finding.fixes)


def _without_room_anywhere(asked: Question, first: Refusal | None, refused: Opening | None) -> Finding:
    """No node could host the pod, full or empty, with or without the rules."""
    if refused and (first is None or rank(_refusal(refused)) < rank(first)):
        return _and_still_refused(asked, _rule(asked, refused.rules[0]), refused)
    if first and not first.can_host and (rule := _kept_off_hosts(asked)):
        return Finding(_rule(asked, rule), Rank.NODES)
    if first:
        fixes = tuple(_other_resources(asked, first))
        fixes = fixes or ((Fix(Word.ADVICE(advice=first.advice)),) if first.advice else ())
        return Finding(_refused(asked, first), Rank.NODES, None, fixes, first)
    rules = asked.candidates.passed_over
    most = max(rules, key=lambda rule: (rule.rule not in LIFTED, len(rules[rule])))
    return Finding(_rule(asked, most), Rank.NODES)


def _kept_off_hosts(asked: Question) -> Rejection | None:
    """The rule that keeps the pod off most nodes that could host it, and cannot be lifted; None for none."""
    hosts = Counter[Rejection]()
    for rule, nodes in asked.candidates.passed_over.items():
        if rule.rule not in LIFTED:
            evaluation = evaluate(
                asked.state, asked.pod, asked.request, NodeNames.of([n.name for n in nodes])
            )
            hosts[rule] = int(hosts_when_empty(asked.state, asked.state.fleet, evaluation).sum())
    return next((rule for rule, count in hosts.most_common(1) if count), None)


def _refused(asked: Question, first: Refusal) -> Said:
    return Word.REFUSED(reason=first.reason, nodes=first.nodes, every=many(asked.every, "node"))


def _rule(asked: Question, rule: Rejection) -> Said:
    nodes, every = len(asked.candidates.passed_over[rule]), many(asked.every, "node")
    return Word.RULED_OUT(rule=rule.said, nodes=nodes, every=every)


def _and_still_refused(asked: Question, why: Said, refused: Opening) -> Finding:
    """This reason, and that none of the nodes that it excludes could host the pod."""
    refusal = _refusal(refused)
    said = Word.AND_STILL(why=why, reason=refusal.reason, nodes=many(refusal.nodes, "node"))
    return Finding(said, Rank.NODES, None, tuple(_smaller(asked, refusal)), refusal)


def and_then(found: Finding, then: Finding) -> Finding:
    """The finding, with the outcome for the pod after its first fix."""
    fix = found.fixes[0]
    if then.said.word is Word.FITS:
        return found._replace(fixes=(fix._replace(then=Word.THEN_IT(why=then.said)),))
    if then.said.word is Word.UNKNOWN:
        return found
    why = Word.ALSO_LACKS(why=then.said, lacks=then.lacks) if then.lacks else then.said
    after = (next_fix._replace(later=True) for next_fix in then.fixes)
    return found._replace(fixes=(fix._replace(then=Word.THEN(why=why)), *after))


def _smaller(asked: Question, refusal: Refusal) -> Iterator[Fix]:
    """The largest request that the nearest node can meet, and further obstacles there."""
    needs = [_without_pinned(asked.state, need, refusal.nearest) for need in too_small(refusal)]
    if less := [*filter(None, map(at_most, needs))]:
        then = _then(asked, reduced(asked.request, needs), refusal.nearest)
        amounts = " and ".join(map(str, less))
        left = (at_most(replace(need, total=need.free)) for need in needs if 0 < need.free < need.total)
        free = [*filter(None, left)]
        now = Word.FREE_NOW(amounts=" and ".join(map(str, free))) if free else ""
        yield Fix(Word.REQUEST_LESS(amounts=amounts, node=refusal.nearest, now=now), then=then)
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


def _opening(asked: Question, helping: Sequence[Opening]) -> Iterator[Fix]:
    """The changes of rules that are enough; for a gang else the first one together with more nodes."""
    fixes = kept(asked, (opening.fix for opening in helping[:_WAYS]))
    first = next(fixes, None)
    yield from chain([first], fixes) if first else ()
    for opening in helping[:1] if not first else ():
        changed = replace(asked, pod=opening.fix.pod or asked.pod)
        for more in added_nodes(changed, opening.node.name):
            yield Fix(Word.BOTH(first=opening.fix.said, second=more.said))


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
            yield fix._replace(then=then, change=change)
            return
        evaluation = evaluate(state, fix.pod, state.request_of(fix.pod), names)
        takes = hosts_when_empty(state, state.fleet, evaluation) & eviction_may_help(evaluation.codes)
        if count := int(np.count_nonzero(takes)):
            full = Word.ACCEPTS_FULL(nodes=many(count, "node"), what=Word.IT(), are=_are(count), given="")
            yield fix._replace(then=full)
            return


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _ways_when_full(asked: Question, first: Refusal, helping: Sequence[Opening]) -> Iterator[Fix]:
    """Wait for an eviction; open a node; wait for a pod that moves or ends, or evict it; add nodes; or make
    the gang smaller."""
    if asked.pod.node_name:  # of a manifest: kubelet rejects the pod at once
        yield Fix(Word.LEAVE_OUT(what="spec.nodeName"))
        return
    nothing = True
    for fix in _room(asked, first, helping):
        nothing = False
        yield fix
    if nothing and asked.is_gang and (blocked := unplaceable_member(asked.state, asked.pod)):
        yield Fix(Word.OTHER_MEMBER(pod=shorten(blocked.key, KEY)))
    elif nothing and asked.is_gang:
        too_large = asked.now is not None and not gang_fits_when_empty(asked.state, asked.pod, asked.request)
        advice = Word.ADVICE(advice=ADVICE[Reason.GANG_DOES_NOT_FIT])
        yield Fix(Word.SMALLER_GANG() if too_large else advice)


def _room(asked: Question, first: Refusal, helping: Sequence[Opening]) -> Iterator[Fix]:
    found = asked.evictions or Evictions()
    best = None if asked.is_gang else next(iter(found.best), None)
    acts = best is not None and (best.acts == "kube-scheduler" or found.evictor == "on")
    if best and not best.pods:
        count, pods = len(best.leaving), listed(best.leaving, _NAMED)
        yield Fix(Word.WAIT_ENDING(pods=pods, node=best.node, are=_are(count), s="s" * (count == 1)))
    elif best and acts:
        yield Fix(Word.WAIT_EVICTION(actor=_ACTORS[best.acts], pods=_pods(best)))
    yield from kept(asked, (opening.fix for opening in helping if _opens_when_full(asked, opening)))
    moves = next(room_by_others(asked, asked.now), None) if asked.now is not None else None
    if moves:
        yield moves
    elif not (best and best.leaving):
        yield from islice(kept(asked, ends(asked)), 1)
    yield from islice(kept(asked, pods_without_gpus(asked, first)), 1)
    yield from islice(kept(asked, (opening.fix for opening in helping if _has_idle_room(asked, opening))), 1)
    if best and best.pods and not acts:
        yield Fix(Word.EVICT(pods=_pods(best), by=Word.BY_EVICTOR() if best.other_nodes else ""))
    if first.kind != Word.NO_DEVICES.name:
        yield from kept(asked, added_nodes(asked, first.nearest))


def _opens_when_full(asked: Question, opening: Opening) -> bool:
    """Whether the change is better than waiting: a pod keeps its rules, unless its gang cannot start else."""
    is_cordon = [rule.rule for rule in opening.rules] == [Rule.CORDONED]
    waits = opening.starts and opening.later > 0 and not asked.is_gang
    return waits or (bool(opening.fits) and (asked.is_gang or is_cordon))


def _has_idle_room(asked: Question, opening: Opening) -> bool:
    """Whether the pod would fit now with other rules, on nodes that are not reserved for a role."""
    taints = untolerated(asked.pod, opening.node.taints)
    reserved = any(taint.key.startswith(_ROLES) for taint in taints)
    opens = bool(opening.fits) and opening.fix.change is not None
    return opens and not reserved and not _opens_when_full(asked, opening)


def _pods(option: EvictionOption) -> str:
    text = Word.ON_NODE(pods=listed(option.victims, _NAMED), node=option.node) if option.victims else ""
    elsewhere = listed(option.other_nodes, _NAMED)
    return " and ".join(map(str, filter(None, (text, elsewhere))))
