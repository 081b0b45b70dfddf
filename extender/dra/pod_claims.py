"""A pod's requests for devices, in claims or as extended resources that device classes provide (KEP-5004).

Includes kube-scheduler's checks before it considers nodes. Source: kube-scheduler v1.36.3, plugin
``dynamicresources`` (``validateDeviceClass``, and ``createRequestsAndMappings`` of
``extendeddynamicresources.go``), and ``Allocate`` of the allocator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, get_args

from extender.dra.allocator import MAX_DEVICES_PER_CLAIM
from extender.dra.cel.program import Unsupported
from extender.dra.device_cache import DeviceCache
from extender.k8s.objects import Pod, PodClaim, PodSpec
from extender.k8s.quantity import whole
from extender.k8s.resource_claims import DeviceClaim, DeviceRequest, DeviceSubRequest, ResourceClaim
from extender.k8s.resource_slices import DeviceTaintRuleKind, NodeScope
from extender.untrusted.limits import POD_CLAIMS, quoted

CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of a class's name in the implicit resource of every class."""
_RULES = frozenset({"DeviceClass", *get_args(DeviceTaintRuleKind)})

DeviceClaims: TypeAlias = tuple[DeviceClaim, ...]


class AllocationRefused(Exception):
    """kube-scheduler allocates nothing for the pod on any node."""


def unallocated_claims(cache: DeviceCache, pod: Pod, resources: Sequence[str] = ()) -> DeviceClaims:
    """The requests of the pod's claims that are not allocated yet.

    With extended ``resources``, the last claim is the one that kube-scheduler creates for them.
    Raises ``Unsupported``, ``AllocationRefused`` and ``QuantityError``.
    """
    if max(len(pod.spec.claims), len(resources)) > POD_CLAIMS:
        raise Unsupported(f"the pod has more than {POD_CLAIMS} claims or resources")
    found = to_be_made(cache, pod)
    names = [name for name in _claim_names(pod) if name]
    if len(set(names)) + len(found) < len(pod.spec.claims):
        raise Unsupported("a claim of the pod is not created yet, or listed twice")
    for name in names:
        if (claim := cache.claims.get(f"{pod.namespace}/{name}")) is None:
            raise _missing(cache, f"claim {quoted(name)}")
        _check_usable(claim, pod)
        if claim.allocation is None:
            found.append(claim.devices)
        elif claim.available_on is None:
            raise Unsupported(f"claim {quoted(name)}: {claim.problem}")
    if resources:
        classes = {name: _class_for(cache, name) for name in resources}
        found.append(DeviceClaim(requests_for(pod.spec, classes)).interned())
    for devices in found:
        if devices.problem:
            raise Unsupported(f"a claim of the pod: {devices.problem}")
        _validate(cache, devices)
    return tuple(found)


def to_be_made(cache: DeviceCache, pod: Pod) -> list[DeviceClaim]:
    """The requests of claims that are not created yet and whose templates are known."""
    made = dict(pod.claims)
    entries = [entry for entry in pod.spec.claims if not (entry.claim or made.get(entry.name))]
    return [devices for entry in entries if (devices := devices_asked(cache, pod, entry))]


def devices_asked(cache: DeviceCache, pod: Pod, entry: PodClaim) -> DeviceClaim | None:
    """The requests of one of the pod's claims; None if neither the claim nor its template is known."""
    name = entry.claim or dict(pod.claims).get(entry.name, "")
    if claim := cache.claims.get(f"{pod.namespace}/{name}"):
        return claim.devices
    template = cache.templates.get(f"{pod.namespace}/{entry.template}")
    return entry.devices or (template.devices if template else None)


def _check_usable(claim: ResourceClaim, pod: Pod) -> None:
    """The checks of the plugin's ``PreEnqueue``."""
    if claim.deleting:
        raise AllocationRefused(f"claim {quoted(claim.name)} is being deleted")
    if claim.made_for and claim.name in dict(pod.claims).values() and claim.made_for != pod.uid:
        raise AllocationRefused(f"claim {quoted(claim.name)} was created for another pod")


def allocated_on(cache: DeviceCache, pod: Pod) -> tuple[NodeScope, ...]:
    """The nodes of each allocated claim of the pod, which can run only on the nodes common to all."""
    claims = (cache.claims.get(f"{pod.namespace}/{name}") for name in _claim_names(pod)[:POD_CLAIMS])
    return tuple(c.available_on for c in claims if c and c.allocation is not None and c.available_on)


def _claim_names(pod: Pod) -> list[str]:
    generated = dict(pod.claims)
    return [entry.claim or generated.get(entry.name, "") for entry in pod.spec.claims]


def _missing(cache: DeviceCache, what: str) -> Exception:
    """kube-scheduler does not attempt a pod before its claims and classes exist."""
    if cache.is_empty:
        return Unsupported(f"{what} is not known")
    return AllocationRefused(f"{what} does not exist")


def _class_for(cache: DeviceCache, resource: str) -> str:
    if resource.startswith(CLASS_PREFIX):
        name = resource.removeprefix(CLASS_PREFIX)
        classes = [name] if name in cache.classes else []
    else:
        classes = [c.name for c in cache.classes.values() if c.extended_resource == resource]
    if len(classes) != 1:  # kube-scheduler uses the newest
        raise Unsupported(f"{len(classes)} device classes provide {quoted(resource)}")
    return classes[0]


def _validate(cache: DeviceCache, devices: DeviceClaim) -> None:
    if not _RULES.isdisjoint(cache.unlisted):
        raise Unsupported("device classes or DeviceTaintRules cannot be listed")
    for request in devices.requests:
        for sub in request.subrequests:
            if sub.device_class not in cache.classes:
                raise _missing(cache, f"device class {quoted(sub.device_class)}")
    least = sum(min((sub.count or 0 for sub in r.subrequests), default=0) for r in devices.requests)
    if least > MAX_DEVICES_PER_CLAIM:
        raise AllocationRefused(f"a claim requests more than {MAX_DEVICES_PER_CLAIM} devices")


def class_resources(spec: PodSpec) -> tuple[str, ...]:
    """The implicit resources of classes that a pod requests. No node advertises these."""
    containers = (*spec.init_containers, *spec.containers)
    names = {name for c in containers for name, _ in c.requests if name.startswith(CLASS_PREFIX)}
    return tuple(sorted(names))


def requests_for(spec: PodSpec, classes: Mapping[str, str]) -> tuple[DeviceRequest, ...]:
    """The requests of the claim that kube-scheduler creates for the pod's extended resources.

    ``classes`` has the class of each resource. Raises ``QuantityError``.
    """
    subrequests = {
        sub.name: sub
        for resource, device_class in classes.items()
        for sub in _subrequests(spec, resource, device_class)
    }
    return tuple(DeviceRequest(name, subrequests[name]) for name in sorted(subrequests))


def _subrequests(spec: PodSpec, resource: str, device_class: str) -> list[DeviceSubRequest]:
    """One for each container that keeps running, and one for the init container with the largest excess over
    the containers after it."""
    containers = (*spec.init_containers, *spec.containers)
    amounts = [whole(dict(container.requests).get(resource, "0")) for container in containers]
    ends = [number < len(spec.init_containers) and not c.sidecar for number, c in enumerate(containers)]
    running = [0 if ended else amount for amount, ended in zip(amounts, ends, strict=True)]
    counts = dict(enumerate(running))
    excess = {n: amounts[n] - sum(running[n:]) for n, ended in enumerate(ends) if ended}
    if excess and max(excess.values()) > 0:
        largest = max(excess, key=lambda number: excess[number])
        counts[largest] = excess[largest]
    return [
        DeviceSubRequest(
            # Requests are sorted by these names as strings: container 10 precedes container 2.
            name=f"container-{number}-request-{place}",
            device_class=device_class,
            exact_count=count,
        )
        for number, count in counts.items()
        if count
        for place in [sum(name < resource for name, _ in containers[number].requests)]
    ]
