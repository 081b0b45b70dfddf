"""What the verbs answer for a cluster of manifests."""

from __future__ import annotations

import time
from pathlib import Path

from extender.cluster.factory import state_of
from extender.cluster.other_resources import PodConflicts, asked_by, lacking_on
from extender.cluster.policy_refresh import plan_now
from extender.cluster.state import State
from extender.k8s.objects import Node, Pod
from extender.protocol.codec import FilterArgs, FilterResult, PreemptArgs, ProposedVictims
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import preempt


def cluster(path: Path, settings: Settings) -> State:
    """The state after all objects of a snapshot."""
    state = state_of(settings)
    state.binds = settings.bind
    for events in SnapshotSource(read([path]), path.name).list_once():
        state.apply(events)
    plan_now(state)
    return state


def filtered(state: State, pod: Pod, settings: Settings) -> FilterResult:
    """What ``filter`` says of the nodes that kube-scheduler asks for."""
    passed = [name for name, node in state.nodes.items() if kube_scheduler_accepts(state, pod, node)]
    return filter_nodes(state, FilterArgs(pod, NodeNames.of(passed)), settings)[0]


def kube_scheduler_accepts(state: State, pod: Pod, node: Node) -> bool:
    """By the filters of its own that Stowage knows."""
    conflicts = PodConflicts(state, pod)
    if state.node_filter(pod).rejection(node) or conflicts.on(node) or conflicts.far(node):
        return False
    return not any(lacking_on(state, node, asked_by(pod)))


def victims(state: State, pod: Pod) -> set[str]:
    """What ``preempt`` names if kube-scheduler proposes every pod of lower priority on every node."""
    candidates = {}
    for node in state.nodes:
        lower = [one for one in state.pods.on_node(node) if one.priority < pod.priority]
        candidates[node] = ProposedVictims([one.uid for one in lower], 0)
    answer = preempt(state, PreemptArgs(pod, candidates), now=time.time())
    uids = {uid for candidate in answer.candidates.values() for uid in candidate.victims}
    return {one.key for one in state.pods.values() if one.uid in uids}
