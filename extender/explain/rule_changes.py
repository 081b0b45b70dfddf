"""Nodes that only rules of the pod, or cordons, keep it off, and changes that get it past them: each opens
its own node, and says how many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from extender.cluster.admission import ADDS_TOLERATIONS, extended_resources
from extender.cluster.other_resources import Lack
from extender.cluster.state import State
from extender.explain.answers import Refusal
from extender.explain.candidates import Candidates, Rejection, uncordoned, unmet, untolerated, written
from extender.explain.fixes import Change, Fix, writing
from extender.explain.needs import replicas_given
from extender.explain.refusals import by_forecast, lacking, refusals_of
from extender.explain.what_if import Question
from extender.explain.words import Word
from extender.k8s.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from extender.k8s.manifest import Pairs
from extender.k8s.node_filter import CORDON, HOSTNAME, Rule
from extender.k8s.objects import Node, Pod
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import many
from extender.verbs.evaluate import Evaluation, evaluate, hosts_when_empty
from packing.fleet.arrays import Flags
from packing.model.reasons import Reason

_OWN_TAINTS = "node.kubernetes.io/"
"""Kubernetes sets these on nodes that are not ready or under pressure: tolerating them does not help."""
_STARTING = re.compile(
    "not-?ready|uninitiali[sz]ed|unregistered|startup|ignore-taint|^readiness.k8s.io/|runtime-required|queued|"
    "^amd-dcm=",
    re.IGNORECASE,
)
"""In taints that agents of a node and cloud providers remove once they are up: CSI and CNI drivers,
cloud-provider, Karpenter, the cluster autoscaler, node-readiness-controller, Skyhook, queued provisioning,
and AMD's Device Config Manager once the GPUs are partitioned."""
_TAS = re.compile(
    r"kueue\.x-k8s\.io/(tas|podset-(required|preferred|unconstrained|slice-required)-topology(-\w+)?)"
)
"""Labels (up to Kueue 0.13) and annotations of the pods that Kueue assigns to nodes itself, of which each has
one (topology-aware scheduling; kubernetes-sigs/kueue, apis/kueue/v1beta2/topology_types.go, and
``FromAssignment`` in pkg/podset/podset.go)."""
_NAMED = 3
_GROUPS = 16
"""Maximum number of groups of nodes behind the same rules that are tried, the fewest rules first."""


class Opening(NamedTuple):
    """A ``fix`` that gets the pod past ``rules`` to nodes like ``node``, which then take it: now (``fits``),
    or once their pods have gone, or it is not known (``later`` of them); or ``refusal`` is why they reject it
    nevertheless. ``starts``: the node does not take it yet because it has just been made."""

    rules: tuple[Rejection, ...]
    node: Node
    fix: Fix
    starts: bool
    likeness: float
    fits: tuple[str, ...] = ()
    later: int = 0
    refusal: Refusal | None = None

    def order(self) -> tuple[bool, int, bool, int, float, int, int]:
        """Changes that help now first, then fewest rules, then the same selection, then fewest taints, then
        the most similar labels, then most nodes."""
        selects_others = any(rule.rule in (Rule.OTHER_SELECTOR, Rule.OTHER_AFFINITY) for rule in self.rules)
        added = len(self.fix.pod.scheduling_constraints.tolerations) if self.fix.pod else 0
        most = -round(self.likeness, 2), -len(self.fits), -self.later
        return not self.fits, len(self.rules), selects_others, added, *most


class _Takes(IntEnum):
    """Whether a node takes the pod without the rules."""

    NOW = 0
    WHEN_EMPTY = 1
    PERHAPS = 2


def openings(asked: Question) -> tuple[list[Opening], list[Opening]]:
    """Changes that open nodes, the most helpful first; and those after which nodes still reject the pod."""
    state, pod = asked.state, asked.pod
    groups = _groups(pod, asked.candidates)
    every = [node for _, nodes in groups for node in nodes]
    evaluation = evaluate(state, pod, asked.request, NodeNames.of([node.name for node in every]))
    lacks = [asked.candidates.lack_on(node) for node in every]
    takes = _takes(asked, every, evaluation, np.array([lack is None for lack in lacks], np.bool_))
    doubt = next((f.problem for f in evaluation.forecasts if f.problem and not f.refused), "")
    helping, refused, end = list[Opening](), list[Opening](), 0
    for rules, nodes in groups:
        start, end = end, end + len(nodes)
        best = min((takes[node.name] for node in nodes if node.name in takes), default=None)
        node = next(node for node in nodes if takes.get(node.name) == best)
        likeness = _likeness(pod.spec.node_selector, node)
        fix = changes_for(state, pod, rules, node)
        starts = any(_starts(state, pod, node, taint) for taint in untolerated(pod, node.taints))
        opening = Opening(rules, node, fix, starts, likeness)
        if best is not None:
            alike = [other for other in every if takes.get(other.name) == best]
            helping += _helping(asked, opening, alike, best, doubt)
            continue
        refusal = _refusal(asked, nodes, evaluation, slice(start, end), lacks[start:end])
        refused.append(opening._replace(refusal=refusal))
        if refusal.kind == Reason.UNHEALTHY_GPU.name and starts:
            helping.append(opening._replace(fix=fix._replace(change=None), later=len(nodes)))
    return _best(helping), refused


def _groups(pod: Pod, candidates: Candidates) -> list[tuple[tuple[Rejection, ...], list[Node]]]:
    """Nodes grouped by rules against the pod and by values of the labels that the pod selects."""
    groups: dict[tuple[tuple[Rejection, ...], tuple[str | None, ...]], list[Node]] = {}
    for node in (node for nodes in candidates.passed_over.values() for node in nodes):
        if rules := candidates.rules_against(node):
            values = tuple(node.labels.get(key) for key, _ in pod.spec.node_selector if key != HOSTNAME)
            groups.setdefault((rules, values), []).append(node)
    ordered = sorted(groups.items(), key=lambda group: (len(group[0][0]), -len(group[1])))
    return [(rules, nodes) for (rules, _), nodes in ordered[:_GROUPS]]


def _takes(asked: Question, nodes: Sequence[Node], evaluation: Evaluation, free: Flags) -> dict[str, _Takes]:
    """Those of the nodes that take the pod. ``free``: those with enough of what Stowage does not place by."""
    fits, _, unknown = by_forecast(evaluation)
    hosts = hosts_when_empty(asked.state, asked.state.fleet, evaluation) & asked.request.wants_gpu
    found: dict[str, _Takes] = {}
    for takes, which in zip(_Takes, (fits, hosts, unknown), strict=True):
        for index in np.flatnonzero(free & which).tolist():
            found.setdefault(nodes[index].name, takes)
    return found


def _helping(
    asked: Question, opening: Opening, alike: Iterable[Node], takes: _Takes, doubt: str
) -> Iterator[Opening]:
    """The opening, if it opens its node, and how many of the nodes that are ``alike``; with what they would
    allocate."""
    fix, node = opening.fix, opening.node
    accepts = asked.candidates.filter_of(fix.pod or asked.pod).rejection
    opened = [other.name for other in alike if not accepts(uncordoned(other) if other is node else other)]
    fits = tuple(opened) if takes is _Takes.NOW else ()
    opening = opening._replace(fits=fits, later=0 if fits else len(opened))
    if fix.change is None:
        yield opening
    elif node.name in opened:
        word = (Word.ACCEPTS, Word.ACCEPTS_FULL, Word.ACCEPTS_PERHAPS)[takes]
        what, given = (Word.WHOLE_GANG if fits and asked.is_gang else Word.IT)(), _parts_given(asked, fits)
        nodes, are = many(len(opened), "node"), "is" if len(opened) == 1 else "are"
        then = word(nodes=nodes, what=what, are=are, doubt=shorten(doubt), given=given)
        yield opening._replace(fix=fix._replace(then=then, change=fix.change if fits else None))


def _parts_given(asked: Question, names: Sequence[str]) -> str:
    """Allocations of these nodes that are less than the requested whole GPUs."""
    fleet = asked.state.fleet
    given = Counter(replicas_given(fleet, fleet.rows[name], asked.request) for name in names)
    most, count = next(iter(Counter({text: n for text, n in given.items() if text}).most_common(1)), ("", 0))
    if not most:
        return ""
    everywhere = count == len(names)
    return str(Word.THERE_GETS(given=most) if everywhere else Word.SOME_GET(count=count, given=most))


def _refusal(
    asked: Question, nodes: Sequence[Node], evaluation: Evaluation, at: slice, lacks: Sequence[Lack | None]
) -> Refusal:
    """The most frequent reason of these nodes, which are ``at`` this place of the evaluation."""
    some = [(node.name, lack) for node, lack in zip(nodes, lacks, strict=True) if lack]
    refusals = list(lacking(asked.state.fleet, asked.request, some))
    if len(some) < len(nodes):
        here = np.zeros(len(evaluation.rows), np.bool_)
        here[at] = True
        names = NodeNames.of([node.name for node in nodes])
        refusals = refusals_of(asked.state, asked.state.fleet, names, evaluation.only(here)) or refusals
    return max(refusals, key=lambda refusal: refusal.nodes)


def _best(helping: Iterable[Opening]) -> list[Opening]:
    """Sorted changes, without duplicates and changes of more rules than others for no more nodes."""
    best: list[Opening] = []
    for opening in sorted(helping, key=Opening.order):
        shorter = [other for other in best if len(other.rules) < len(opening.rules) and other.fits]
        worse = any(len(other.fits) >= len(opening.fits) for other in shorter)
        if not worse and all(opening.fix.said != other.fix.said for other in best):
            best.append(opening)
    return best


def _likeness(selected: Pairs, node: Node) -> float:
    """How similar the node's labels are to the selected ones; a value is nearest to one that contains it."""
    pairs = [(shorten(value, KEY), shorten(node.labels.get(key, ""), KEY)) for key, value in selected]
    return sum(
        1 if has and asked in has else SequenceMatcher(None, asked, has).ratio() for asked, has in pairs
    )


def changes_for(state: State, pod: Pod, rules: Sequence[Rejection], node: Node) -> Fix:
    """The changes that get the pod past these rules to the node; without a ``change`` if they may not be
    enough."""
    said, changed, is_enough = None, pod, True
    for rule in rules:
        fix = _change_for(state, changed, node, rule)
        said = Word.BOTH(first=said, second=fix.said) if said else fix.said
        changed, is_enough = fix.pod or changed, is_enough and fix.pod is not None
    assert said is not None  # there is a rule
    change = Change(changed, {node.name: uncordoned(node)}, among=(node.name,))
    return Fix(said, changed, change if is_enough else None)


def _change_for(state: State, pod: Pod, node: Node, rejection: Rejection) -> Fix:
    """One change; without a pod if it is not enough, or not for the pod to make."""
    match rejection.rule:
        case Rule.CORDONED:
            return Fix(Word.UNCORDON(node=node.name), pod)
        case Rule.NOT_TOLERATED:
            return _tolerating(state, pod, node)
        case Rule.OTHER_SELECTOR if _assigned_by_kueue(pod):
            return Fix(Word.BY_KUEUE(node=shorten(dict(pod.spec.node_selector)[HOSTNAME], KEY)))
        case Rule.OTHER_SELECTOR:
            return _with_selector_of(state, pod, node)
    return _with_affinity_of(pod, node)


def _assigned_by_kueue(pod: Pod) -> bool:
    names = (*pod.labels, *pod.annotations)
    return HOSTNAME in dict(pod.spec.node_selector) and any(map(_TAS.fullmatch, names))


def _tolerating(state: State, pod: Pod, node: Node) -> Fix:
    taints = [taint for taint in untolerated(pod, node.taints) if taint.key != CORDON.key]
    if any(taint.key.startswith(_OWN_TAINTS) for taint in taints):
        return Fix(Word.SEE_TAINT(node=node.name))
    rules = pod.scheduling_constraints
    added = (Toleration(t.key, "Equal" if t.value else "Exists", t.value, t.effect) for t in taints)
    rules = replace(rules, tolerations=(*rules.tolerations, *added))
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
    return Fix(said, replace(pod, scheduling_constraints=rules))


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


def _with_selector_of(state: State, pod: Pod, node: Node) -> Fix:
    selected, labels = pod.spec.node_selector, node.labels
    wrong = [pair for pair in selected if labels.get(pair[0]) != pair[1]]
    runtime = state.admission.runtime_classes.get(pod.runtime_class)
    if runtime and any(pair in runtime.node_selector for pair in wrong):
        return Fix(Word.LEAVE_OUT_RUNTIME(name=pod.runtime_class))
    named = ", ".join(shorten(f"{key}={value}", KEY) for key, value in wrong[:_NAMED])
    said, kept = Word.LEAVE_OUT_LABELS(labels=named), tuple(pair for pair in selected if pair not in wrong)
    pins = any(key == HOSTNAME for key, _ in wrong)  # to one node: another one would be no better
    if not pins and any(key in labels for key, _ in wrong) and len(selected) <= _NAMED:
        kept = tuple((key, labels[key]) for key, _ in selected if key in labels)
        said = writing("nodeSelector", dict(kept))
    return Fix(said, replace(pod, spec=replace(pod.spec, node_selector=kept)))


def _with_affinity_of(pod: Pod, node: Node) -> Fix:
    terms = pod.scheduling_constraints.node_affinity or ()
    fails = list(dict.fromkeys(unmet(pod, node)))
    asked = shorten(written(fails), KEY)
    if len(fails) != 1:
        return Fix(Word.CHANGE_AFFINITY(asked=f" ({asked})" if asked else ""), _with_terms(pod, ()))
    key, is_choice = fails[0].key, fails[0].operator == "In" and fails[0].key != HOSTNAME
    value = node.labels.get(key, "") if is_choice else ""
    instead = (NodeSelectorRequirement(key, "In", (value,)),) if value else ()
    changed = [
        replace(term, labels=(*(r for r in term.labels if r != fails[0]), *instead))
        if fails[0] in term.labels
        else term
        for term in terms
    ]
    said = Word.LEAVE_OUT_AFFINITY(asked=asked)
    if value:
        said = Word.REPLACE_AFFINITY(key=key, value=shorten(value, KEY), asked=asked)
    return Fix(said, _with_terms(pod, changed))


def _with_terms(pod: Pod, terms: Sequence[NodeSelectorTerm]) -> Pod:
    kept = tuple(term for term in terms if term.labels or term.fields) or None
    return replace(pod, scheduling_constraints=replace(pod.scheduling_constraints, node_affinity=kept))


def _toleration(taint: Taint) -> str:
    """The toleration of just this taint, as YAML. Keys, values and effects need no quotes in Kubernetes, but
    a value may look like a number."""
    value = f'operator: Equal, value: "{taint.value}"' if taint.value else "operator: Exists"
    return f"{{key: {taint.key}, {value}, effect: {taint.effect}}}"
