"""The resources a pod effectively takes: containers by sum, init containers by peak, sidecars added.

The rule is kube-scheduler's (``PodRequests`` of k8s.io/component-helpers, resource/helpers.go): what runs at
the same time adds up, CPU and memory that the pod requests as a whole replace those of its containers, and
the overhead comes on top.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from extender.k8s.objects import Pairs, PodSpec
from extender.k8s.objects import peak_usage as peak_usage
from extender.k8s.quantity import QuantityError, device_count, milli, whole
from extender.untrusted.limits import PROBLEM, QUOTED, shorten


class RequestError(ValueError):
    """A pod asks for something contradictory or impossible; the text names it, fit for the pod's event.

    Whatever the text quotes of the pod, it has at most ``PROBLEM`` characters, all of them printable.
    """

    def __init__(self, text: str) -> None:
        text = shorten(text)
        super().__init__(text if text.isprintable() else text.encode("unicode_escape").decode()[:PROBLEM])


_OF_THE_POD = ("cpu", "memory")
"""What a pod may request as a whole (huge pages aside, which nothing here places by)."""


def effective(spec: PodSpec) -> dict[str, int]:
    """By resource name: CPU in milli, everything else in whole units (memory in bytes)."""
    if not spec.containers:
        raise RequestError("the pod has no containers")
    of_containers = peak_usage(spec, lambda container: _read(container.requests))
    total = Counter({**of_containers, **_as_a_whole(spec, of_containers)})
    total.update(_read(spec.overhead))
    return {name: amount for name, amount in total.items() if amount}


def _as_a_whole(spec: PodSpec, of_containers: Mapping[str, int]) -> Mapping[str, int]:
    """What the pod requests as a whole; its limit, where neither it nor a container has a request (so
    ``defaultPodRequests`` of k8s.io/kubernetes, pkg/apis/core/v1/defaults.go)."""
    requests, limits = _read(spec.requests), _read(spec.limits)
    defaults = {name: amount for name, amount in limits.items() if name not in of_containers}
    asked = {**defaults, **requests}
    return {name: asked[name] for name in _OF_THE_POD if name in asked}


def amounts(pairs: Pairs) -> defaultdict[str, int]:
    """Quantities as whole numbers, in the units of ``effective``; 0 for what is not there. Raises
    RequestError."""
    return defaultdict(int, _read(pairs))


def _read(pairs: Pairs) -> dict[str, int]:
    found = {}
    for name, text in pairs:
        try:
            if name == "cpu":
                found[name] = milli(text)
            elif name == "memory":
                found[name] = whole(text)
            elif "/" in name:  # extended resources; nothing here places by storage or huge pages
                found[name] = device_count(text)
        except QuantityError as error:
            raise RequestError(f"{shorten(name, QUOTED)}: {error}") from error
    return found
