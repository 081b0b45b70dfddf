"""What is said of sick GPUs beside the device plugin: conditions, labels and taints of a node.

A sign does not say which GPU is sick. So the node takes nothing new while there is a sign, unless the
register of its GPUs says which are sick. Only what is certain counts: a condition whose status is ``Unknown``
closes no node, and neither does a taint with the effect ``PreferNoSchedule``.

Clusters choose names of their own, for the conditions of node-problem-detector's custom plugins
(kubernetes/node-problem-detector, docs/custom_plugin_monitor.md) and for NVSentinel's taints (its
docs/INTEGRATIONS.md). A name that is not in the tables counts by its words: if it speaks of GPUs and of a
fault, it is a sign where it is true; if it speaks of GPUs that are ready, it is a sign where it is false.

Left out: ``metricsexporter.amd.com.gpu.<id>.state``, for AMD's device plugin takes such a GPU out of
``allocatable`` itself (instinct.docs.amd.com, gpu-operator/metrics/health); and labels and taints that do not
speak of GPUs (``alibabacloud.com/node-needrepair``), for kube-scheduler knows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice

from extender.k8s.objects import Node
from extender.k8s.taints import Taint
from extender.untrusted.limits import KEY, NODE_LABELS, quoted

IGNORED = "stowage.dev/ignore-gpu-health"
"""A node with this label set to "true" takes pods whatever the signs say."""

SICK, WELL = "True", "False"
CONDITIONS: Mapping[str, str] = {
    # EKS node monitoring agent (aws/eks-node-monitoring-agent at 51af5494, pkg/conditions/conditions.go):
    # False for what needs a repair; the rest are events. Karpenter's repair policies name the second.
    "AcceleratedHardwareReady": WELL,
    "AcceleratorReady": WELL,
    # AKS (MicrosoftDocs/azure-aks-docs, articles/aks/gpu-health-monitoring.md, aks-managed-gpu-nodes.md; it
    # does not spell the conditions for Xids and NVLink, so there are several spellings).
    "GPUMissing": SICK,
    "GPUXIDErrors": SICK,
    "XIDErrors": SICK,
    "NVLinkStatusInactive": SICK,
    "UnhealthyNvidiaDevicePlugin": SICK,
    # GKE's device plugin (GoogleCloudPlatform/container-engine-accelerators, pull request 497). It stays
    # until the machine restarts, also when the plugin has restarted and offers the GPU again.
    "XidCriticalError": SICK,
    # NVSentinel (NVIDIA/NVSentinel at 9087c1f8, docs/INTEGRATIONS.md): True only for what is fatal.
    "GpuMemWatch": SICK,
    "GpuThermalWatch": SICK,
    "GpuPcieWatch": SICK,
    "GpuPowerWatch": SICK,
    "GpuInforomWatch": SICK,
    "GpuSmWatch": SICK,
    "GpuNvlinkWatch": SICK,
    "GpuMcuWatch": SICK,
    "GpuPmuWatch": SICK,
    "GpuDriverWatch": SICK,
    "GpuAllWatch": SICK,
    "SysLogsXIDError": SICK,
    "SysLogsSXIDError": SICK,
    "SysLogsGPUFallenOff": SICK,
    "NVSwitchFatalError": SICK,
    "NVSwitchDown": SICK,
    # The same source: warnings, and monitoring that does not work. AKS has one of the latter, too.
    "NVSwitchNonFatalError": "",
    "GpuDcgmConnectivityFailure": "",
    "GpuCpusetWatch": "",
    "UnhealthyNvidiaDCGMServices": "",
    # AMD GPU operator (ROCm/gpu-operator, "Auto Remediation of GPU nodes").
    "AMDGPUUnhealthy": SICK,
    # Nebius ("Node health checks" of Managed Kubernetes), Crusoe (autoclusters-controller-helm-charts).
    "NebiusGPUError": SICK,
    "GPUNVBandwidthUnhealthy": SICK,
    # Meta's GCM (facebookresearch/gcm, "Kubernetes deployment").
    "GcmXidErrorsProblem": SICK,
    "GcmSmiEccProblem": SICK,
    "GcmSmiDisconnectedProblem": SICK,
    "GcmDcgmiNvlinkStatusProblem": SICK,
    # Alibaba Cloud ACK ("Node auto repair"): and NvidiaXID<number>Error, by the words.
    "NvidiaDeviceLost": SICK,
    "NvidiaInfoRomCorrupted": SICK,
    "NvidiaPowerCableErr": SICK,
    "NvidiaPendingRetiredPages": SICK,
    "NvidiaRemappingRowsFailed": SICK,
    "NvidiaRemappingRowsRequireReset": SICK,
    # Tencent TKE (cloud.tencent.com/document/product/457/127503): it isolates the node for each of them.
    "GPUDeviceLost": SICK,
    "GPUDoubleBitEccError": SICK,
    "GPUHighSingleBitEccError": SICK,
    "GPUInfoROMCorrupted": SICK,
    "GPUNvlinkError": SICK,
    "GPUPCIeError": SICK,
    "GPUPendingRetiredPages": SICK,
    "GPUPowerError": SICK,
    "GPURemappingRowsError": SICK,
    "GPUTempError": SICK,
    "GPUXIDFatalError": SICK,
    "GPUXIDWarningError": SICK,
}
"""Types of conditions, and the status that says that a GPU is sick ("": none does)."""

LABELS: Mapping[str, frozenset[str]] = {
    # SageMaker HyperPod ("Resilience-related Kubernetes labels").
    "sagemaker.amazonaws.com/node-health-status": frozenset(
        {"Unschedulable", "UnschedulablePendingReplacement", "UnschedulablePendingReboot"}
    ),
    # NVSentinel (docs/runbooks/cordoned-nodes.md).
    "dgxc.nvidia.com/nvsentinel-state": frozenset(
        {
            *("quarantined", "draining", "drain-succeeded", "drain-failed"),
            *("remediating", "remediation-failed"),
        }
    ),
}
"""Labels and their values that say that a GPU is sick."""

_SUBJECT = re.compile(r"gpu|nvidia|nvlink|nvswitch|accelerat|(?<!ma)s?xid")
_FAULT = re.compile(
    r"error|err$|fail|fault|fatal|lost|missing|unhealthy|corrupt|problem|fallen|down|inactive|retired|broken|"
    r"disconnect|mismatch|degraded|unavailable|not-?ready|(?<!ma)s?xid"
)
_READY = re.compile(r"(ready|healthy|health|ok|available)$")
_OF_APPLICATIONS = re.compile(r"(?<!ma)(?<!s)xid-?(13|31|43|45|68|109)(?!\d)")
"""Xids that a program causes: NVIDIA's device plugin keeps the GPU (k8s-device-plugin, internal/rm)."""
_NO = frozenset({"false", "0", "no", "none", "ok", "healthy", "ready"})
_BAD = frozenset(
    {"false", "0", "no", "unhealthy", "not-ready", "notready", "bad", "failed", "error", "critical"}
)


def matters(condition: str) -> bool:
    """Whether a type of conditions may say that a GPU is sick."""
    return len(condition) <= KEY and bool(_status(condition))


def speak(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Those of the taints that say that a GPU is sick, and keep pods off."""
    return tuple(t for t in taints if t.effect in ("NoSchedule", "NoExecute") and _says(t.key, t.value))


def reported(node: Node) -> str:
    """The first sign that a GPU of the node is sick, in words; "" where there is none.

    The labels of the table are looked up; of the others ``limits.NODE_LABELS`` are searched for words.
    """
    if node.labels.get(IGNORED) == "true":
        return ""
    for kind, status in node.conditions:
        if matters(kind) and status == _status(kind):
            return f"condition {quoted(kind)} is {status}"
    for key, bad in LABELS.items():
        if (value := node.labels.get(key)) in bad:
            return f"label {key} is {value}"
    for key, value in islice(node.labels.items(), NODE_LABELS):
        if key not in LABELS and _says(key, value):
            return f"label {quoted(key)} is {quoted(value)}"
    for taint in speak(node.taints):
        return f"taint {quoted(taint.key)} is {quoted(taint.value)}"
    return ""


def _says(key: str, value: str) -> bool:
    """Whether a label or a taint says that a GPU is sick."""
    if len(key) > KEY or key.startswith("stowage.dev/"):
        return False
    status = _by_words(key)
    return bool(status) and (value.lower() in _BAD if status == WELL else value.lower() not in _NO)


def _status(condition: str) -> str:
    known = CONDITIONS.get(condition)
    return _by_words(condition) if known is None else known


@lru_cache(maxsize=4096)
def _by_words(name: str) -> str:
    """The status of something of this name that says that a GPU is sick, "" for none."""
    words = name.lower().replace("_", "-")
    if not _SUBJECT.search(words) or _OF_APPLICATIONS.search(words):
        return ""
    if _FAULT.search(words):
        return SICK
    return WELL if _READY.search(words) else ""
