"""Why a pod fits nowhere, in one sentence, and the ways out that are known, the cheapest first.

``explain``, ``top`` and the page show this one answer. First comes what keeps the pod away from every node
whatever runs there: a request that is refused or larger than any node, then a word that nobody reads or a
misspelt name, then a taint, a label or a model; last that all nodes it may use are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.cluster.state import State
from extender.explain.advice import ADVICE
from extender.explain.answers import EvictionOption, Evictions, Need, Refusal, Verdict
from extender.explain.candidates import Candidates, Rejection, untolerated
from extender.explain.needs import NO_DEVICES
from extender.explain.room import gang_fits_when_empty, node_to_uncordon, room_by_others, whose_end
from extender.explain.words import Hint, Kind
from extender.k8s.affinity import Taint
from extender.k8s.node_filter import CORDONED, NOT_TOLERATED, OTHER_SELECTOR
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import many
from extender.verbs.evaluate import evaluate
from packing.fleet.feasibility import fits_when_empty
from packing.model.reasons import Reason
from packing.model.request import Request

TOO_LARGE = "No node is large enough for it, even without other pods: waiting does not help."
_GANG = Reason.GANG_DOES_NOT_FIT.text
_SIZE = frozenset(
    {
        *(Reason.TOO_FEW_GPUS.text, Reason.ISLAND_TOO_SMALL.text, Reason.NO_FREE_GPUS.text),
        *(Reason.FRAGMENTED.text, Reason.NO_FREE_CPU.text, Reason.NO_FREE_MEMORY.text),
        *(Reason.TOO_MANY_REPLICAS.text, Reason.PARTS_OF_ONE_GPU.text, Reason.BELOW_MINIMUM.text),
    }
)
_OWN_TAINTS = "node.kubernetes.io/"
"""Kubernetes sets these on nodes that are not ready or under pressure: to tolerate them is no way out."""
_NAMED = 3
_ACTORS = {"kube-scheduler": "kube-scheduler", "evictor": "the evictor"}


@dataclass(frozen=True, slots=True)
class Behind:
    """Nodes that one rule of kube-scheduler excludes and that would take the pod otherwise: now (``fits``),
    or once their pods have gone (``full``)."""

    rule: Rejection
    fits: tuple[str, ...]
    full: int


def behind_rules(state: State, pod: Pod, request: Request, candidates: Candidates) -> list[Behind]:
    """Those with most nodes that fit first; nothing for a rule that is not the only one in the way."""
    found = []
    for rule in candidates.passed_over:
        names = candidates.but_for(rule)
        if names:
            evaluation = evaluate(state, pod, request, NodeNames.of(names))
            known = evaluation.rows[evaluation.rows >= 0]
            hosts = int(fits_when_empty(state.fleet, request)[known].sum()) if request.wants_gpu else 0
            fits = tuple(names[place] for place in np.flatnonzero(evaluation.certain))
            if fits or hosts:
                found.append(Behind(rule, fits, max(0, hosts - len(fits))))
    return sorted(found, key=lambda one: (-len(one.fits), -one.full))


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
    behind = behind_rules(asked.state, asked.pod, asked.request, asked.candidates)
    first = min(asked.refusals, key=_rank, default=None)
    is_full = first is not None and _rank(first)[0] <= 1
    is_small = first is not None and not is_full and first.reason in _SIZE
    by_kind = {hint.kind: hint for hint in reversed(hints)}
    said = [by_kind.get(Kind.GATE), by_kind.get(Kind.NEVER), by_kind.get(Kind.WORD)]
    if not any(said[:2]) and first and is_small and not behind:
        return Verdict(TOO_LARGE, _near(first), tuple(_smaller(first)))
    if hint := next(filter(None, said), None):
        return _of_hint(hint)
    past = tuple(_past(asked.pod, asked.candidates, one) for one in behind)
    if first and (is_full or is_small):
        ways = (*_smaller(first), *past) if is_small else tuple(_ways_when_full(asked, first, behind))
        return Verdict(f"{first.reason} ({_of(first.nodes, asked.every)})", _near(first), ways)
    if hint := by_kind.get(Kind.RULE):
        found = _of_hint(hint)
        return replace(found, ways=(*found.ways, *past))
    if behind:
        nodes = len(asked.candidates.passed_over[behind[0].rule])
        return Verdict(f"{behind[0].rule.text} ({_of(nodes, asked.every)})", ways=past)
    return _without_room_anywhere(asked, first)


def _without_room_anywhere(asked: Question, first: Refusal | None) -> Verdict:
    """No node could take the pod, full or empty, behind whichever single rule."""
    if first:
        ways = (first.advice,) if first.advice else ()
        return Verdict(f"{first.reason} ({_of(first.nodes, asked.every)})", _near(first), ways)
    rules = asked.candidates.passed_over
    most = max(rules, key=lambda one: len(rules[one]), default=None)
    return Verdict(f"{most.text} ({_of(len(rules[most]), asked.every)})" if most else "")


def _rank(one: Refusal) -> tuple[int, int]:
    """The lower, the more it says: that the gang does not fit (the pod does), that nodes are full, that they
    are too small, what else they have against it, and last that they have no such resource."""
    if one.reason == _GANG:
        rank = 0
    elif one.eviction_helps and one.can_host:
        rank = 1
    elif one.reason in _SIZE:
        rank = 2
    elif one.reason in (Reason.REPARTITIONING.text, Reason.UNKNOWN_NODE.text):
        rank = 4
    else:
        rank = 5 if one.reason == Reason.NO_SUCH_RESOURCE.text else 3
    return rank, -one.nodes


def _of_hint(hint: Hint) -> Verdict:
    write = "" if hint.paste.startswith("kubectl ") else "write "
    return Verdict(hint.text, ways=(write + hint.paste,) if hint.paste else ())


def _of(nodes: int, every: int) -> str:
    return f"{nodes} of {many(every, 'node')}"


def _near(one: Refusal) -> str:
    lacks = "; ".join(need.text for need in one.lacks)
    return f"{one.nearest}: {lacks}" if lacks else ""


def _smaller(one: Refusal) -> Iterator[str]:
    """What the pod could ask for at most on the node that lacks least."""
    less = [_at_most(need) for need in one.lacks if need.total < need.asked]
    if less:
        yield f"ask for at most {' and '.join(less)} per pod, as {one.nearest} has"
    elif one.advice:
        yield one.advice


def _at_most(need: Need) -> str:
    match need.what:
        case "cpu (milli)":
            return f"{need.total / 1000:g} CPUs"
        case "memory (MiB)":
            return f"{need.total >> 10} GiB of memory"
        case what if what.startswith("GPUs with"):
            return f"{need.total} GPUs"
    return f"{need.total} {need.what}"


def _past(pod: Pod, candidates: Candidates, one: Behind) -> str:
    """How the nodes behind a rule can be reached, and how many would take the pod."""
    reason, detail = one.rule
    count = len(one.fits) or one.full
    nodes = many(count, "node")
    then = f"{nodes} would take it" if one.fits else f"{nodes} could take it, and {_are(count)} full now"
    node = next(iter(one.fits), candidates.passed_over[one.rule][0].name)
    if reason == CORDONED:
        return f"kubectl uncordon {node}: {then}"
    if reason == NOT_TOLERATED:
        taints = list(untolerated(pod, candidates.passed_over[one.rule][0].taints))
        if any(taint.key.startswith(_OWN_TAINTS) for taint in taints):
            return f"see why it has this taint: kubectl describe node {node}"
        lines = ", ".join(map(_toleration, taints[:_NAMED]))
        if len(taints) > _NAMED or len(lines) > _NAMED * KEY:
            return f"tolerate its {len(taints)} taints, as kubectl describe node {node} has them: {then}"
        return f"write tolerations: [{lines}]: {then}"
    what = "spec.nodeSelector" if reason == OTHER_SELECTOR else "spec.affinity.nodeAffinity"
    named = detail and (reason != OTHER_SELECTOR or len(pod.spec.node_selector) == 1)
    return f"change {what}{f' ({shorten(detail, KEY)})' if named else ''}: {then}"


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
    cordoned = (one for one in behind if one.rule.reason == CORDONED and one.fits)
    yield from (_past(asked.pod, asked.candidates, one) for one in cordoned)
    moves, ends = "", None
    if asked.now is not None:
        moves = room_by_others(asked.state, asked.pod, asked.settings, asked.now)
        ends = None if moves else whose_end(asked.state, asked.pod, asked.request, asked.candidates.names)
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
