"""What the claims of a pod ask for, and the checks that kube-scheduler makes before it looks at nodes.

Read from kube-scheduler v1.36.3, plugin ``dynamicresources`` (``validateDeviceClass``), and ``Allocate`` of
the allocator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from extender.dra.allocator import MAX_DEVICES_PER_CLAIM
from extender.dra.cel.evaluation import Unsupported
from extender.dra.device_cache import DeviceCache
from extender.dra.extended_resources import requests_for
from extender.k8s.objects import Pod
from extender.k8s.resource_api.objects import DeviceClaim
from extender.untrusted.limits import POD_CLAIMS, quoted

DeviceClaims: TypeAlias = tuple[DeviceClaim, ...]


class AllocationRefused(Exception):
    """kube-scheduler allocates nothing for the pod on any node."""


def unallocated_claims(cache: DeviceCache, pod: Pod, resources: Sequence[str] = ()) -> DeviceClaims:
    """What those claims of a pod ask for that nothing is allocated to yet.

    If there are extended ``resources``, the last claim is the one that kube-scheduler creates for them.
    Raises ``Unsupported``, ``AllocationRefused`` and ``QuantityError``.
    """
    if max(len(pod.spec.claims), len(resources)) > POD_CLAIMS:
        raise Unsupported(f"the pod has more than {POD_CLAIMS} claims or resources")
    generated = dict(pod.claims)
    names = [one.claim or generated.get(one.name, "") for one in pod.spec.claims]
    if not all(names) or len(set(names)) < len(names):
        raise Unsupported("a claim of the pod is not created yet, or listed twice")
    known = [cache.claims.get(f"{pod.namespace}/{name}") for name in names]
    found: list[DeviceClaim] = []
    for name, claim in zip(names, known, strict=True):
        if claim is None:
            raise _missing(cache, f"claim {quoted(name)}")
        if claim.allocation is None:
            if claim.devices.problem:
                raise Unsupported(f"claim {quoted(name)}: {claim.devices.problem}")
            found.append(claim.devices)
    if resources:
        classes = {name: _class_for(cache, name) for name in resources}
        found.append(DeviceClaim.of(requests_for(pod.spec, classes)))
    for devices in found:
        _validate(cache, devices)
    return tuple(found)


def _missing(cache: DeviceCache, what: str) -> Exception:
    """kube-scheduler does not try a pod before its claims and classes exist."""
    if cache.is_empty:
        return Unsupported(f"{what} is not known")
    return AllocationRefused(f"{what} does not exist")


def _class_for(cache: DeviceCache, resource: str) -> str:
    classes = cache.classes_for(resource)
    if len(classes) != 1:  # kube-scheduler takes the newest
        raise Unsupported(f"{len(classes)} device classes provide {quoted(resource)}")
    return classes[0]


def _validate(cache: DeviceCache, devices: DeviceClaim) -> None:
    for request in devices.requests:
        for sub in request.subrequests:
            if sub.device_class not in cache.classes:
                raise _missing(cache, f"device class {quoted(sub.device_class)}")
    least = sum(min((sub.count or 0 for sub in one.subrequests), default=0) for one in devices.requests)
    if least > MAX_DEVICES_PER_CLAIM:
        raise AllocationRefused(f"a claim asks for more than {MAX_DEVICES_PER_CLAIM} devices")
