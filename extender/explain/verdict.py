"""Why a pod fits nowhere, in one sentence, and known remedies, the cheapest first.

``explain``, ``top`` and the page show this one answer. Reasons that hold on every node, whatever runs there,
come first: a request that is rejected or larger than any node, then an annotation that no component reads or
a misspelled name, then a taint, a label or a model; last that all allowed nodes are full.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.dialects.pod_request import DEVICE_MEMORY
from extender.dialects.shared_gpus import is_gpu_resource
from extender.explain.advice import ADVICE, FULL, OTHER, RANKS, TOO_SMALL
from extender.explain.answers import EvictionOption, Evictions, Need, Refusal, Verdict
from extender.explain.candidates import Candidates, Rejection, uncordoned
from extender.explain.needs import EACH_GPU, GPU_MEMORY, NO_DEVICES, reduced, replicas_given
from extender.explain.room import (
    gang_fits_when_empty,
    layout_change_for,
    others_without_gpus,
    room_by_others,
    whose_end,
)
from extender.explain.rule_changes import RuleChange, StillRefused, changes_for, try_rule_changes
from extender.explain.words import Hint, Kind, asking_instead
from extender.k8s.node_filter import CORDONED
from extender.k8s.objects import Pod
from extender.plan.change import copy_of
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import listed, many
from extender.verbs.evaluate import evaluate, hosts_when_empty, reason_on
from extender.verbs.gang_fit import Supposed, gang_would_fit
from packing.fleet.feasibility import eviction_may_help, fits_when_empty, reason_on_row
from packing.model.reasons import Reason
from packing.model.request import Request

TOO_LARGE = "No node is large enough for it, even without other pods: waiting does not help."
_GANG, _WHOLE_GANG = Reason.GANG_DOES_NOT_FIT.text, "the whole gang"
_ON_SEVERAL_NODES = ", or set evictor: on: kube-scheduler evicts no gang that runs on several nodes"
_NAMED = 3
_WAYS = 4
"""Maximum number of rule changes shown, the most helpful first."""
_ACTORS = {"kube-scheduler": "kube-scheduler", "evictor": "the evictor"}


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


def with_layout_change(asked: Question, verdict: Verdict) -> Verdict:
    """The verdict; if the pod would fit a node with another MIG layout, that is the first way."""
    if asked.now is None or asked.pod.spec.claims:
        return verdict
    way = layout_change_for(asked.state, asked.pod, asked.settings, asked.now)
    return replace(verdict, ways=(way, *verdict.ways)) if way else verdict


def decide(asked: Question, hints: Sequence[Hint]) -> Verdict:
    """The verdict on a pod that fits nowhere."""
    if not asked.every:
        return Verdict("there is no node")
    changes, others = try_rule_changes(asked.state, asked.pod, asked.request, asked.candidates)
    refused = min(others, key=lambda change: _rank(change.refusal), default=None)
    too_small = refused.refusal if refused and _is_small(refused.refusal) else None
    first = min(asked.refusals, key=_rank, default=None)
    rank = _rank(first)[0] if first else OTHER
    by_kind = {hint.kind: hint for hint in reversed(hints)}
    said = [by_kind.get(Kind.NEVER), by_kind.get(Kind.WORD)]
    largest = first if rank == TOO_SMALL else too_small if rank > TOO_SMALL else None
    if not said[0] and largest and not changes:
        return Verdict(TOO_LARGE, _near(largest), tuple(_smaller(asked, largest)))
    if hint := next(filter(None, said), None):
        return of_hint(hint)
    instead = (*(_change_text(asked, change) for change in changes[:_WAYS]), *_other_resources(asked, first))
    if starting := next((len(change.fits) for change in changes if change.fits and change.starts), 0):
        why = f"{many(starting, 'node')} that would accept it {_are(starting)} starting"
        return Verdict(why, ways=instead)
    if first and rank <= TOO_SMALL:
        smaller = (*_smaller(asked, first), *instead) if rank == TOO_SMALL else None
        ways = tuple(_ways_when_full(asked, first, changes)) if smaller is None else smaller
        return Verdict(f"{first.reason} ({_of(first.nodes, asked.every)})", _near(first), ways)
    if hint := by_kind.get(Kind.RULE):
        return _by_rule(asked, hint, refused if not changes else None, instead)
    if changes:
        return Verdict(_rule_text(asked, changes[0].rules[0]), ways=instead)
    return _without_room_anywhere(asked, first, refused)


def _by_rule(asked: Question, hint: Hint, refused: StillRefused | None, instead: tuple[str, ...]) -> Verdict:
    """A rule that no node meets. ``refused``: why no node would accept the pod without it either."""
    found = of_hint(hint)
    if hint.mended:
        return found
    if refused and hint.paste.startswith("kubectl "):
        way = changes_for(asked.state, asked.pod, refused.rules, refused.node)
        return replace(found, ways=(*found.ways, f"then {way.text}"))
    return (
        _and_still_refused(asked, found.why, refused)
        if refused
        else replace(found, ways=instead or found.ways)
    )


def _without_room_anywhere(asked: Question, first: Refusal | None, refused: StillRefused | None) -> Verdict:
    """No node could host the pod, full or empty, with or without the rules."""
    if refused and (first is None or _rank(refused.refusal) < _rank(first)):
        return _and_still_refused(asked, _rule_text(asked, refused.rules[0]), refused)
    if first:
        ways = tuple(_other_resources(asked, first)) or ((first.advice,) if first.advice else ())
        return Verdict(f"{first.reason} ({_of(first.nodes, asked.every)})", _near(first), ways)
    rules = asked.candidates.passed_over
    most = max(rules, key=lambda rule: len(rules[rule]), default=None)
    return Verdict(_rule_text(asked, most) if most else "")


def _rule_text(asked: Question, rule: Rejection) -> str:
    return f"{rule.text} ({_of(len(asked.candidates.passed_over[rule]), asked.every)})"


def _and_still_refused(asked: Question, why: str, refused: StillRefused) -> Verdict:
    """This reason, and that none of the nodes that it excludes could host the pod."""
    refusal = refused.refusal
    why = f"{why.removesuffix('.')}; and without that rule, {refusal.reason} ({many(refusal.nodes, 'node')})"
    return Verdict(why, _near(refusal), tuple(_smaller(asked, refusal)))


def _rank(refusal: Refusal) -> tuple[int, int, int]:
    """Sort key, the most informative refusal first."""
    otherwise = TOO_SMALL if refusal.eviction_helps and _is_small(refusal) else OTHER
    is_full = refusal.eviction_helps and refusal.can_host
    rank = FULL if is_full else RANKS.get(refusal.reason, otherwise)
    return rank, len(_too_small(refusal)), -refusal.nodes


def _is_small(refusal: Refusal) -> bool:
    """Whether the nearest node has too little even without pods."""
    return bool(_too_small(refusal))


def _too_small(refusal: Refusal) -> list[Need]:
    """Needs that the node cannot meet even without pods, except for devices that it does not have at all."""
    return [
        need for need in refusal.lacks if need.total < need.asked and (need.total or "/" not in need.what)
    ]


def of_hint(hint: Hint) -> Verdict:
    """The verdict from a decisive hint."""
    write = "" if hint.paste.startswith(("kubectl ", "leave out ")) else "write "
    return Verdict(hint.text, ways=(write + hint.paste,) if hint.paste else ())


def and_then(found: Verdict, then: Verdict) -> Verdict:
    """The verdict, with the outcome for the pod after its first way."""
    way = found.ways[0]
    if not then.decides:
        return replace(found, ways=(f"{way}; then it {then.why}",)) if then.why.startswith("fits") else found
    why = then.why.partition(". ")[0].removesuffix(".") + (f" ({then.lacks})" if then.lacks else "")
    ways = (next_way if next_way.startswith("then ") else f"then {next_way}" for next_way in then.ways)
    return replace(found, ways=(f"{way}; then: {why}", *ways))


def _of(nodes: int, every: int) -> str:
    return f"{nodes} of {many(every, 'node')}"


def _near(refusal: Refusal) -> str:
    lacks = "; ".join(need.text for need in refusal.lacks)
    return f"{refusal.nearest}: {lacks}" if lacks else ""


def _smaller(asked: Question, refusal: Refusal) -> Iterator[str]:
    """The largest request that the nearest node can meet, and further obstacles there."""
    needs = _too_small(refusal)
    if less := [_at_most(need) for need in needs if need.total]:
        then = _then(asked, reduced(asked.request, needs), refusal.nearest)
        yield f"request at most {' and '.join(less)} per pod, as {refusal.nearest} has{then}"
    elif refusal.advice and not needs:
        yield refusal.advice
    for need in needs:
        if not need.total:
            yield f"leave out its request for {need.what}: {refusal.nearest} reports none"


def _then(asked: Question, request: Request | None, node: str) -> str:
    """The obstacle for this request on the node other than pods, "" for none."""
    state = asked.state
    if request is None or node not in state.fleet.rows:
        return ""
    reason = reason_on_row(state.fleet, request, state.fleet.rows[node])
    if reason is Reason.FITS and not state.binds:  # otherwise the pod's own request would count
        reason = reason_on(state, asked.pod, request, node)
    return "" if reason is Reason.FITS or reason.eviction_helps else f"; then: {reason.text}"


def _at_most(need: Need) -> str:
    match need.what:
        case "cpu (milli)":
            return f"{need.total / 1000:g} CPUs"
        case "memory (MiB)":
            return f"{need.total >> 10} GiB of memory"
        case what if what == GPU_MEMORY:
            return f"{need.total >> 10} GiB of a GPU's memory"
        case what if what == EACH_GPU:
            return f"{need.total}Mi in {DEVICE_MEMORY}"
        case what if what.startswith("GPUs with"):
            return many(need.total, "GPU")
        case what if "/" not in what:
            return f"{need.total >> 30} GiB of {what}"
    return f"{need.total} {need.what}"


def _change_text(asked: Question, change: RuleChange) -> str:
    """How to get past rules, how many nodes would then accept the pod, and what they would allocate."""
    if not change.counted:
        return change.way
    what, count = _who_fits(asked, change), len(change.fits) or change.full
    then = f"would accept {what}" if change.fits else f"could accept {what}, and {_are(count)} full now"
    then = f"may accept {what}: this is unknown, because {change.doubt}" if change.doubt else then
    return f"{change.way}: {many(count, 'node')} {then}{_parts_given(asked, change)}"


def _parts_given(asked: Question, change: RuleChange) -> str:
    """Allocations of nodes that are less than the requested whole GPUs."""
    fleet = asked.state.fleet
    given = Counter(replicas_given(fleet, fleet.rows[name], asked.request) for name in change.fits)
    most, count = next(iter(Counter({text: n for text, n in given.items() if text}).most_common(1)), ("", 0))
    where = "there it gets" if count == len(change.fits) else f"on {count} of them it gets"
    return f"; {where} {most}" if most else ""


def _who_fits(asked: Question, change: RuleChange) -> str:
    """The pod, or for a pod of a gang, whether the whole gang would fit with these nodes."""
    state, pod = asked.state, asked.pod
    gang = state.gangs.gang_of(pod)
    if not change.fits or not state.gang_check or gang is None or gang.to_place < 2:
        return "it"
    labels = dict(pod.spec.node_selector)
    opened = {}
    for name in change.fits:
        node = uncordoned(state.nodes[name])
        opened[name] = replace(node, taints=(), labels={**node.labels, **labels})
    nodes = ChainMap(opened, dict(state.nodes))
    whole = gang_would_fit(state, pod, asked.request, Supposed(nodes))
    return _WHOLE_GANG if whole else "single members, and not the whole gang"


def _other_resources(asked: Question, first: Refusal | None) -> Iterator[str]:
    """Alternative resources, on nodes that its rules allow but that lack its resource."""
    if first is None or first.reason != Reason.NO_SUCH_RESOURCE.text:
        return
    state, names = asked.state, NodeNames.of(asked.candidates.names)
    nodes = [state.nodes[name] for name in names]
    offered = Counter(
        name
        for node in nodes
        for name, count in node.allocatable.items()
        if count != "0" and is_gpu_resource(name)
    )
    for line, pod in asking_instead(asked.pod, [name for name, _ in offered.most_common(_NAMED)]):
        evaluation = evaluate(state, pod, state.request_of(pod), names)
        takes = hosts_when_empty(state, state.fleet, evaluation) & eviction_may_help(evaluation.codes)
        if count := int(np.count_nonzero(takes | (evaluation.codes == Reason.FITS))):
            nodes_there = many(count, "node")
            yield f"write {line}: {nodes_there} allowed by its rules would fit"
            return


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _ways_when_full(asked: Question, first: Refusal, changes: Sequence[RuleChange]) -> Iterator[str]:
    """Wait for an eviction; open a node; wait for a pod that moves or ends, or evict it; add a node."""
    if first.reason == _GANG or asked.now is not None:
        fits_empty = gang_fits_when_empty(asked.state, asked.pod, asked.request)
        if first.reason == _GANG or not fits_empty:
            yield from _ways_for_gang(asked, changes, fits_empty=fits_empty)
            return
    found = asked.evictions or Evictions()
    best = next(iter(found.best), None)
    acts = best is not None and (best.acts == "kube-scheduler" or found.evictor == "on")
    if best and not best.pods:
        frees = "is terminating and frees" if len(best.leaving) == 1 else "are terminating and free"
        yield f"wait: {listed(best.leaving, _NAMED)} on {best.node} {frees} enough room"
    elif best and acts:
        yield f"wait: {_ACTORS[best.acts]} evicts {_pods(best)} for it"
    for change in changes:
        if change.fits and [rule.reason for rule in change.rules] == [CORDONED]:
            yield _change_text(asked, change)
    yield from _others_in_the_way(asked, first, best)
    if best and best.pods and not acts:
        yield f"evict {_pods(best)}{_ON_SEVERAL_NODES if best.other_nodes else ''}"
    if first.reason != NO_DEVICES and _would_take_it_empty(asked, first.nearest):
        yield f"add a node like {first.nearest}: stowage plan change --add 1x{first.nearest}"


def _others_in_the_way(asked: Question, first: Refusal, best: EvictionOption | None) -> Iterator[str]:
    """Pods whose move or end would free enough room."""
    moves, ends = "", None
    if asked.now is not None:
        names = [name for name in asked.candidates.names if name not in asked.candidates.used_up]
        moves = room_by_others(asked.state, asked.pod, asked.settings, asked.now)
        ends = None if moves else whose_end(asked.state, asked.pod, asked.request, names)
    if moves:
        yield moves
    elif ends:
        home = shorten(ends.node_name, KEY)
        yield f"wait until {shorten(ends.key, KEY)} on {home} ends: that frees enough room"
    elif (
        not (best and best.leaving) and first.lacks and all(need.asked <= need.total for need in first.lacks)
    ):
        yield f"wait until pods on {first.nearest} end"
    if others := others_without_gpus(asked.state, asked.pod, asked.request, first):
        yield others


def _ways_for_gang(asked: Question, changes: Sequence[RuleChange], *, fits_empty: bool) -> Iterator[str]:
    state, pod = asked.state, asked.pod
    tried = changes if asked.now is not None else ()
    if enough := next((change for change in tried if _who_fits(asked, change) == _WHOLE_GANG), None):
        yield _change_text(asked, enough)
    elif asked.now is not None and (moves := room_by_others(state, pod, asked.settings, asked.now)):
        yield moves
    if fits_empty:
        yield ADVICE[Reason.GANG_DOES_NOT_FIT]
    else:
        yield "make the gang smaller or add nodes: not all members that must run together fit on empty nodes"


def _would_take_it_empty(asked: Question, name: str) -> bool:
    """Whether another node like this one would accept the pod."""
    state, node = asked.state, asked.state.nodes.get(name)
    if node is None or any(lack.asked > lack.total for lack in lacking_on(state, node, asked_by(asked.pod))):
        return False
    fits = fits_when_empty(state.fleet, asked.request)[state.fleet.rows[name]]
    return bool(fits) and not asked.candidates.filter_of(asked.pod).rejection(copy_of(node, f"{name}-new"))


def _pods(option: EvictionOption) -> str:
    text = f"{listed(option.victims, _NAMED)} on {option.node}" if option.victims else ""
    elsewhere = listed(option.other_nodes, _NAMED)
    return " and ".join(filter(None, (text, elsewhere)))
