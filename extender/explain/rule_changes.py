"""Nodes that only rules of the pod, or cordons, keep it off, and changes that get it past them.

Every change is tried: the changed pod against all nodes. It is shown only if it opens its own node, with the
number of nodes that it opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from extender.cluster.admission import ADDS_TOLERATIONS, extended_resources
from extender.cluster.other_resources import PODS, Lack
from extender.cluster.state import Rows, State
from extender.explain.answers import Need, NeedKind, Refusal
from extender.explain.candidates import Candidates, Rejection, uncordoned, unmet, untolerated
from extender.explain.corrections import writing
from extender.explain.needs import missing_needs
from extender.explain.words import Said, Word
from extender.k8s.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from extender.k8s.manifest import Pairs
from extender.k8s.node_filter import CORDON, HOSTNAME, Rule
from extender.k8s.objects import Node, Pod
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import KEY, shorten
from extender.verbs.evaluate import Codes, evaluate, hosts_when_empty
from extender.verbs.eviction.promising import shortfall
from packing.model.reasons import Reason
from packing.model.request import Request

_OWN_TAINTS = "node.kubernetes.io/"
"""Kubernetes sets these on nodes that are not ready or under pressure: tolerating them does not help."""
_STARTING = re.compile(
    "not-?ready|uninitiali[sz]ed|unregistered|startup|ignore-taint|^readiness.k8s.io/|runtime-required|queued",
    re.IGNORECASE,
)
"""In taints that agents of a node and cloud providers remove once they are up: CSI and CNI drivers,
cloud-provider, Karpenter, the cluster autoscaler, node-readiness-controller, Skyhook, queued provisioning."""
_TAS = "kueue.x-k8s.io/tas"
"""Label of the pods that Kueue assigns to nodes itself (topology-aware scheduling, kubernetes-sigs/kueue,
apis/kueue/v1beta2/topology_types.go)."""
_NAMED = 3
_GROUPS = 16
"""Maximum number of groups of nodes behind the same rules that are tried, the fewest rules first."""


class Way(NamedTuple):
    """A change that opens a node to a pod, and the changed pod; ``counted``: it is sufficient."""

    said: Said
    pod: Pod
    counted: bool = True


@dataclass(frozen=True, slots=True)
class RuleChange:
    """Nodes that a ``way`` past ``rules`` opens, and that would take the pod: now (``fits``), or once their
    pods have gone (``full``). ``node``: one of them; ``pod``: changed. ``doubt``: why it is not known whether
    they would. ``starts``: the node does not take it yet because it has just been made."""

    rules: tuple[Rejection, ...]
    node: Node
    way: Said
    pod: Pod
    fits: tuple[str, ...]
    full: int
    doubt: str = ""
    starts: bool = False
    counted: bool = True
    likeness: float = 0.0

    def order(self) -> tuple[bool, int, bool, int, float, int, int]:
        """Changes that help now first, then fewest rules, then the same selection, then fewest taints, then
        the most similar labels, then most nodes."""
        selects_others = any(rule.rule in (Rule.OTHER_SELECTOR, Rule.OTHER_AFFINITY) for rule in self.rules)
        added = len(self.pod.scheduling_constraints.tolerations)
        most = -round(self.likeness, 2), -len(self.fits), -self.full
        return not self.fits, len(self.rules), selects_others, added, *most


class StillRefused(NamedTuple):
    """Why nodes that these rules exclude, such as ``node``, could not host the pod without them either."""

    rules: tuple[Rejection, ...]
    node: Node
    refusal: Refusal


def try_rule_changes(
    state: State, pod: Pod, request: Request, candidates: Candidates
) -> tuple[list[RuleChange], list[StillRefused]]:
    """Changes, the most helpful first; and the reasons of the other nodes."""
    groups = _groups(pod, candidates)
    names = [node.name for _, nodes in groups for node in nodes]
    evaluation = evaluate(state, pod, request, NodeNames.of(names))
    lacks = {node.name: candidates.lack_on(node) for _, nodes in groups for node in nodes}
    free = np.array([lacks[name] is None for name in names], np.bool_)
    fits, may_fit = free & evaluation.certain, free & (evaluation.codes == Reason.FITS)
    full = free & hosts_when_empty(state, state.fleet, evaluation) & request.wants_gpu
    doubt = next((f.problem for f in evaluation.forecasts if f.problem and not f.refused), "")
    every = [node for _, nodes in groups for node in nodes]
    found, refused, end = [], list[StillRefused](), 0
    for rules, nodes in groups:
        start, end = end, end + len(nodes)
        kinds = fits[start:end], full[start:end], may_fit[start:end] & bool(doubt)
        of_kind = next((kind for kind in (0, 1, 2) if kinds[kind].any()), None)
        if of_kind is None:
            some = [(node.name, lack) for node in nodes if (lack := lacks[node.name])]
            codes, rows = evaluation.codes[start:end], evaluation.rows[start:end]
            why = lacking(some) if len(some) == len(nodes) else _refused(state, request, codes, rows)
            refused.append(StillRefused(rules, nodes[0], why))
            if why.kind == Reason.UNHEALTHY_GPU.name and _is_starting(state, pod, nodes[0]):
                way = changes_for(state, pod, rules, nodes[0])
                found.append(RuleChange(rules, nodes[0], way.said, way.pod, (), len(nodes), counted=False))
            continue
        node = nodes[int(np.argmax(kinds[of_kind]))]
        way = changes_for(state, pod, rules, node)
        opened = _opened(candidates, way.pod, node, every, (fits, full, may_fit)[of_kind])
        if node.name in opened or not way.counted:
            starts = _is_starting(state, pod, node)
            at_once, later = (tuple(opened), 0) if of_kind == 0 else ((), len(opened))
            unknown = shorten(doubt) if of_kind == 2 else ""
            likeness = _likeness(pod.spec.node_selector, node)
            what = at_once, later, unknown, starts, way.counted, likeness
            found.append(RuleChange(rules, node, way.said, way.pod, *what))
    return _best(found), refused


def _groups(pod: Pod, candidates: Candidates) -> list[tuple[tuple[Rejection, ...], list[Node]]]:
    """Nodes grouped by rules against the pod and by values of the labels that the pod selects."""
    groups: dict[tuple[tuple[Rejection, ...], tuple[str | None, ...]], list[Node]] = {}
    for node in (node for nodes in candidates.passed_over.values() for node in nodes):
        if rules := candidates.rules_against(node):
            values = tuple(node.labels.get(key) for key, _ in pod.spec.node_selector)
            groups.setdefault((rules, values), []).append(node)
    ordered = sorted(groups.items(), key=lambda group: (len(group[0][0]), -len(group[1])))
    return [(rules, nodes) for (rules, _), nodes in ordered[:_GROUPS]]


def _opened(
    candidates: Candidates, pod: Pod, node: Node, every: Sequence[Node], which: Iterable[bool]
) -> list[str]:
    """The nodes among ``which`` that take the pod as it is now; ``node`` is no longer cordoned."""
    accepts = candidates.filter_of(pod).rejection
    tried = (other for other, is_one in zip(every, which, strict=True) if is_one)
    return [other.name for other in tried if not accepts(uncordoned(other) if other is node else other)]


def _best(found: Iterable[RuleChange]) -> list[RuleChange]:
    """Sorted changes, without duplicates and changes of more rules than others for no more nodes."""
    best: list[RuleChange] = []
    for change in sorted(found, key=RuleChange.order):
        shorter = [other for other in best if len(other.rules) < len(change.rules) and other.fits]
        worse = any(len(other.fits) >= len(change.fits) for other in shorter)
        if not worse and all(change.way != other.way for other in best):
            best.append(change)
    return best


def lacking(lacks: Sequence[tuple[str, Lack]]) -> Refusal:
    """Nodes that have too little of what Stowage does not place by, the first of them as the nearest."""
    name, lack = lacks[0]
    kind = NeedKind.COUNT if "/" in lack.name or lack.name == PODS else NeedKind.BYTES
    need = Need(shorten(lack.name, KEY), lack.asked, lack.left, lack.total, lack.text, kind)
    can_host = sum(lack.asked <= lack.total for _, lack in lacks)
    return Refusal(lack.reason, len(lacks), True, name, (need,), can_host=can_host, kind=Word.LACKS.name)


def _refused(state: State, request: Request, codes: Codes, rows: Rows) -> Refusal:
    """The most frequent reason."""
    code = int(np.bincount(codes).argmax())
    some = rows[(codes == code) & (rows >= 0)]
    if not some.size or code == Reason.FITS:
        text, kind = Reason.UNKNOWN_NODE.text, Reason.UNKNOWN_NODE.name
        if not code:
            text, kind = str(Word.NO_DEVICES()), Word.NO_DEVICES.name
        return Refusal(text, len(codes), eviction_helps=False, nearest="", kind=kind)
    row = int(some[np.argmin(shortfall(state.fleet, some, request))])
    spec, needs = state.fleet.specs[row], tuple(missing_needs(state.fleet, row, request))
    reason, name = Reason(code), spec.name if spec else ""
    return Refusal(reason.text, some.size, False, name, needs, kind=reason.name)


def _likeness(selected: Pairs, node: Node) -> float:
    """How similar the node's labels are to the selected ones; a value is nearest to one that contains it."""
    pairs = [(shorten(value, KEY), shorten(node.labels.get(key, ""), KEY)) for key, value in selected]
    return sum(
        1 if has and asked in has else SequenceMatcher(None, asked, has).ratio() for asked, has in pairs
    )


def changes_for(state: State, pod: Pod, rules: Sequence[Rejection], node: Node) -> Way:
    """The changes that get the pod past these rules to the node."""
    said, changed, counted = None, pod, True
    for rule in rules:
        way = _change_for(state, changed, node, rule)
        said = Word.BOTH(first=said, second=way.said) if said else way.said
        changed, counted = way.pod, counted and way.counted
    assert said is not None  # there is a rule
    return Way(said, changed, counted)


def _change_for(state: State, pod: Pod, node: Node, rejection: Rejection) -> Way:
    match rejection.rule:
        case Rule.CORDONED:
            return Way(Word.UNCORDON(node=node.name), pod)
        case Rule.NOT_TOLERATED:
            return _tolerating(state, pod, node)
        case Rule.OTHER_SELECTOR if _TAS in pod.labels and HOSTNAME in dict(pod.spec.node_selector):
            assigned = shorten(dict(pod.spec.node_selector)[HOSTNAME], KEY)
            return Way(Word.BY_KUEUE(node=assigned), pod, counted=False)
        case Rule.OTHER_SELECTOR:
            return _with_selector_of(state, pod, node)
    return _with_affinity_of(pod, node)


def _tolerating(state: State, pod: Pod, node: Node) -> Way:
    taints = [taint for taint in untolerated(pod, node.taints) if taint.key != CORDON.key]
    rules = pod.scheduling_constraints
    added = (Toleration(t.key, "Equal" if t.value else "Exists", t.value, t.effect) for t in taints)
    rules = replace(rules, tolerations=(*rules.tolerations, *added))
    changed = replace(pod, scheduling_constraints=rules)
    if any(taint.key.startswith(_OWN_TAINTS) for taint in taints):
        return Way(Word.SEE_TAINT(node=node.name), changed, counted=False)
    starting = [taint for taint in taints if _starts(state, pod, node, taint)]
    lasting = [taint for taint in taints if taint not in starting]
    keys = shorten(", ".join(taint.key for taint in starting[:_NAMED]), KEY)
    lines = ", ".join(map(_toleration, lasting[:_NAMED]))
    added_by_plugin = {(name, "NoSchedule") for name in extended_resources(pod)}
    by_plugin = {(taint.key, taint.effect) for taint in lasting} <= added_by_plugin
    more = Word.BY_PLUGIN(plugin=ADDS_TOLERATIONS) if by_plugin else ""
    said = Word.TOLERATE(tolerations=lines, by_plugin=more)
    if len(lasting) > _NAMED or len(lines) > _NAMED * KEY:
        said = Word.TOLERATE_MANY(count=len(lasting), node=node.name)
    if starting:
        wait = Word.WAIT_START(node=node.name, keys=keys)
        said = Word.BOTH(first=wait, second=said) if lasting else wait
    return Way(said, changed)


def _is_starting(state: State, pod: Pod, node: Node) -> bool:
    return any(_starts(state, pod, node, taint) for taint in untolerated(pod, node.taints))


def _starts(state: State, pod: Pod, node: Node, taint: Taint) -> bool:
    """Whether the taint is removed once the node has started: by its key; on a new node of Karpenter also any
    taint that ready nodes of its pool do not have."""
    if taint.key.startswith(_OWN_TAINTS):
        return False
    pool = node.labels.get("karpenter.sh/nodepool")
    if pool is None or node.labels.get("karpenter.sh/initialized") == "true":
        return bool(_STARTING.search(f"{taint.key}={taint.value}"))
    alike = (o for o in state.nodes.values() if o.labels.get("karpenter.sh/nodepool") == pool)
    ready = (other for other in alike if other.labels.get("karpenter.sh/initialized") == "true")
    lasting = {taint.key for other in ready for taint in other.taints}
    return taint.key not in lasting | extended_resources(pod)


def _with_selector_of(state: State, pod: Pod, node: Node) -> Way:
    """The selector changed to match the node."""
    selected, labels = pod.spec.node_selector, node.labels
    wrong = [pair for pair in selected if labels.get(pair[0]) != pair[1]]
    runtime = state.admission.runtime_classes.get(pod.runtime_class)
    of_class = runtime.node_selector if runtime else ()
    if any(pair in of_class for pair in wrong):
        rest = tuple(pair for pair in selected if pair not in of_class)
        without = _selecting(replace(pod, runtime_class=""), rest)
        return Way(Word.LEAVE_OUT_RUNTIME(name=pod.runtime_class), without, counted=False)
    rest = tuple((key, labels[key]) for key, _ in selected if key in labels)
    named = ", ".join(shorten(f"{key}={value}", KEY) for key, value in (wrong or selected)[:_NAMED])
    if len(wrong) < len(selected) and not any(key in labels for key, _ in wrong):
        return Way(Word.LEAVE_OUT_LABELS(labels=named), _selecting(pod, rest))
    if rest and len(selected) <= _NAMED:
        return Way(writing("nodeSelector", dict(rest)), _selecting(pod, rest))
    return Way(Word.LEAVE_OUT_SELECTOR(labels=named), _selecting(pod, ()))


def _selecting(pod: Pod, selector: Pairs) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_selector=selector))


def _with_affinity_of(pod: Pod, node: Node) -> Way:
    terms = pod.scheduling_constraints.node_affinity or ()
    fails = list(dict.fromkeys(unmet(pod, node)))
    texts = (f"{r.key} {r.operator} {', '.join(r.values)}".rstrip() for r in fails)
    asked = shorten(" or ".join(dict.fromkeys(texts)), KEY)
    if len(fails) != 1:
        return Way(Word.CHANGE_AFFINITY(asked=f" ({asked})" if asked else ""), _with_terms(pod, None))
    key = fails[0].key
    value = node.labels.get(key, "") if fails[0].operator == "In" else ""
    instead = (NodeSelectorRequirement(key, "In", (value,)),) if value else ()
    changed = _with_terms(pod, [_replaced(term, node, instead) for term in terms])
    said = Word.LEAVE_OUT_AFFINITY(asked=asked)
    if value:
        said = Word.REPLACE_AFFINITY(key=key, value=shorten(value, KEY), asked=asked)
    return Way(said, changed)


def _replaced(
    term: NodeSelectorTerm, node: Node, instead: tuple[NodeSelectorRequirement, ...]
) -> NodeSelectorTerm:
    fails = next((r for r in term.labels if not r.matches(node.labels)), None)
    return replace(term, labels=(*(r for r in term.labels if r != fails), *instead))


def _with_terms(pod: Pod, terms: Sequence[NodeSelectorTerm] | None) -> Pod:
    kept = tuple(term for term in terms or () if term.labels or term.fields) or None
    rules = replace(pod.scheduling_constraints, node_affinity=kept)
    return replace(pod, scheduling_constraints=rules)


def _toleration(taint: Taint) -> str:
    """The toleration of just this taint, as YAML. Keys, values and effects need no quotes in Kubernetes, but
    a value may look like a number."""
    value = f'operator: Equal, value: "{taint.value}"' if taint.value else "operator: Exists"
    return f"{{key: {taint.key}, {value}, effect: {taint.effect}}}"
