"""Nodes that take no pods at present, spot nodes, and nodes that are about to be terminated.

A node takes no pods while it is cordoned (``spec.unschedulable``), or has one of these taints of the control
plane (Kubernetes, "Well-Known Labels, Annotations and Taints" and "Taints and Tolerations"). Memory pressure
is not among them: all pods that request memory tolerate it, and GPU pods do. ``data/node-lifecycle.json`` has
what providers write, with the sources. A label of spot nodes also counts as the key of a taint with one of
its values.
"""

from __future__ import annotations

from collections.abc import Collection

from extender.data import facts
from extender.k8s.objects import Node

_NOT_READY = {
    "node.kubernetes.io/not-ready": "node is not ready",
    "node.kubernetes.io/unreachable": "node is not reachable",
    "node.kubernetes.io/unschedulable": "node is cordoned",
    "node.kubernetes.io/disk-pressure": "node has too little disk space",
    "node.kubernetes.io/pid-pressure": "node has too few process IDs",
    "node.kubernetes.io/network-unavailable": "node has no network",
    "node.cloudprovider.kubernetes.io/uninitialized": "node is not initialized yet",
}


def closed_because(node: Node) -> str:
    """Why the node takes no pods that do not expressly tolerate it, "" if it takes them."""
    if node.unschedulable:
        return "node is cordoned"
    keys = (taint.key for taint in node.taints if taint.blocks_scheduling)
    return next((_NOT_READY[key] for key in keys if key in _NOT_READY), "")


_KNOWN = facts("node-lifecycle")
SPOT_LABELS = {known["label"]: frozenset(known["values"]) for known in _KNOWN["spot"]}
LEAVING_TAINTS = frozenset(taint for known in _KNOWN["leaving"] for taint in known["taints"])
_KEPT_BY = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""Annotations of nodes (FAQ of Cluster Autoscaler; Karpenter, "Disruption", "Node-Level Controls"). Both heed
only "true" there."""


def must_stay(node: Node) -> str:
    """Why no plan empties the node, "" if one may."""
    return next((f"{name} keeps the node" for name in _KEPT_BY if node.annotations.get(name) == "true"), "")


def is_spot(node: Node, marks: Collection[str] = ()) -> bool:
    """Whether the provider may take the node back at any time. ``marks``: labels or taints beside the known
    ones, as ``key=value``, or ``key`` for any value."""
    names = (*SPOT_LABELS, *(mark.partition("=")[0] for mark in marks))
    labels = [(name, node.labels[name]) for name in names if name in node.labels]
    return any(
        value in SPOT_LABELS.get(name, ()) or name in marks or f"{name}={value}" in marks
        for name, value in (*labels, *((taint.key, taint.value) for taint in node.taints))
    )


def is_leaving(node: Node) -> bool:
    """Whether a taint says that the node is about to be terminated, or is switched off."""
    return any(taint.key in LEAVING_TAINTS and taint.blocks_scheduling for taint in node.taints)
