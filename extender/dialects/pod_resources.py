"""The resources that a pod effectively requests, over all its containers.

The rule is kube-scheduler's (``PodRequests`` of k8s.io/component-helpers, resource/helpers.go): containers
and sidecars add up, init containers count by their peak, pod-level CPU and memory requests replace those of
the containers, and the overhead is added.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import TypeAlias

from extender.dialects.shared_gpus import is_gpu_resource
from extender.k8s.manifest import Pairs
from extender.k8s.objects import PodSpec, peak_usage
from extender.k8s.quantity import QuantityError, device_count, milli, whole
from extender.untrusted.limits import PROBLEM, QUOTED, shorten


class RequestError(ValueError):
    """A contradictory or impossible request of a pod. The text goes into the pod's event.

    The text has at most ``PROBLEM`` characters, all of them printable, whatever it quotes from the pod.
    """

    def __init__(self, text: str) -> None:
        text = shorten(text)
        super().__init__(text if text.isprintable() else text.encode("unicode_escape").decode()[:PROBLEM])


Amounts: TypeAlias = Mapping[str, int]
"""By resource: CPU in milli, all others in whole units (memory in bytes)."""


def effective_requests(spec: PodSpec) -> dict[str, int]:
    """The pod's requests, without zeros. Raises RequestError."""
    if not spec.containers:
        raise RequestError("the pod has no containers")
    of_containers = peak_usage(spec, lambda container: parse_quantities(container.requests))
    total = Counter({**of_containers, **_pod_level_requests(spec, of_containers)})
    total.update(parse_quantities(spec.overhead))
    return {name: amount for name, amount in total.items() if amount}


_POD_LEVEL_RESOURCES = ("cpu", "memory")
"""Resources that a pod may request at pod level. Huge pages are omitted: Stowage does not place by them."""


def _pod_level_requests(spec: PodSpec, of_containers: Amounts) -> Amounts:
    """The pod-level requests. A pod-level limit counts if neither the pod nor a container has a request
    (``defaultPodRequests`` of k8s.io/kubernetes, pkg/apis/core/v1/defaults.go)."""
    requests, limits = parse_quantities(spec.requests), parse_quantities(spec.limits)
    defaults = {name: amount for name, amount in limits.items() if name not in of_containers}
    amounts = {**defaults, **requests}
    return {name: amounts[name] for name in _POD_LEVEL_RESOURCES if name in amounts}


def requested_devices(resources: Amounts) -> tuple[tuple[str, int], ...]:
    """The counted devices among a pod's effective requests: (resource, count), sorted by resource.

    The node determines what a device is: ``nvidia.com/gpu`` is a whole GPU, a replica of a shared GPU, or a
    MIG instance under the single strategy (NVIDIA/k8s-device-plugin, README, "Shared access to GPUs" and the
    MIG strategies).
    """
    return tuple(sorted((name, n) for name, n in resources.items() if n and is_gpu_resource(name)))


def max_per_container(spec: PodSpec, resources: Collection[str]) -> int:
    """The maximum number of devices of one of these resources that a single container requests, at least
    1."""
    requests = [parse_quantities(container.requests) for container in spec.all_containers]
    return max((amounts[name] for amounts in requests for name in resources), default=1) or 1


def parse_quantities(pairs: Pairs) -> defaultdict[str, int]:
    """The ``Amounts`` of these quantities; 0 for an absent resource. Raises RequestError.

    Storage and huge pages are omitted: Stowage does not place by them.
    """
    amounts: defaultdict[str, int] = defaultdict(int)
    for name, text in pairs:
        try:
            if name == "cpu":
                amounts[name] = milli(text)
            elif name == "memory":
                amounts[name] = whole(text)
            elif "/" in name:  # an extended resource
                amounts[name] = device_count(text)
        except QuantityError as error:
            raise RequestError(f"{shorten(name, QUOTED)}: {error}") from error
    return amounts
