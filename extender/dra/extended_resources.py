"""Extended resources that device classes provide (KEP-5004), converted into requests for devices.

A class provides the resource that its spec names, and one with the class's own name. Read from
``createRequestsAndMappings`` of kube-scheduler v1.36.3 (``extendeddynamicresources.go``).
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.k8s.objects import Container, PodSpec
from extender.k8s.quantity import whole
from extender.k8s.resource_api.objects import DeviceRequest, DeviceSubRequest

CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""The prefix of a class's name in the resource that every class provides."""


def class_resources(spec: PodSpec) -> tuple[str, ...]:
    """The resources that a pod requests by the names of classes. No node advertises these."""
    containers = (*spec.init_containers, *spec.containers)
    names = {name for one in containers for name, _ in one.requests if name.startswith(CLASS_PREFIX)}
    return tuple(sorted(names))


def requests_for(spec: PodSpec, classes: Mapping[str, str]) -> tuple[DeviceRequest, ...]:
    """The requests of the claim that kube-scheduler creates for the pod's extended resources.

    ``classes`` has the class of each resource. Raises ``QuantityError``.
    """
    subrequests = {
        one.name: one
        for resource, device_class in classes.items()
        for one in _subrequests(spec, resource, device_class)
    }
    return tuple(DeviceRequest(name, (subrequests[name],)) for name in sorted(subrequests))


def _subrequests(spec: PodSpec, resource: str, device_class: str) -> list[DeviceSubRequest]:
    """One for each container that keeps running, and one for the init container that needs most beyond what
    the containers after it get."""
    containers = (*spec.init_containers, *spec.containers)
    amounts = [whole(dict(one.requests).get(resource, "0")) for one in containers]
    ends = [number < len(spec.init_containers) and not one.sidecar for number, one in enumerate(containers)]
    running = [0 if ended else amount for amount, ended in zip(amounts, ends, strict=True)]
    counts = dict(enumerate(running))
    excess = {n: amounts[n] - sum(running[n:]) for n, ended in enumerate(ends) if ended}
    if excess and max(excess.values()) > 0:
        largest = max(excess, key=lambda number: excess[number])
        counts[largest] = excess[largest]
    return [
        DeviceSubRequest(_request_name(number, containers[number], resource), device_class, count=count)
        for number, count in counts.items()
        if count
    ]


def _request_name(number: int, container: Container, resource: str) -> str:
    """Requests are sorted by these names as texts: container 10 comes before container 2."""
    return f"container-{number}-request-{sum(name < resource for name, _ in container.requests)}"
