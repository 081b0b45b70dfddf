"""The writes of the evictor: nominations, evictions, MIG layouts, Events and one ConfigMap.

Facts are from kubernetes/kubernetes v1.36.3. On an eviction (``pkg/registry/core/pod/storage/eviction.go``)
the API server checks the PodDisruptionBudget (status 429), sets the condition ``DisruptionTarget`` and
deletes the pod. For a pod with several budgets it answers 201 with a ``Status`` of failure in the body.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from extender.k8s.job_kinds import BOOSTED_AT, PRIORITY_BOOST
from extender.k8s.manifest import micro_time, unix_seconds
from extender.k8s.objects import Node, Pod, PodGroup
from extender.source.errors import WriteError, WriteUnanswered
from extender.source.rest import NO_ANSWER, Refused, RestClient, pod_path, time_to_write
from extender.untrusted.limits import EVENTS_READ, EVENTS_SIZE, PROBLEM, shorten
from extender.untrusted.visible import visible

_REPORTER = "stowage.dev/evictor"
_NOTE = 1000
"""Maximum characters of a note. The API server allows 1,024 (``pkg/apis/core/validation/events.go``)."""
_JSON_PATCH, _MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_NOMINATED_NODE = "/status/nominatedNodeName"


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An Event about a pod or a node. ``related`` is the other pod involved, ``note`` the text.

    Whoever may read the pod may read its Events: the note names no other pod, and no node but that of the pod
    (docs/security.md). ``related`` is written only within a namespace."""

    about: Pod | Node
    reason: str
    action: str
    note: str
    related: Pod | None = None


@dataclass(frozen=True, slots=True)
class Announcement:
    """An Event about a pod from another component, and its first time (Unix seconds)."""

    reason: str
    note: str
    since: float


class EvictorApi:
    """The evictor's writes, and the reads that they need. Each call runs in its own thread, and raises
    ``WriteError``. ``write_deadline``: seconds that a write may take from now; callable from any thread."""

    def __init__(self, rest: RestClient, write_deadline: Callable[[], float]) -> None:
        self._rest, self._write_deadline = rest, write_deadline
        self._config_maps: dict[tuple[str, str], dict[str, Any]] = {}  # as last read or written

    async def nominate(self, pod: Pod, node: str) -> None:
        """Set ``status.nominatedNodeName`` of the pod of this UID."""
        await self._patch_status(pod, {"op": "add", "path": _NOMINATED_NODE, "value": node})

    async def clear_nomination(self, pod: Pod, node: str) -> None:
        """Remove ``status.nominatedNodeName`` of the pod of this UID if it names this node."""
        names_it = {"op": "test", "path": _NOMINATED_NODE, "value": node}
        await self._patch_status(pod, names_it, {"op": "remove", "path": _NOMINATED_NODE})

    async def evict(self, pod: Pod, grace: int | None, *, dry_run: bool) -> None:
        """Evict the pod of this UID through the eviction API, which honors PodDisruptionBudgets.

        ``grace``: grace period in seconds, None for the pod's own. Status 429: a budget forbids it for now.
        """
        options: dict[str, object] = {"preconditions": {"uid": pod.uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        query = {"dryRun": "All"} if dry_run else None
        answer = await self._write("POST", f"{pod_path(pod)}/eviction", body, query=query)
        if answer.get("kind") == "Status" and answer.get("status") == "Failure":
            raise WriteError(shorten(str(answer.get("message")), PROBLEM), int(answer.get("code") or 500))

    async def annotate_node(self, node: Node, name: str, text: str | None, labels: Mapping[str, str]) -> None:
        """Set an annotation of the node of this UID (None removes it), and labels that it already has. If the
        annotation exists, neither it nor the labels may have changed since they were read."""
        path, known = f"/api/v1/nodes/{quote(node.name, safe='')}", node.annotations.get(name)
        if known is None and not labels:  # works without any annotations, too
            metadata = {"uid": node.uid, "annotations": {name: text}}
            await self._write("PATCH", path, {"metadata": metadata}, content_type=_MERGE_PATCH)
            return
        at = f"/metadata/annotations/{_pointer(name)}"
        patch: list[dict[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": node.uid}]
        patch.append({"op": "test", "path": at, "value": known})
        patch.append(
            {"op": "remove", "path": at} if text is None else {"op": "add", "path": at, "value": text}
        )
        for label, value in labels.items():
            at = f"/metadata/labels/{_pointer(label)}"
            patch.append({"op": "test", "path": at, "value": node.labels.get(label)})
            patch.append({"op": "replace", "path": at, "value": value})
        await self._write("PATCH", path, patch, content_type=_JSON_PATCH)

    async def boost(self, workload: PodGroup, boost: int, version: str) -> None:
        """Set Kueue's priority boost of a Workload, 0 to remove it. ``version``: only if this is still its
        resourceVersion, "" in any case."""
        namespace, name = (quote(part, safe="") for part in (workload.namespace, workload.name))
        notes = {PRIORITY_BOOST: str(boost) if boost else None, BOOSTED_AT: micro_time()}
        metadata = {"annotations": notes} | ({"resourceVersion": version} if version else {})
        path = f"{_KUEUE}/namespaces/{namespace}/workloads/{name}"
        await self._write("PATCH", path, {"metadata": metadata}, content_type=_MERGE_PATCH)

    async def workload_priorities(self) -> frozenset[int]:
        """The values of Kueue's WorkloadPriorityClasses."""
        answer = await self._read(f"{_KUEUE}/workloadpriorityclasses", at_most=EVENTS_SIZE)
        try:
            return frozenset(int(item["value"]) for item in answer["items"])
        except (KeyError, TypeError, ValueError) as error:
            raise _unanswered(error) from error

    async def write_event(self, event: ObjectEvent) -> None:
        """Create an Event in the pod's namespace, or in ``default`` if it is about a node."""
        about = event.about
        other = event.related
        is_known = other is not None and isinstance(about, Pod) and other.namespace == about.namespace
        related = {"related": _reference(other)} if other and is_known else {}
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about.name}-", "namespace": _namespace(about)},
            "eventTime": micro_time(),
            "type": "Normal",
            "reason": event.reason,
            "action": event.action,
            "note": shorten(visible(event.note), _NOTE),
            "regarding": _reference(about),
            "reportingController": _REPORTER,
            "reportingInstance": socket.gethostname()[:128] or "stowage",
        }
        await self._write("POST", _events_path(about), body | related)

    async def events_about(self, pod: Pod) -> Sequence[Announcement]:
        """The Events about the pod of this UID, at most ``EVENTS_READ``."""
        query = {"fieldSelector": f"regarding.uid={pod.uid}", "limit": str(EVENTS_READ)}
        answer = await self._read(_events_path(pod), query=query, at_most=EVENTS_SIZE)
        try:
            return [
                Announcement(
                    str(item.get("reason") or ""),
                    str(item.get("note") or ""),
                    unix_seconds((item.get("metadata") or {}).get("creationTimestamp")),
                )
                for item in answer["items"][:EVENTS_READ]
            ]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _unanswered(error) from error

    async def read_config_map(self, namespace: str, name: str) -> Mapping[str, str]:
        """The data of a ConfigMap. Remembers its version for ``write_config_map``."""
        found = self._config_maps[namespace, name] = await self._read(_config_map_path(namespace, name))
        data = found.get("data") or {}
        return {str(key): str(text) for key, text in data.items()} if isinstance(data, dict) else {}

    async def write_config_map(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """Replace the data of a ConfigMap, unless it has changed since it was last read or written."""
        known = self._config_maps.pop((namespace, name), None)
        if known is None:
            raise WriteError("the ConfigMap must be read before it is written")
        # Because of its resource version, the server refuses the update if the object has changed since.
        changed = known | {"data": dict(data)}
        written = await self._write("PUT", _config_map_path(namespace, name), changed)
        self._config_maps[namespace, name] = written

    async def _patch_status(self, pod: Pod, *operations: Mapping[str, str]) -> None:
        """Send a patch that the API server refuses if the pod has another UID."""
        patch = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}, *operations]
        await self._write("PATCH", f"{pod_path(pod)}/status", patch, content_type=_JSON_PATCH)

    async def _write(self, method: str, path: str, body: object, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        until = time.monotonic() + self._rest.timeouts.bind

        def write() -> dict[str, Any]:
            within = time_to_write(self._write_deadline, until, WriteError)
            return self._exchange(method, path, within, body, **more)

        return await asyncio.to_thread(write)

    async def _read(self, path: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        return await asyncio.to_thread(self._exchange, "GET", path, self._rest.timeouts.bind, **more)

    def _exchange(self, *request: Any, **more: Any) -> dict[str, Any]:  # noqa: ANN401 (of ``exchange``)
        try:
            return self._rest.exchange(*request, **more)
        except Refused as refused:
            kind = WriteUnanswered if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR else WriteError
            raise kind(shorten(refused.message, PROBLEM), refused.status) from None
        except NO_ANSWER as error:
            raise _unanswered(error) from error


def _unanswered(error: Exception) -> WriteUnanswered:
    text = f"no valid answer from the API server: {error}"
    return WriteUnanswered(shorten(text, PROBLEM), HTTPStatus.BAD_GATEWAY)


def _reference(about: Pod | Node) -> dict[str, str]:
    named = {"apiVersion": "v1", "kind": about.kind, "name": about.name, "uid": about.uid}
    return named | ({"namespace": about.namespace} if isinstance(about, Pod) else {})


def _namespace(about: Pod | Node) -> str:
    return about.namespace if isinstance(about, Pod) else "default"


def _events_path(about: Pod | Node) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{quote(_namespace(about), safe='')}/events"


def _pointer(key: str) -> str:
    """A key as a part of a path (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _config_map_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
