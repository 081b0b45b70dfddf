"""Nodes that take no pods at present, by what their cluster says of them.

A node takes no pods while it is cordoned (``spec.unschedulable``), or has one of these taints of the control
plane (Kubernetes, "Well-Known Labels, Annotations and Taints" and "Taints and Tolerations"). Memory pressure
is not among them: all pods that request memory tolerate it, and GPU pods do.
"""

from __future__ import annotations

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
