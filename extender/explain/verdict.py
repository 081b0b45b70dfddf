"""Why a pod fits nowhere, in one sentence, and the ways out that are known, the cheapest first.

``explain``, ``top`` and the page show this one answer. First comes what keeps the pod away from every node
whatever runs there: a request that is refused or larger than any node, then a word that nobody reads or a
misspelt name, then a taint, a label or a model; last that all nodes it may use are full.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from extender.cluster.other_resources import Lack
from extender.cluster.state import State
from extender.dialects.shared_gpus import is_gpu_resource
from extender.explain.advice import ADVICE
from extender.explain.answers import EvictionOption, Evictions, Need, Refusal, Verdict
from extender.explain.candidates import Candidates, Rejection, uncordoned, untolerated
from extender.explain.needs import NO_DEVICES, missing_needs
from extender.explain.room import gang_fits_when_empty, node_to_uncordon, room_by_others, whose_end
from extender.explain.words import Hint, Kind, written_as
from extender.k8s.affinity import Taint
from extender.k8s.manifest import Pairs
from extender.k8s.node_filter import CORDON, CORDONED, NOT_TOLERATED, OTHER_SELECTOR
from extender.k8s.objects import Node, Pod
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.limits import KEY, LISTED_NAMES, shorten
from extender.untrusted.visible import many
from extender.verbs.evaluate import Evaluation, evaluate
from extender.verbs.eviction.promising import shortfall
from extender.verbs.gang_fit import Supposed, gang_would_fit
from packing.fleet.feasibility import fits_when_empty
from packing.model.reasons import Reason
from packing.model.request import Request

TOO_LARGE = "No node is large enough for it, even without other pods: waiting does not help."
_GANG = Reason.GANG_DOES_NOT_FIT.text
SIZE = frozenset(
    {
        *(Reason.TOO_FEW_GPUS.text, Reason.ISLAND_TOO_SMALL.text, Reason.NO_FREE_GPUS.text),
        *(Reason.FRAGMENTED.text, Reason.NO_FREE_CPU.text, Reason.NO_FREE_MEMORY.text),
        *(Reason.TOO_MANY_REPLICAS.text, Reason.PARTS_OF_ONE_GPU.text, Reason.BELOW_MINIMUM.text),
    }
)
"""Reasons that are about how much the pod asks for."""
_OWN_TAINTS = "node.kubernetes.io/"
"""Kubernetes sets these on nodes that are not ready or under pressure: to tolerate them is no way out."""
_NAMED = 3
_GROUPS = 8
"""Groups of nodes behind the same rules that are tried, the largest first."""
_SMALL, _OTHER = 2, 5
"""Ranks of reasons: nodes are too small, and nothing that says more."""
_ACTORS = {"kube-scheduler": "kube-scheduler", "evictor": "the evictor"}


@dataclass(frozen=True, slots=True)
class Behind:
    """Nodes that the same rules of the pod exclude and that would take it otherwise: now (``fits``), or once
    their pods have gone (``full``). ``node``: the one whose labels are nearest to what the pod selects.
    ``doubt``: why it is not known whether they would."""

    rules: tuple[Rejection, ...]
    node: Node
    fits: tuple[str, ...]
    full: int
    doubt: str = ""

    def order(self) -> tuple[bool, int, int, int]:
        """What helps now first, then the fewest rules, then the most nodes."""
        return not self.fits, len(self.rules), -len(self.fits), -self.full


class Beyond(NamedTuple):
    """Why nodes that these rules exclude, such as ``node``, could not take the pod without them either."""

    rules: tuple[Rejection, ...]
    node: Node
    refusal: Refusal


def behind_rules(
    state: State, pod: Pod, request: Request, candidates: Candidates
) -> tuple[list[Behind], Beyond | None]:
    """Those that help most first; and what keeps the pod off the other nodes, of several reasons the one that
    says most."""
    groups: dict[tuple[Rejection, ...], list[Node]] = {}
    for node in (node for nodes in candidates.passed_over.values() for node in nodes):
        if rules := candidates.rules_against(node):
            groups.setdefault(rules, []).append(node)
    found, beyond = [], []
    for rules, nodes in sorted(groups.items(), key=lambda group: -len(group[1]))[:_GROUPS]:
        lacks = [(node.name, lack) for node in nodes if (lack := candidates.lack_on(node))]
        without = {name for name, _ in lacks}
        if len(without) == len(nodes):
            beyond.append(Beyond(rules, nodes[0], lacking(lacks)))
            continue
        nodes = [node for node in nodes if node.name not in without]
        evaluation = evaluate(state, pod, request, NodeNames.of([node.name for node in nodes]))
        fits = np.flatnonzero(evaluation.certain).tolist()
        doubtful = next((one for one in evaluation.forecasts if one.problem and not one.refused), None)
        may_fit = np.flatnonzero(evaluation.codes == Reason.FITS).tolist() if doubtful and not fits else []
        empty = fits_when_empty(state.fleet, request)[evaluation.rows] & (evaluation.rows >= 0)
        full = np.flatnonzero(empty).tolist() if request.wants_gpu and not fits else []
        if fits or full or may_fit:
            near, like = _nearest(pod, [nodes[place] for place in fits or full or may_fit])
            doubt = shorten(doubtful.problem) if doubtful and may_fit and not full else ""
            found.append(Behind(rules, near, tuple(like) if fits else (), 0 if fits else len(like), doubt))
        else:
            beyond.append(Beyond(rules, nodes[0], _refused(state, request, evaluation)))
    most = min(beyond, key=lambda one: _rank(one.refusal), default=None)
    return sorted(found, key=Behind.order), most


def lacking(lacks: Sequence[tuple[str, Lack]]) -> Refusal:
    """Nodes that have too little of what Stowage does not place by, the first of them as the nearest."""
    name, lack = lacks[0]
    need = Need(shorten(lack.name, KEY), lack.asked, lack.left, lack.total, lack.text)
    can_host = sum(one.asked <= one.total for _, one in lacks)
    return Refusal(lack.reason, len(lacks), True, name, (need,), can_host=can_host)


def _refused(state: State, request: Request, evaluation: Evaluation) -> Refusal:
    """The most frequent reason."""
    code = int(np.bincount(evaluation.codes).argmax())
    rows = evaluation.rows[(evaluation.codes == code) & (evaluation.rows >= 0)]
    if not rows.size or code == Reason.FITS:
        text = Reason.UNKNOWN_NODE.text if code else NO_DEVICES
        return Refusal(text, len(evaluation.codes), eviction_helps=False, nearest="")
    row = int(rows[np.argmin(shortfall(state.fleet, rows, request))])
    spec, needs = state.fleet.specs[row], tuple(missing_needs(state.fleet, row, request))
    return Refusal(Reason(code).text, rows.size, False, spec.name if spec else "", needs)


def _nearest(pod: Pod, nodes: Sequence[Node]) -> tuple[Node, list[str]]:
    """The node whose labels are nearest to those that the pod selects, and the nodes that have the same."""
    selected = pod.spec.node_selector
    like: dict[tuple[str | None, ...], list[Node]] = {}
    for node in nodes:
        like.setdefault(tuple(node.labels.get(key) for key, _ in selected), []).append(node)
    found = max(
        list(like)[:LISTED_NAMES], key=lambda values: (_likeness(selected, values), len(like[values]))
    )
    return like[found][0], [node.name for node in like[found]]


def _likeness(selected: Pairs, values: Sequence[str | None]) -> float:
    pairs = [
        (shorten(asked, KEY), shorten(value or "", KEY))
        for (_, asked), value in zip(selected, values, strict=True)
    ]
    return sum(SequenceMatcher(None, *pair).ratio() for pair in pairs)


@dataclass(frozen=True, slots=True)
class Question:
    """A pod that fits nowhere for all that is known, and why not. ``evictions``: as far as they were searched
    for. With a moment ``now`` (Unix seconds) it is also searched for pods whose move or end would be enough;
    ``settings``: those of the evictor, which say whether it moves others.
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
        """All nodes."""
        return len(self.candidates.names) + sum(map(len, self.candidates.passed_over.values()))


def decide(asked: Question, hints: Sequence[Hint]) -> Verdict:
    """The verdict on a pod that fits nowhere."""
    if not asked.every:
        return Verdict("there is no node")
    behind, beyond = behind_rules(asked.state, asked.pod, asked.request, asked.candidates)
    too_small = beyond.refusal if beyond and _is_small(beyond.refusal) else None
    first = min(asked.refusals, key=_rank, default=None)
    rank = _rank(first)[0] if first else _OTHER
    by_kind = {hint.kind: hint for hint in reversed(hints)}
    said = [by_kind.get(Kind.NEVER), by_kind.get(Kind.WORD)]
    largest = first if rank == _SMALL else too_small if rank > _SMALL else None
    if not said[0] and largest and not behind:
        return Verdict(TOO_LARGE, _near(largest), tuple(_smaller(largest)))
    if hint := next(filter(None, said), None):
        return of_hint(hint)
    past = (*(_past(asked, one) for one in behind), *_other_resources(asked, first))
    if first and rank <= _SMALL:
        is_small = rank == _SMALL
        ways = (*_smaller(first), *past) if is_small else tuple(_ways_when_full(asked, first, behind))
        return Verdict(f"{first.reason} ({_of(first.nodes, asked.every)})", _near(first), ways)
    if hint := by_kind.get(Kind.RULE):
        found = of_hint(hint)
        if hint.mended:
            return found
        if beyond and not behind and hint.paste.startswith("kubectl "):
            return replace(found, ways=(*found.ways, f"then {_lifted(asked.pod, beyond.rules, beyond.node)}"))
        if beyond and not behind:
            return _and_beyond(found.why, beyond)
        return replace(found, ways=past if behind else (*found.ways, *past))
    if behind:
        return Verdict(_rule_text(asked, behind[0].rules[0]), ways=past)
    return _without_room_anywhere(asked, first, beyond)


def _without_room_anywhere(asked: Question, first: Refusal | None, beyond: Beyond | None) -> Verdict:
    """No node could take the pod, full or empty, behind whichever rules."""
    if beyond and (first is None or _rank(beyond.refusal) < _rank(first)):
        return _and_beyond(_rule_text(asked, beyond.rules[0]), beyond)
    if first:
        ways = tuple(_other_resources(asked, first)) or ((first.advice,) if first.advice else ())
        return Verdict(f"{first.reason} ({_of(first.nodes, asked.every)})", _near(first), ways)
    rules = asked.candidates.passed_over
    most = max(rules, key=lambda one: len(rules[one]), default=None)
    return Verdict(_rule_text(asked, most) if most else "")


def _rule_text(asked: Question, rule: Rejection) -> str:
    return f"{rule.text} ({_of(len(asked.candidates.passed_over[rule]), asked.every)})"


def _and_beyond(why: str, beyond: Beyond) -> Verdict:
    """This reason, and that none of the nodes behind it could take the pod."""
    one = beyond.refusal
    why = f"{why.removesuffix('.')}; and without that rule, {one.reason} ({many(one.nodes, 'node')})"
    return Verdict(why, _near(one), tuple(_smaller(one)))


def _rank(one: Refusal) -> tuple[int, int, int]:
    """The lower, the more it says: that the gang does not fit (the pod does), that nodes are full, that they
    are too small, what else they have against it, and last that they have no such resource."""
    if one.reason == _GANG:
        rank = 0
    elif one.eviction_helps and one.can_host:
        rank = 1
    elif one.reason in SIZE or (one.eviction_helps and _is_small(one)):
        rank = _SMALL
    elif one.reason in (Reason.REPARTITIONING.text, Reason.UNKNOWN_NODE.text):
        rank = 4
    else:
        rank = _OTHER if one.reason == Reason.NO_SUCH_RESOURCE.text else 3
    return rank, len(_too_small(one)), -one.nodes


def _is_small(one: Refusal) -> bool:
    """Whether the node that lacks least has too little even without pods."""
    return bool(_too_small(one))


def _too_small(one: Refusal) -> list[Need]:
    """What it has too little of even without pods. A device that it does not have at all says nothing."""
    return [need for need in one.lacks if need.total < need.asked and (need.total or "/" not in need.what)]


def of_hint(hint: Hint) -> Verdict:
    """The verdict that the hint decides."""
    write = "" if hint.paste.startswith(("kubectl ", "leave out ")) else "write "
    return Verdict(hint.text, ways=(write + hint.paste,) if hint.paste else ())


def and_then(found: Verdict, then: Verdict) -> Verdict:
    """The verdict with what becomes of the pod once the first of its ways is taken."""
    way = found.ways[0]
    if not then.decides:
        return replace(found, ways=(f"{way}; then it {then.why}",)) if then.why.startswith("fits") else found
    why = then.why.partition(". ")[0].removesuffix(".") + (f" ({then.lacks})" if then.lacks else "")
    ways = (one if one.startswith("then ") else f"then {one}" for one in then.ways)
    return replace(found, ways=(f"{way}; then: {why}", *ways))


def _of(nodes: int, every: int) -> str:
    return f"{nodes} of {many(every, 'node')}"


def _near(one: Refusal) -> str:
    lacks = "; ".join(need.text for need in one.lacks)
    return f"{one.nearest}: {lacks}" if lacks else ""


def _smaller(one: Refusal) -> Iterator[str]:
    """What the pod could ask for at most on the node that lacks least."""
    less = [_at_most(need) for need in _too_small(one) if need.total]
    if less:
        yield f"ask for at most {' and '.join(less)} per pod, as {one.nearest} has"
    elif one.advice and not _is_small(one):
        yield one.advice
    for need in _too_small(one):
        if not need.total:
            yield f"leave out its request of {need.what}: {one.nearest} reports none"


def _at_most(need: Need) -> str:
    match need.what:
        case "cpu (milli)":
            return f"{need.total / 1000:g} CPUs"
        case "memory (MiB)":
            return f"{need.total >> 10} GiB of memory"
        case what if what.startswith("GPUs with"):
            return many(need.total, "GPU")
        case what if "/" not in what:
            return f"{need.total >> 30} GiB of {what}"
    return f"{need.total} {need.what}"


def _past(asked: Question, one: Behind) -> str:
    """How the nodes behind rules can be reached, and how many would take the pod."""
    pod, what = asked.pod, _who_fits(asked, one)
    taints = list(untolerated(pod, one.node.taints))
    if any(rule.reason == NOT_TOLERATED for rule in one.rules) and any(
        taint.key.startswith(_OWN_TAINTS) for taint in taints if taint.key != CORDON.key
    ):
        return f"see why it has this taint: kubectl describe node {one.node.name}"
    count = len(one.fits) or one.full
    then = f"would take {what}" if one.fits else f"could take {what}, and {_are(count)} full now"
    then = f"may take {what}: it is not known, because {one.doubt}" if one.doubt else then
    return f"{_lifted(pod, one.rules, one.node)}: {many(count, 'node')} {then}"


def _lifted(pod: Pod, rules: Sequence[Rejection], node: Node) -> str:
    """How the pod gets past these rules to the node."""
    return " and ".join(_past_rule(pod, node, rule) for rule in rules)


def _past_rule(pod: Pod, node: Node, rule: Rejection) -> str:
    if rule.reason == CORDONED:
        return f"kubectl uncordon {node.name}"
    if rule.reason == NOT_TOLERATED:
        taints = [taint for taint in untolerated(pod, node.taints) if taint.key != CORDON.key]
        lines = ", ".join(map(_toleration, taints[:_NAMED]))
        if len(taints) > _NAMED or len(lines) > _NAMED * KEY:
            return f"tolerate its {len(taints)} taints, as kubectl describe node {node.name} has them"
        return f"write tolerations: [{lines}]"
    if rule.reason == OTHER_SELECTOR:
        return _other_selector(pod.spec.node_selector, node)
    asked, where = shorten(rule.detail, KEY), "spec.affinity.nodeAffinity"
    key, _, rest = rule.detail.partition(" ")
    if not rule.detail or " or " in rest:
        return f"change {where}{f' ({asked})' if asked else ''}"
    if key in node.labels and rest.startswith("In "):
        values = f'[{{key: {key}, operator: In, values: ["{shorten(node.labels[key], KEY)}"]}}]'
        return f"write matchExpressions: {values} in place of {asked} in {where}"
    return f"leave out {asked} of {where}"


def _other_selector(selected: Pairs, node: Node) -> str:
    """The selector as it would be for the node."""
    wrong = [pair for pair in selected if node.labels.get(pair[0]) != pair[1]]
    rest = {key: node.labels[key] for key, _ in selected[:_NAMED] if key in node.labels}
    if len(wrong) < len(selected) and not any(key in rest for key, _ in wrong):
        named = ", ".join(shorten(f"{key}={value}", KEY) for key, value in wrong[:_NAMED])
        return f"leave out {named} of spec.nodeSelector"
    if rest and len(selected) <= _NAMED:
        return f"write {written_as('nodeSelector', rest)}"
    without = ", ".join(shorten(f"{key}={value}", KEY) for key, value in selected[:_NAMED])
    return f"leave out spec.nodeSelector ({without})"


def _who_fits(asked: Question, one: Behind) -> str:
    """Whether the whole gang would fit with these nodes, for a pod of a gang."""
    state, pod = asked.state, asked.pod
    gang = state.gangs.gang_of(pod)
    if not one.fits or not state.gang_check or gang is None or gang.to_place < 2:
        return "it"
    labels = dict(pod.spec.node_selector)
    opened = {}
    for name in one.fits:
        node = uncordoned(state.nodes[name])
        opened[name] = replace(node, taints=(), labels={**node.labels, **labels})
    nodes = ChainMap(opened, dict(state.nodes))
    whole = gang_would_fit(state, pod, asked.request, Supposed(nodes))
    return "the whole gang" if whole else "single members, and not the whole gang"


def _other_resources(asked: Question, first: Refusal | None) -> Iterator[str]:
    """Other GPU resources of the nodes that the pod's rules allow and that do not have what it asks for."""
    if first is None or first.reason != Reason.NO_SUCH_RESOURCE.text:
        return
    nodes = (asked.state.nodes[name] for name in asked.candidates.names)
    offered = Counter(
        name
        for node in nodes
        for name, count in node.allocatable.items()
        if count != "0" and is_gpu_resource(name)
    )
    if others := [shorten(name, KEY) for name, _ in offered.most_common(_NAMED)]:
        count = many(offered[others[0]], "node")
        line = written_as("limits", {others[0]: "1"}) + (
            f" (or {', '.join(others[1:])})" if others[1:] else ""
        )
        yield f"write {line}: {count} that its rules allow offer it"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _toleration(taint: Taint) -> str:
    """The toleration of just this taint, as YAML. Keys, values and effects need no quotes in Kubernetes, but
    a value may look like a number."""
    value = f'operator: Equal, value: "{taint.value}"' if taint.value else "operator: Exists"
    return f"{{key: {taint.key}, {value}, effect: {taint.effect}}}"


def _ways_when_full(asked: Question, first: Refusal, behind: Sequence[Behind]) -> Iterator[str]:
    """Nothing to do where somebody evicts; an open node; a pod that moves, ends or is evicted; one node
    more."""
    if first.reason == _GANG:
        yield from _ways_for_gang(asked)
        return
    found = asked.evictions or Evictions()
    best = next(iter(found.best), None)
    acts = best is not None and (best.acts == "kube-scheduler" or found.evictor == "on")
    if best and acts:
        yield f"wait: {_ACTORS[best.acts]} evicts {_pods(best)} on {best.node} for it"
    cordoned = (one for one in behind if one.fits and [rule.reason for rule in one.rules] == [CORDONED])
    yield from (_past(asked, one) for one in cordoned)
    moves, ends = "", None
    if asked.now is not None:
        names = [name for name in asked.candidates.names if name not in asked.candidates.used_up]
        moves = room_by_others(asked.state, asked.pod, asked.settings, asked.now)
        ends = None if moves else whose_end(asked.state, asked.pod, asked.request, names)
    if moves:
        yield moves
    elif ends:
        home = shorten(ends.node_name, KEY)
        yield f"wait until {shorten(ends.key, KEY)} on {home} ends: its place is enough"
    elif first.lacks and all(need.asked <= need.total for need in first.lacks):
        yield f"wait until pods on {first.nearest} end"
    if best and not acts:
        yield f"evict {_pods(best)} on {best.node}"
    if first.reason != NO_DEVICES:
        yield f"add a node like {first.nearest}: stowage plan change --add 1x{first.nearest}"


def _ways_for_gang(asked: Question) -> Iterator[str]:
    state, pod, request = asked.state, asked.pod, asked.request
    if asked.now is not None and (node := node_to_uncordon(state, pod, request)):
        yield f"uncordon a node, and the whole gang fits: kubectl uncordon {shorten(node, KEY)}"
    elif asked.now is not None and (moves := room_by_others(state, pod, asked.settings, asked.now)):
        yield moves
    if gang_fits_when_empty(state, pod, request):
        yield ADVICE[Reason.GANG_DOES_NOT_FIT]
    else:
        yield "make the gang smaller or add nodes: not all members that must run together fit on empty nodes"


def _pods(one: EvictionOption) -> str:
    victims = (*one.victims, *one.other_nodes)
    more = f" and {one.pods - _NAMED} more" if one.pods > _NAMED else ""
    return ", ".join(victims[:_NAMED]) + more
