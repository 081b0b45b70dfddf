"""Where kubelet's verdict by NUMA nodes is not known, and why a pod failed with TopologyAffinityError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import many
from packing.model.numa import REFUSING

_NAMED = 3
"""Nodes, and reasons, that are named."""


def doubts(state: State, pod: Pod, nodes: Iterable[str]) -> Iterator[str]:
    """Sentences about nodes on which the pod fits, and where kubelet may refuse it nevertheless."""
    found: dict[str, list[str]] = {}
    for node in nodes if state.numa else ():
        if doubt := state.numa.doubt(pod, node):
            found.setdefault(doubt, []).append(node)
    for doubt, of in islice(found.items(), _NAMED):
        named = ", ".join(shorten(node, KEY) for node in of[:_NAMED])
        more = f" and {many(len(of) - _NAMED, 'more node')}" if len(of) > _NAMED else ""
        yield f"NUMA is not known on {named}{more}, where kubelet may refuse the pod: {shorten(doubt)}."


def refused_text(state: State, pod: Pod) -> str:
    """Why kubelet refused the pod for its NUMA policy, as far as that is known; "" where it did not."""
    if not pod.misaligned:
        return ""
    node = shorten(pod.node_name, KEY)
    row = state.fleet.rows.get(pod.node_name, -1)
    if not state.numa:
        why = "the cluster has no NodeResourceTopology, so Stowage does not see NUMA nodes (docs/numa.md)"
    elif doubt := state.numa.doubt(pod, pod.node_name):
        why = shorten(doubt)
    elif state.numa.misaligned(state.fleet, pod, np.array([row]), REFUSING, idle=False)[0]:
        free = state.numa.free(pod, pod.node_name)
        why = "the node could not align it now either" + (f": free by NUMA node {free}" if free else "")
    else:
        why = "the node could align it now: what it reports has changed, or came too late"
    return (
        f"Kubelet on {node} refused it with TopologyAffinityError: its NUMA policy could not align what was "
        f"free. {why[:1].upper()}{why[1:]}. Kubelet does not try this pod again; below is a copy of it."
    )
