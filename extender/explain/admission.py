"""What the API server would not accept: a pod that it refuses fits nowhere.

Sources, in k8s.io/kubernetes pkg/apis/core/validation/validation.go: ``validateContainerResourceName`` (a
name without a domain must be one of the standard ones) and ``ValidateContainerResourceRequirements`` (an
extended resource needs a limit, and its request equals it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from extender.k8s.eviction_objects import PriorityClass
from extender.k8s.objects import Container, Pod
from extender.k8s.quantity import QuantityError, exact
from extender.untrusted.limits import KEY, quoted, shorten

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})


def is_manifest(pod: Pod) -> bool:
    """Whether the pod comes from a file: the API server has not seen it."""
    return not pod.uid and pod.phase == "Pending"


def as_admitted(pod: Pod, known: PriorityClass | None) -> Pod:
    """A pod from a file with what the API server would write into it from its PriorityClass, if known.
    Source: plugin/pkg/admission/priority/admission.go of k8s.io/kubernetes."""
    if known is None or not is_manifest(pod) or pod.priority:
        return pod
    return replace(pod, priority=known.value, never_preempts=pod.never_preempts or known.never_preempts)


def admission_problem(pod: Pod) -> str:
    """Why the API server would refuse the pod, "" if this module knows no reason."""
    found = (problem for container in pod.spec.all_containers for problem in _problems(container))
    return next(found, "")


def _problems(container: Container) -> Iterator[str]:
    limits = dict(container.limits)
    for name, request in container.requests:
        shown = shorten(name, KEY)
        if "/" not in name:
            if name not in _STANDARD and not name.startswith("hugepages-"):
                near = " (did you mean nvidia.com/gpu?)" if "gpu" in name.lower() else ""
                yield f"the API server refuses it: {quoted(name)} is no resource of Kubernetes{near}"
        elif "kubernetes.io/" not in name and name not in limits:
            yield f"the API server refuses it: {shown} has a request and no limit; write it under limits"
        elif "kubernetes.io/" not in name and not _equal(request, limits[name]):
            amounts = f"the request of {shown} is {quoted(request)}, its limit {quoted(limits[name])}"
            yield f"the API server refuses it: {amounts}; both must be equal"


def _equal(one: str, other: str) -> bool:
    try:
        return one == other or exact(one) == exact(other)
    except QuantityError:
        return True  # the request says what is wrong with it
