"""Blocking requests about single pods: bind, read one, list those of a node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import quote

from pydantic import ValidationError

from extender.k8s.objects import Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.source.interface import BindConflict, BindError, PodNotFound, Unreachable
from extender.source.list_watch import ListWatch, ProtocolError
from extender.source.rest import NO_ANSWER, Refused, RestClient, time_to_write
from extender.source.watched_kinds import WATCHED_KINDS


class PodsApi:
    """Each call blocks its thread. ``write_deadline``: the seconds that a write may take from now."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self.write_deadline: Callable[[], float] = lambda: math.inf

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], until: float) -> None:
        """Create the pod's Binding before ``until`` (monotonic seconds). Raises ``BindError``."""
        metadata = {"name": pod.name, "namespace": pod.namespace, "annotations": dict(annotations)}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | ({"uid": pod.uid} if pod.uid else {}),  # precondition: exactly this pod
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        within = time_to_write(self.write_deadline, until, BindError)
        try:
            self._rest.exchange("POST", f"{pod_path(pod)}/binding", within, body)
        except Refused as refused:
            raise _bind_error(refused.status)(refused.message) from None
        except NO_ANSWER as error:
            raise Unreachable(f"the API server did not answer: {error}") from error

    def look_up(self, pod: Pod) -> Pod | None:
        """The pod of this name, None if there is none. Raises ``Unreachable``."""
        try:
            found = self._rest.get(pod_path(pod), self._rest.timeouts.page)
            return PodManifest.model_validate_json(found).record()
        except Refused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise Unreachable(f"the pod cannot be read: {refused.message}") from None
        except (*NO_ANSWER, ValidationError) as error:
            raise Unreachable(f"the API server did not answer: {error}") from error

    def pods_on(self, node: str) -> list[Pod]:
        """The pods of a node. Raises ``Unreachable``."""
        pods = WATCHED_KINDS["Pod"]
        query = {"fieldSelector": f"spec.nodeName={node}"}
        try:
            events = ListWatch(pods).page(self._rest.get(pods.path, self._rest.timeouts.bind, query))
        except (*NO_ANSWER, Refused, ProtocolError) as error:
            raise Unreachable(f"the pods of the node cannot be read: {error}") from error
        return [event.obj for event in events if isinstance(event, Upserted) and isinstance(event.obj, Pod)]


def pod_path(pod: Pod) -> str:
    """The path of a pod in the API."""
    return f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"


def _bind_error(status: int) -> type[BindError]:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # the write may have happened or not
        return Unreachable
    if status == HTTPStatus.CONFLICT:
        return BindConflict
    return PodNotFound if status == HTTPStatus.NOT_FOUND else BindError
