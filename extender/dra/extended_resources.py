"""Extended resources that device classes stand for (KEP-5004), turned into requests for devices.

A class stands for the resource that its spec names, and for one that has the class's own name in it. Read
from ``createRequestsAndMappings`` of kube-scheduler v1.36.3 (``extendeddynamicresources.go``).
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.k8s.objects import Container, PodSpec
from extender.k8s.quantity import whole
from extender.k8s.resource_api.objects import DeviceRequest, DeviceSubRequest

OF_CLASS = "deviceclass.resource.kubernetes.io/"
"""Before the name of a class: the resource that each class stands for."""


def by_class(spec: PodSpec) -> tuple[str, ...]:
    """The resources that a pod asks for by the names of classes, which no node advertises."""
    containers = (*spec.init_containers, *spec.containers)
    names = {name for one in containers for name, _ in one.requests if name.startswith(OF_CLASS)}
    return tuple(sorted(names))


def requests_for(spec: PodSpec, classes: Mapping[str, str]) -> tuple[DeviceRequest, ...]:
    """The requests of the claim that kube-scheduler makes for these resources, of these classes.

    Raises ``QuantityError``.
    """
    found = {
        name: wish for resource in classes for name, wish in _requests(spec, resource, classes[resource])
    }
    return tuple(DeviceRequest(name, (found[name],)) for name in sorted(found))


def _requests(spec: PodSpec, resource: str, device_class: str) -> list[tuple[str, DeviceSubRequest]]:
    """One for each container that stays, and one for what init containers need beyond those after them."""
    containers = (*spec.init_containers, *spec.containers)
    asked = [whole(dict(one.requests).get(resource, "0")) for one in containers]
    ends = [number < len(spec.init_containers) and not one.sidecar for number, one in enumerate(containers)]
    staying = [0 if ended else count for count, ended in zip(asked, ends, strict=True)]
    wanted = dict(enumerate(staying))
    beyond = {n: asked[n] - sum(staying[n:]) for n, ended in enumerate(ends) if ended}
    if beyond and max(beyond.values()) > 0:
        most = max(beyond, key=lambda number: beyond[number])
        wanted[most] = beyond[most]
    return [
        (
            name := _name(number, containers[number], resource),
            DeviceSubRequest(name, device_class, count=count),
        )
        for number, count in wanted.items()
        if count
    ]


def _name(number: int, container: Container, resource: str) -> str:
    """Requests go by their names, and these by the text: container 10 comes before container 2."""
    return f"container-{number}-request-{sum(name < resource for name, _ in container.requests)}"
