"""The words by which a pod protects itself from eviction: labels and annotations of other systems.

Words that cannot be read protect. A pod that has not started (``started`` is 0) has lost nothing, so only a
protection without an end, or one that a start would begin, keeps it.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from extender.k8s.objects import Pod
from extender.k8s.quantity import DurationError, seconds

_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
_PREEMPTIBILITY = "kai.scheduler/preemptibility"
_PREEMPTABLE = "volcano.sh/preemptable"
_COOLDOWN = "volcano.sh/cooldown-time"
PROTECTING_WORDS = frozenset({_SAFE_TO_EVICT, _DO_NOT_DISRUPT, _PREEMPTIBILITY, _PREEMPTABLE, _COOLDOWN})
# As Go's strconv.ParseBool reads them.
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")


class WhyNot(StrEnum):
    """Why a pod may not be evicted for another one. Explanations are grouped by these texts."""

    NEVER = "the pod's preemptionPolicy is Never"
    PRIORITY = "not of lower priority"
    QUEUE = "its queue may not be preempted by the pod's queue"
    MIN_RUNTIME = "below its minimum runtime"
    SAME_GANG = "it belongs to the pod's own job or gang"
    SYSTEM = "it is critical for the cluster"
    PINNED = "it is a static pod or belongs to a DaemonSet"
    KUEUE = "Kueue manages it and evicts it itself"
    TOLERATION = "its PriorityClass tolerates preemption by this priority"
    SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict forbids it"
    DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt forbids it"
    PREEMPTIBILITY = "kai.scheduler/preemptibility forbids it"
    GANG_MINIMUM = "kai.scheduler/preemptibility protects the minimum of its gang"
    PREEMPTABLE = "volcano.sh/preemptable forbids it"
    COOLDOWN = "in its volcano.sh/cooldown-time"
    UNREADABLE = "its labels and annotations cannot be read completely"
    SHIELDED = "its job lost a pod a short time ago"
    HOURLY_BOUND = "its queue has lost as many pods within an hour as it may"


class Protection(NamedTuple):
    """Why a pod may not be evicted: ``reason`` until ``until`` (Unix seconds; ``inf``: always), None for no
    reason. ``keeps_minimum``: the gang of the pod must keep its minimum, members beyond it may go."""

    reason: WhyNot | None = None
    until: float = -math.inf
    keeps_minimum: bool = False


NO_PROTECTION = Protection()


def protection_of(pod: Pod) -> Protection:
    """The protection by the pod's own words that lasts longest."""
    if pod.problem or not PROTECTING_WORDS.isdisjoint(pod.unreadable):
        return Protection(WhyNot.UNREADABLE, math.inf)
    if PROTECTING_WORDS.isdisjoint(pod.labels) and PROTECTING_WORDS.isdisjoint(pod.annotations):
        return NO_PROTECTION
    found = [_safe_to_evict(pod), _do_not_disrupt(pod), _preemptible(pod), _preemptable(pod), _cooldown(pod)]
    longest = max(found, key=lambda one: one.until)
    return longest._replace(keeps_minimum=any(one.keeps_minimum for one in found))


def _forbidden(reason: WhyNot, until: float = math.inf) -> Protection:
    return Protection(reason, until)


def _safe_to_evict(pod: Pod) -> Protection:
    """kubernetes/autoscaler, cluster-autoscaler/FAQ.md: an annotation; "false" forbids the eviction."""
    text = pod.annotations.get(_SAFE_TO_EVICT, "true")
    return NO_PROTECTION if text in _TRUE else _forbidden(WhyNot.SAFE_TO_EVICT)


def declares_movable(pod: Pod) -> bool:
    """Whether the pod says that it may leave its node although it has local data (as above)."""
    return pod.annotations.get(_SAFE_TO_EVICT) in _TRUE


def _do_not_disrupt(pod: Pod) -> Protection:
    """karpenter.sh/docs/concepts/disruption: an annotation, "true" or a time after the pod's start."""
    text = pod.annotations.get(_DO_NOT_DISRUPT, "false")
    if text in _FALSE:
        return NO_PROTECTION
    try:
        until = pod.started + seconds(text) if pod.started else math.inf
    except DurationError:
        until = math.inf
    return _forbidden(WhyNot.DO_NOT_DISRUPT, until)


def _preemptible(pod: Pod) -> Protection:
    """KAI, docs/developer/designs/priority-preemptibility-separation and semi-preemptible: a label."""
    text = pod.labels.get(_PREEMPTIBILITY, "preemptible")
    if text == "semi-preemptible":
        return Protection(keeps_minimum=True)
    return NO_PROTECTION if text == "preemptible" else _forbidden(WhyNot.PREEMPTIBILITY)


def _preemptable(pod: Pod) -> Protection:
    """Volcano, ``GetPodPreemptable`` in pkg/scheduler/api/pod_info.go: the annotation, then the label."""
    text = pod.annotations.get(_PREEMPTABLE, pod.labels.get(_PREEMPTABLE, "true"))
    return NO_PROTECTION if text in _TRUE else _forbidden(WhyNot.PREEMPTABLE)


def _cooldown(pod: Pod) -> Protection:
    """Volcano, pkg/scheduler/plugins/cdp: the label, then the annotation; only running pods are protected.

    There the time begins when the pod is scheduled, here when kubelet accepts it, moments later.
    """
    text = pod.labels.get(_COOLDOWN, pod.annotations.get(_COOLDOWN))
    if text is None:
        return NO_PROTECTION
    try:
        duration = seconds(text)
    except DurationError:
        return _forbidden(WhyNot.COOLDOWN)
    running = pod.started and pod.phase == "Running"
    return _forbidden(WhyNot.COOLDOWN, pod.started + duration) if running else NO_PROTECTION


def managed_by_kueue(pod: Pod) -> bool:
    """Whether Kueue has admitted the pod or its job.

    Sources: kubernetes-sigs/kueue pkg/constants (``ManagedByKueueLabelKey`` on plain pods, ``PodSetLabel`` in
    the pods of started jobs), apis/kueue/v1beta2/topology_types.go (``WorkloadAnnotation``).
    """
    labels = pod.labels
    return (
        labels.get("kueue.x-k8s.io/managed") == "true"
        or "kueue.x-k8s.io/podset" in labels
        or "kueue.x-k8s.io/workload" in pod.annotations
    )
