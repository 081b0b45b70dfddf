"""Room that pods leave which terminate already, wherever they run and whoever ended them.

kube-scheduler proposes only nodes with pods of lower priority. Kueue has priorities of its own: a pod that
it evicts may have the same priority as the pod that gets its quota, so kube-scheduler does not propose that
node, and would evict somebody else a moment before the room is there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from extender.cluster.state import PossiblyBound, State
from extender.k8s.node_filter import has_unknown_filters
from extender.k8s.objects import Pod
from extender.verbs.eviction.plan import plan_evictions
from extender.verbs.eviction.promising import MOST_NODES

OVERDUE = 30.0
"""Seconds after the end of its grace period for which a pod still counts as about to go: kubelet and the
controllers that wait for its end need a moment. One that is still there later may be stuck."""


def room_is_coming(
    state: State, pod: Pod, now: float, possibly_bound: PossiblyBound = (), besides: Collection[str] = ()
) -> bool:
    """Whether the pod fits on some node without any eviction, once the pods have gone that terminate there.

    ``besides``: nodes that do not count. ``now`` in Unix seconds. False where kube-scheduler may refuse a
    node for what Stowage does not compute.
    """
    if has_unknown_filters(pod) or pod.spec.claims:
        return False
    leaving = (state.pods[key] for key in state.pods.leaving)
    nodes = dict.fromkeys(one.node_name for one in leaving if not one.ends or now < one.ends + OVERDUE)
    chosen = [node for node in nodes if node not in besides][:MOST_NODES]
    evicts_nobody = replace(pod, never_preempts=True)
    plans = plan_evictions(state, evicts_nobody, chosen, now, possibly_bound=possibly_bound)
    return bool(plans)
