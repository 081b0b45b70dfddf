"""Room that pods leave which terminate, or have just ended, wherever they run and whoever ended them.

kube-scheduler proposes only nodes with pods of lower priority. Kueue has priorities of its own: a pod that
it evicts may have the same priority as the pod that gets its quota, so kube-scheduler does not propose that
node, and would evict somebody else a moment before the room is there. It would also do so in the moment when
Stowage has seen the end of a pod, and kube-scheduler has not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.node_filter import NodeFilter, has_unknown_filters
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.verbs.evaluate import evaluate
from extender.verbs.eviction.plan import plan_evictions
from extender.verbs.eviction.promising import MOST_NODES

OVERDUE = 30.0
"""Seconds after the end of its grace period for which a pod still counts as about to go: kubelet and the
controllers that wait for its end need a moment. One that is still there later may be stuck."""

LONGEST_EXPECTED = 60.0
"""Seconds for which one pod is told to wait for such room: a node on which pods end all the time could keep
it waiting for ever."""


def room_is_coming(state: State, pod: Pod, now: float, besides: Collection[str] = ()) -> bool:
    """Whether the pod fits without any eviction where pods have just ended, or on some node once the pods
    have gone that terminate there.

    ``besides``: nodes where pods that terminate do not count. ``now`` in Unix seconds. False where
    kube-scheduler may refuse a node for what Stowage does not compute.
    """
    if has_unknown_filters(pod) or pod.spec.claims:
        return False
    since = state.pods.expects.get(pod.uid, now)
    if now - since < LONGEST_EXPECTED and _has_just_come(state, pod, now):
        state.pods.expects[pod.uid] = since
        return True
    leaving = (state.pods[key] for key in state.pods.leaving)
    nodes = dict.fromkeys(one.node_name for one in leaving if not one.ends or now < one.ends + OVERDUE)
    chosen = [node for node in nodes if node not in besides][:MOST_NODES]
    evicts_nobody = replace(pod, never_preempts=True)
    plans = plan_evictions(state, evicts_nobody, chosen, now)
    return bool(plans)


def _has_just_come(state: State, pod: Pod, now: float) -> bool:
    """Whether the pod fits on a node where a pod has just ended."""
    rejection = NodeFilter(pod).rejection
    ended = [
        node
        for node in state.pods.just_ended(now)
        if node in state.nodes and not rejection(state.nodes[node])
    ]
    names = NodeNames.of(ended[:MOST_NODES])
    return bool(ended) and bool(evaluate(state, pod, request_of(pod), names).certain.any())
