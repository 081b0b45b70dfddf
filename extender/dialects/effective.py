"""The resources a pod effectively takes: containers by sum, init containers by peak, sidecars added.

The rule is kube-scheduler's (k8s.io/component-helpers, resource/helpers.go): an init container runs alone
but for the sidecars started before it; containers run together with all sidecars; the pod takes the larger
of both, plus its overhead. Pod-level resources replace what they name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from extender.objects import Container, Pairs, PodSpec
from extender.quantity import QuantityError, mib, milli, whole


class RequestError(ValueError):
    """A pod asks for something contradictory or impossible; the text names it, fit for the pod's event."""


def effective(spec: PodSpec) -> dict[str, int]:
    """By resource name: CPU in milli, memory in MiB (rounded up), everything else in whole units."""
    if not spec.containers:
        raise RequestError("the pod has no containers")
    total = over_lifetime(spec, lambda container: amounts(container.requests)) + amounts(spec.overhead)
    return dict(total) | dict(amounts(spec.requests) + amounts(spec.overhead) if spec.requests else {})


def over_lifetime(spec: PodSpec, of: Callable[[Container], Counter[str]]) -> Counter[str]:
    """The most that is in use at once over a pod's life, by name, if a container uses ``of(container)``."""
    sidecars: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in spec.init_containers:
        asked = of(container)
        if container.sidecar:
            sidecars += asked
        peak |= sidecars if container.sidecar else sidecars + asked
    return sum(map(of, spec.containers), sidecars) | peak


def amounts(pairs: Pairs) -> Counter[str]:
    """Quantities as whole numbers, in the units of ``effective``. Raises RequestError."""
    return Counter(dict(_read(pairs)))


def _read(pairs: Pairs) -> Iterable[tuple[str, int]]:
    for name, text in pairs:
        try:
            if name == "cpu":
                yield name, milli(text)
            elif name == "memory":
                yield name, mib(text)
            elif "/" in name:  # extended resources; nothing here places by storage or huge pages
                yield name, whole(text)
        except QuantityError as error:
            raise RequestError(f"{name}: {error}") from error
