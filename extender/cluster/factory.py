"""The demand mix that the settings expect: requests in the words of a pod's manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from extender.dialects import RequestError, request_of
from extender.objects import Container, Pod, PodSpec
from extender.quantity import QuantityError
from extender.settings import ExpectedRequest, SettingsError
from packing.demand import Mix
from packing.request import Request


def prior_of(expected: Sequence[ExpectedRequest]) -> Mix | None:
    """The mix of these requests, None without any. Raises ``SettingsError`` with the place in the list."""
    weights: Counter[Request] = Counter()
    for place, one in enumerate(expected):
        weights[_request(place, one)] += one.weight  # type: ignore[assignment]
    return Mix.of(weights) if weights else None


def _request(place: int, expected: ExpectedRequest) -> Request:
    resources = tuple(sorted(expected.resources.items()))
    spec = PodSpec((Container("", resources, resources),))
    pod = Pod("", "", spec=spec, annotations=expected.annotations, labels=expected.labels)
    try:
        request = request_of(pod)
    except (RequestError, QuantityError) as error:
        raise SettingsError(f"demand.{place}: {error}") from None
    if not request.wants_gpu:
        raise SettingsError(f"demand.{place}: asks for no GPU")
    return request
