"""Pods that kubelet has rejected, or may reject."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from extender.cluster.state import State
from extender.cluster.unoffered import rejections
from extender.explain.fixes import Finding
from extender.explain.words import Word
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import listed
from packing.model.numa import REFUSING

_NAMED = 3
"""Maximum number of nodes and of reasons named."""


def doubts(state: State, pod: Pod, nodes: Iterable[str]) -> Iterator[Finding]:
    """Nodes on which the pod fits but kubelet may reject it."""
    found: dict[str, list[str]] = {}
    nodes = list(nodes) if state.numa or state.pods.not_admitted else []
    rejecting = set(state.pods.not_admitted.values()).intersection(nodes)
    for node in islice(sorted(rejecting), _NAMED):
        if why := rejections(state, node):
            yield Finding(Word.REJECTS(node=shorten(node, KEY), why=why))
    for node in nodes if state.numa else ():
        if doubt := state.numa.doubt(pod, node):
            found.setdefault(doubt, []).append(node)
    for doubt, of in islice(found.items(), _NAMED):
        named = listed([shorten(node, KEY) for node in of], _NAMED, f" node{'s' * (len(of) > _NAMED + 1)}")
        yield Finding(Word.NUMA_UNKNOWN(nodes=named, why=shorten(doubt)))


def misaligned_pod(state: State, pod: Pod) -> Finding | None:
    """Why kubelet rejected the pod by its NUMA policy, as far as is known; None if it did not."""
    if not pod.misaligned:
        return None
    row = state.fleet.rows.get(pod.node_name, -1)
    if not state.numa:
        why: object = Word.NO_TOPOLOGY()
    elif doubt := state.numa.doubt(pod, pod.node_name):
        why = f"{doubt[:1].upper()}{shorten(doubt)[1:]}"
    elif state.numa.misaligned(state.fleet, pod, np.array([row]), REFUSING, idle=False)[0]:
        free = state.numa.free(pod, pod.node_name)
        why = Word.STILL_MISALIGNED(free=Word.FREE_BY_NUMA(free=free) if free else "")
    else:
        why = Word.ALIGNED_NOW()
    return Finding(Word.MISALIGNED(node=shorten(pod.node_name, KEY), why=why))
