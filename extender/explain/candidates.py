"""The nodes for which kube-scheduler would call Stowage for a pod, and why not for the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from extender.background import with_turns
from extender.cluster.other_resources import Lack, PodConflicts, asked_by, is_of_dra, lacking_on
from extender.cluster.state import State
from extender.explain.fixes import is_manifest
from extender.explain.needs import uncounted_resources
from extender.explain.words import Said, Word
from extender.k8s.affinity import NodeSelectorRequirement, Taint, Toleration, tolerated
from extender.k8s.node_filter import CORDON, NodeFilter, Rule, UnusableClaim
from extender.k8s.objects import Node, Pod
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import KEY, shorten
from extender.verbs.evaluate import search_devices

_AT_ONCE = 50
"""Nodes that are checked against a pod's rules before other tasks get their turn."""
_TERMS = 3
"""Terms of an affinity up to which those that fail are shown."""


class Rejection(NamedTuple):
    """Why kube-scheduler does not ask about a node: a rule, with the label, the taints or the resource that
    decide, as kubectl writes them ("" where there is none)."""

    rule: Rule
    detail: str = ""

    @property
    def said(self) -> Said:
        if self.rule is Rule.NOT_OFFERED:
            return Word.NOT_ON_NODE(name=self.detail)
        if self.rule is Rule.TOO_LONG:
            return Word.RULE(rule=self.detail)
        word = Word.RULE_OF if self.detail else Word.RULE
        return word(rule=self.rule.value, detail=shorten(self.detail, KEY))


class Candidates:
    """``names``: the nodes that kube-scheduler would ask about. ``passed_over``: the others, by why not.

    ``used_up`` says of nodes among ``names`` what they have too little of that Stowage does not place by,
    first what they have too little of even without pods.
    """

    def __init__(self, state: State, pod: Pod, gone: Collection[str] = ()) -> None:
        pod, _ = state.admission.as_created(pod)
        self._state, self._pod, self._asked = state, pod, asked_by(pod)
        self._volumes, self._conflicts = state.admission.volumes_of(pod), PodConflicts(state, pod, gone)
        self._filters: dict[tuple[Rule, ...], NodeFilter] = {}
        self._filter = self._without(())
        self._resources = uncounted_resources(pod)
        self._pinned = pod.node_name if is_manifest(pod) else ""
        self.names: list[str] = []
        self.passed_over: dict[Rejection, list[Node]] = {}
        self.used_up: dict[str, Lack] = {}

    def add(self, node: Node) -> None:
        if rejection := self.rejection(node):
            self.passed_over.setdefault(rejection, []).append(node)
            return
        self.names.append(node.name)
        if lacks := [*lacking_on(self._state, node, self._asked)]:
            self.used_up[node.name] = min(lacks, key=lambda lack: lack.asked <= lack.total)

    @property
    def excluded(self) -> list[str]:
        """Nodes that only other pods keep the pod off."""
        by_pods = (nodes for found, nodes in self.passed_over.items() if found.rule in _BY_PODS)
        return [node.name for nodes in by_pods for node in nodes]

    def rejection(self, node: Node) -> Rejection | None:
        """Why kube-scheduler does not ask about the node, None if it does."""
        if self._pinned and node.name != self._pinned:
            return Rejection(Rule.OTHER_NODE)
        if rule := self._filter.rejection(node):
            claims = (v.name for v in self._volumes if isinstance(v, UnusableClaim) and v.rule is rule)
            return Rejection(rule, next(claims, "") or _detail(self._pod, node, rule))
        if self._conflicts.on(node):
            return Rejection(Rule.ANTI_AFFINITY)
        if key := self._conflicts.far(node):
            return Rejection(Rule.NOT_NEAR, key)
        others = [r for r in self._resources if not is_of_dra(self._state, node, r)]
        missing = next((name for name in others if node.allocatable.get(name, "0") == "0"), "")
        return Rejection(Rule.NOT_OFFERED, shorten(missing, KEY)) if missing else None

    def rules_against(self, node: Node) -> tuple[Rejection, ...]:
        """All rules of the pod that keep it off the node; none where anything does that cannot be changed."""
        rules: list[Rejection] = []
        while rule := self._without(tuple(lifted.rule for lifted in rules)).rejection(node):
            if rule not in LIFTED or len(rules) == len(LIFTED):
                return ()
            rules.append(Rejection(rule, _detail(self._pod, node, rule)))
            node = uncordoned(node) if rule is Rule.CORDONED else node
        by_pods = self._conflicts.on(node) or self._conflicts.far(node)
        return () if self._pinned or by_pods else tuple(rules)

    def filter_of(self, pod: Pod) -> NodeFilter:
        """kube-scheduler's filters for the pod with other rules."""
        return NodeFilter(pod, self._volumes)

    def lack_on(self, node: Node) -> Lack | None:
        """What the node has too little of that Stowage does not place by."""
        return next(lacking_on(self._state, node, self._asked), None)

    def _without(self, lifted: tuple[Rule, ...]) -> NodeFilter:
        """The rules of the pod but these."""
        if lifted not in self._filters:
            pod, rules = self._pod, self._pod.scheduling_constraints
            if Rule.OTHER_SELECTOR in lifted:
                pod = replace(pod, spec=replace(pod.spec, node_selector=()))
            if Rule.OTHER_AFFINITY in lifted:
                rules = replace(rules, node_affinity=None)
            if Rule.NOT_TOLERATED in lifted:
                rules = replace(rules, tolerations=(_ANY_TAINT,))
            self._filters[lifted] = NodeFilter(replace(pod, scheduling_constraints=rules), self._volumes)
        return self._filters[lifted]


LIFTED = Rule.CORDONED, Rule.OTHER_SELECTOR, Rule.OTHER_AFFINITY, Rule.NOT_TOLERATED
_BY_PODS = Rule.ANTI_AFFINITY, Rule.CLAIM_IN_USE
_ANY_TAINT = Toleration(operator="Exists")


def uncordoned(node: Node) -> Node:
    """The node as it is after ``kubectl uncordon``."""
    taints = tuple(taint for taint in node.taints if taint.key != CORDON.key)
    return replace(node, unschedulable=False, taints=taints)


def all_candidates(state: State, pod: Pod) -> Candidates:
    """Those among all nodes."""
    candidates = Candidates(state, pod)
    for node in state.nodes.values():
        candidates.add(node)
    return candidates


async def candidates_of(state: State, pod: Pod) -> Candidates:
    """The same, and devices for the pod's claims. Both may take long, so other tasks run in between."""
    candidates = Candidates(state, pod)
    async for node in with_turns(list(state.nodes.values()), _AT_ONCE):
        candidates.add(node)
    await search_devices(state, pod, NodeNames.of(candidates.names))
    return candidates


def untolerated(pod: Pod, taints: Iterable[Taint]) -> Iterator[Taint]:
    """The taints that keep the pod away."""
    tolerations = pod.scheduling_constraints.tolerations
    return (taint for taint in taints if not tolerated((taint,), tolerations))


def written(requirements: Iterable[NodeSelectorRequirement]) -> str:
    """Requirements of an affinity, any of which must be met."""
    texts = (f"{r.key} {r.operator} {', '.join(r.values)}".rstrip() for r in requirements)
    return " or ".join(dict.fromkeys(texts))


def _detail(pod: Pod, node: Node, rule: Rule) -> str:
    if rule is Rule.OTHER_SELECTOR:
        return next(
            f"{key}={value}" for key, value in pod.spec.node_selector if node.labels.get(key) != value
        )
    if rule is Rule.NOT_TOLERATED:
        taints = untolerated(pod, node.taints)  # as kubectl writes them
        return ", ".join(f"{t.key}{f'={t.value}' if t.value else ''}:{t.effect}" for t in taints)
    if rule is Rule.OTHER_AFFINITY:
        return written(unmet(pod, node))
    if rule is Rule.NO_DOMAIN:
        return next(key for key in pod.scheduling_constraints.spread_keys if key not in node.labels)
    return pod.scheduling_constraints.problem if rule is Rule.TOO_LONG else ""


def unmet(pod: Pod, node: Node) -> list[NodeSelectorRequirement]:
    """The first requirement of each term of the pod's affinity that the node's labels do not meet; none of
    many terms."""
    terms = pod.scheduling_constraints.node_affinity or ()
    fails = (next((r for r in term.labels if not r.matches(node.labels)), None) for term in terms)
    return [requirement for requirement in fails if requirement] if len(terms) <= _TERMS else []
