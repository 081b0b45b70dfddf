"""Nodes that currently accept no pods, spot nodes, and nodes that are about to be terminated.

A node accepts no pods while it is cordoned (``spec.unschedulable``) or has one of these taints of the control
plane (Kubernetes, "Well-Known Labels, Annotations and Taints" and "Taints and Tolerations"). Memory pressure
is not among them: all pods that request memory tolerate it, and GPU pods request memory.
``data/node-lifecycle.json`` lists the labels and taints of providers, with sources. A label of spot nodes
also counts as the key of a taint with one of its values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import islice

from extender.data import facts
from extender.k8s.node_filter import HOSTNAME
from extender.k8s.objects import Node
from extender.untrusted.limits import NODE_LABELS

_NOT_READY = {
    "node.kubernetes.io/not-ready": "node is not ready",
    "node.kubernetes.io/unreachable": "node is unreachable",
    "node.kubernetes.io/unschedulable": "node is cordoned",
    "node.kubernetes.io/disk-pressure": "node has too little disk space",
    "node.kubernetes.io/pid-pressure": "node has too few process IDs",
    "node.kubernetes.io/network-unavailable": "node has no network",
    "node.cloudprovider.kubernetes.io/uninitialized": "node is not initialized yet",
}


def closed_because(node: Node) -> str:
    """Why the node accepts no pods without an explicit toleration, "" if it does."""
    if node.unschedulable:
        return "node is cordoned"
    keys = (taint.key for taint in node.taints if taint.blocks_scheduling)
    return next((_NOT_READY[key] for key in keys if key in _NOT_READY), "")


def is_down(node: Node) -> bool:
    """Whether the control plane does not hear from the node, or hears that it is not ready."""
    return any(taint.key in _DOWN for taint in node.taints)


_DOWN = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_KNOWN = facts("node-lifecycle")
SPOT_LABELS = {known["label"]: frozenset(known["values"]) for known in _KNOWN["spot"]}
LEAVING_TAINTS = frozenset(taint for known in _KNOWN["leaving"] for taint in known["taints"])
_KEPT_BY = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""Annotations of nodes (FAQ of Cluster Autoscaler; Karpenter, "Disruption", "Node-Level Controls"). Both
tools recognize only "true" there."""


def must_stay(node: Node) -> str:
    """Why plans must not drain the node, "" if they may."""
    return next((f"{name} keeps the node" for name in _KEPT_BY if node.annotations.get(name) == "true"), "")


def is_spot(node: Node, marks: Collection[str] = ()) -> bool:
    """Whether the provider may reclaim the node at any time. ``marks``: labels or taints in addition to the
    known ones, as ``key=value``, or ``key`` for any value."""
    names = (*SPOT_LABELS, *(mark.partition("=")[0] for mark in marks))
    labels = [(name, node.labels[name]) for name in names if name in node.labels]
    return any(
        value in SPOT_LABELS.get(name, ()) or name in marks or f"{name}={value}" in marks
        for name, value in (*labels, *((taint.key, taint.value) for taint in node.taints))
    )


def is_leaving(node: Node) -> bool:
    """Whether a taint indicates that the node is about to be terminated, or is shut down."""
    return any(taint.key in LEAVING_TAINTS and taint.blocks_scheduling for taint in node.taints)


def is_virtual(node: Node) -> bool:
    """Whether the node stands for a cluster or a service, by a label or a taint: ``type: virtual-kubelet``,
    ``virtual-kubelet.io/provider``, ``liqo.io/type: virtual-node``."""
    labels = islice(node.labels.items(), NODE_LABELS)
    texts = (*labels, *((taint.key, taint.value) for taint in node.taints))
    return any("virtual-kubelet" in text or "virtual-node" in text for pair in texts for text in pair)


def copy_of(like: Node, name: str) -> Node:
    """An empty, schedulable copy of this node, without the taints of unhealthy nodes."""
    labels = {key: name if key == HOSTNAME else text for key, text in like.labels.items()}
    taints = tuple(taint for taint in like.taints if not taint.key.startswith("node.kubernetes.io/"))
    return replace(
        like,
        name=name,
        uid=name,
        labels=labels,
        taints=taints,
        unschedulable=False,
        conditions=(),
        created=0.0,
    )
