"""Signs of unhealthy GPUs other than the device plugin's: conditions, labels and taints of a node.

A sign does not identify the unhealthy GPU. So a node with a sign accepts no new pods, unless the register of
its sharing system identifies the unhealthy GPUs. A condition with the status ``Unknown`` is not a sign, nor
is a taint with the effect ``PreferNoSchedule``.

Clusters choose their own names for the conditions of node-problem-detector's custom plugins
(kubernetes/node-problem-detector, docs/custom_plugin_monitor.md) and for NVSentinel's taints (its
docs/INTEGRATIONS.md). So a name that is not in ``data/gpu-health.json`` is judged by its words. A name about
GPUs and a fault is a sign if it is true; a name about GPUs that are ready, or about a passed check, is a sign
if it is false. A name whose last word is a setting (``gpu-failover-group``, ``gpu-error-policy``) is not one.

Omitted: ``metricsexporter.amd.com.gpu.<id>.state``, because AMD's device plugin removes such a GPU from
``allocatable`` itself (instinct.docs.amd.com, gpu-operator/metrics/health); and labels and taints that are
not about GPUs (``alibabacloud.com/node-needrepair``), because kube-scheduler handles them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import islice

from extender.data import facts
from extender.k8s.objects import Node
from extender.untrusted.limits import KEY, NODE_LABELS, quoted

IGNORE_LABEL = "stowage.dev/ignore-gpu-health"
"""On a node with this label set to "true", all signs are ignored."""

IF_TRUE, IF_FALSE, NEVER = "True", "False", ""
"""The status that makes a condition a sign: for conditions about faults, about readiness, about neither."""
_KNOWN = facts("gpu-health")
CONDITIONS: Mapping[str, str] = {
    type: known["unhealthy_if"] for known in _KNOWN["conditions"] for type in known["types"]
}
"""Types of conditions, with the status that makes them a sign."""
LABELS: Mapping[str, list[str]] = {known["label"]: known["unhealthy"] for known in _KNOWN["labels"]}
"""Labels, with the values that make them a sign."""

_BOUNDARY = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])(?![A-Z]s(?![a-z]))|[^A-Za-z0-9]+"  # not in GPUs, XIDs
)
"""Boundaries between the words of a name: ``GPUXidError`` and ``gpu.xid_error`` have the same words."""
_XID = r"(?:(?<![a-z])|(?<=gpu)|(?<=nvidia))s?xids?(?![a-z])"
_ABOUT_GPUS = re.compile(rf"gpu|nvidia|nv-?link|nv-?switch|accelerat|{_XID}")
_FAULT = re.compile(
    r"error|err$|fail(?!-?over)|(?<!de)fault|(?<!non)(?<!non-)fatal|lost|missing|unhealthy|corrupt|problem|fallen|"
    r"(?<!cool)down(?![a-z])|inactive|retired|broken|disconnect|mismatch|degraded|unavailable|not-?ready|"
    rf"{_XID}"
)
_READY = re.compile(r"(?<!not-)(?<![a-z])(ready|healthy|health|ok|available|pass|passed|succeeded)$")
_NO = re.compile(r"(?<![a-z])no-")
_SETTING = re.compile(r"(?<![a-z])(group|domain|policy|profile|config)$")
_APPLICATION_XIDS = re.compile(r"(?<![a-z])xid-?(13|31|43|45|68|109)(?!\d)")
"""Xids caused by applications: NVIDIA's device plugin ignores them (k8s-device-plugin, internal/rm)."""
_NO_FAULT = frozenset({"false", "0", "no", "none", "ok", "healthy", "ready"})
_NOT_READY = frozenset(
    {"false", "0", "no", "unhealthy", "not-ready", "notready", "bad", "failed", "error", "critical"}
)


def is_gpu_condition(condition: str) -> bool:
    """Whether a condition of this type can be a sign."""
    return len(condition) <= KEY and _unhealthy_status(condition) != NEVER


def unhealthy_gpu_sign(node: Node, no_signs: Collection[str] = ()) -> str:
    """The first sign of an unhealthy GPU on the node, as text; "" for none. ``no_signs``: conditions that say
    something else.

    Only the first ``limits.NODE_LABELS`` labels are searched for words.
    """
    if node.labels.get(IGNORE_LABEL) == "true":
        return ""
    for condition, status in (entry for entry in node.conditions if entry[0] not in no_signs):
        if is_gpu_condition(condition) and status == _unhealthy_status(condition):
            return f"condition {quoted(condition)} is {status}"
    for key, unhealthy_values in LABELS.items():
        if (value := node.labels.get(key)) in unhealthy_values:
            return f"label {key} is {value}"
    for key, value in islice(node.labels.items(), NODE_LABELS):
        if key not in LABELS and _is_sign(key, value):
            return f"label {quoted(key)} is {quoted(value)}"
    for taint in node.taints:
        if taint.blocks_scheduling and _is_sign(taint.key, taint.value):
            return f"taint {quoted(taint.key)} is {quoted(taint.value)}"
    return ""


def _is_sign(key: str, value: str) -> bool:
    if len(key) > KEY or key.startswith("stowage.dev/"):
        return False
    unhealthy_status = _unhealthy_status_by_words(key)
    if unhealthy_status == IF_TRUE:
        return value.lower() not in _NO_FAULT
    return unhealthy_status == IF_FALSE and value.lower() in _NOT_READY


def _unhealthy_status(condition: str) -> str:
    known = CONDITIONS.get(condition)
    return _unhealthy_status_by_words(condition) if known is None else known


@lru_cache(maxsize=4096)
def _unhealthy_status_by_words(name: str) -> str:
    words = _BOUNDARY.sub("-", name).lower()
    if not _ABOUT_GPUS.search(words) or _APPLICATION_XIDS.search(words) or _SETTING.search(words):
        return NEVER
    if _READY.search(words):
        return IF_FALSE
    if not _FAULT.search(words):
        return NEVER
    return IF_FALSE if _NO.search(words) else IF_TRUE
