"""Nodes that take no pods at present, spot nodes, and nodes that are about to be terminated.

A node takes no pods while it is cordoned (``spec.unschedulable``), or has one of these taints of the control
plane (Kubernetes, "Well-Known Labels, Annotations and Taints" and "Taints and Tolerations"). Memory pressure
is not among them: all pods that request memory tolerate it, and GPU pods do. The names of providers are
followed by their sources. A label of spot nodes also counts as the key of a taint with one of its values.
"""

from __future__ import annotations

from collections.abc import Collection

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


SPOT_LABELS = {
    # Karpenter, "Well-known labels" (karpenter.sh/docs/concepts/scheduling): spot, on-demand or reserved.
    "karpenter.sh/capacity-type": frozenset({"spot"}),
    # EKS, "Managed node groups" (docs.aws.amazon.com/eks/latest/userguide): SPOT or ON_DEMAND.
    "eks.amazonaws.com/capacityType": frozenset({"SPOT"}),
    # GKE, "Spot VMs" (cloud.google.com/kubernetes-engine/docs/concepts/spot-vms), and "Preemptible VMs".
    "cloud.google.com/gke-spot": frozenset({"true"}),
    "cloud.google.com/gke-preemptible": frozenset({"true"}),
    "cloud.google.com/gke-provisioning": frozenset({"spot", "preemptible"}),
    # A convention of self-managed nodes (kubelet_extra_args in examples of terraform-aws-modules/eks).
    "node.kubernetes.io/lifecycle": frozenset({"spot"}),
    # AKS, "Add an Azure Spot node pool" (learn.microsoft.com/azure/aks/spot-node-pool): label and taint.
    "kubernetes.azure.com/scalesetpriority": frozenset({"spot"}),
}
LEAVING_TAINTS = frozenset(
    {
        # AWS Node Termination Handler, pkg/node/node.go and "TAINT_NODE" in its Helm chart's README.
        # Its rebalance-recommendation is only a forecast: the node stays open.
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        # Karpenter, pkg/apis/v1/taints.go; before v1 karpenter.sh/disruption=disrupting.
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        # GoogleCloudPlatform/k8s-node-termination-handler; gkeNodeTerminationHandlerTaint in the next file.
        "cloud.google.com/impending-node-termination",
        # kubernetes/autoscaler, cluster-autoscaler/utils/taints/taints.go at 0af55ac5. Its
        # DeletionCandidateOfClusterAutoscaler is only a preference.
        "ToBeDeletedByClusterAutoscaler",
        # AKS, "Node auto-drain" (learn.microsoft.com/azure/aks/node-auto-drain).
        "remediator.kubernetes.azure.com/unschedulable",
        # Kubernetes, "Well-Known Labels, Annotations and Taints".
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)


_STAYS = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""Annotations of nodes (FAQ of Cluster Autoscaler; Karpenter, "Disruption", "Node-Level Controls"). Both heed
only "true" there."""


def must_stay(node: Node) -> str:
    """Why no plan empties the node, "" if one may."""
    return next((f"{name} keeps the node" for name in _STAYS if node.annotations.get(name) == "true"), "")


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
