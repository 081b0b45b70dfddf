"""The pods of a manifest as the API server would create them: by dry runs, which create nothing.

Each object is sent first, then a pod of each of its templates, by the user of the kubeconfig. Generated names
avoid conflicts with existing objects. A webhook with side effects makes the API server answer 400
(``NewDryRunUnsupportedErr`` of k8s.io/apiserver v0.37.1, pkg/admission/plugin/webhook/errors).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

from extender.k8s.job_kinds import parts_of, pod_templates
from extender.k8s.manifest import as_list, as_map, as_text
from extender.source.rest import NO_ANSWER, Refused, RestClient
from extender.source.workloads import merged
from extender.untrusted.limits import DRY_RUN_SECONDS, SNAPSHOT_OBJECT, shorten
from extender.untrusted.visible import visible

_QUERY = {"dryRun": "All", "fieldValidation": "Strict"}
_INVALID = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_HAS_SIDE_EFFECTS = "does not support dry run"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Outcome(NamedTuple):
    """The answer about one pod or pod template. ``complete``: the manifest has it as it would be created.
    ``refusal``: why it would not be, ``unknown``: why that is not known. Nothing for a pod that exists."""

    complete: bool = False
    refusal: str = ""
    unknown: str = ""


def dry_run(rest: RestClient, manifest: str, name: str) -> tuple[str, list[Outcome]]:
    """The manifest with its pods as they would be created, and the outcome for each of its pods and templates
    in order. Takes at most about ``DRY_RUN_SECONDS``. Raises ``ValueError`` with the ``name``."""
    objects, server = json.loads(merged([(name, manifest)], None))["items"], _ApiServer(rest)
    outcomes = [outcome for obj in objects for outcome in _complete(server, obj)]
    return json.dumps({"kind": "List", "items": objects}), outcomes


def _complete(server: _ApiServer, obj: dict[str, Any]) -> Iterator[Outcome]:
    version, kind, metadata = obj.get("apiVersion"), obj.get("kind"), as_map(obj.get("metadata"))
    uid, templates = metadata.get("uid"), [*pod_templates(obj, (), 1)]
    exists, is_pod = bool(uid), kind == "Pod"
    outcome = Outcome(complete=exists and not is_pod)
    if not exists and (is_pod or templates):
        uid, outcome = server.complete(obj, version, kind, metadata)
    if is_pod or not outcome.complete:
        yield from [outcome] * (1 if is_pod else len(templates))
        return
    owner = {"apiVersion": version, "kind": kind, "name": metadata.get("name"), "uid": uid}
    claims = as_list(as_map(obj.get("spec")).get("volumeClaimTemplates"))
    mounted: list[object] = [
        {"name": as_map(as_map(claim).get("metadata")).get("name"), "emptyDir": {}} for claim in claims
    ]
    parts = {id(part) for part in parts_of(obj)}
    for _, template, _ in pod_templates(obj, (), 1):
        if id(template) not in parts:
            yield Outcome(unknown="its pods are not made from a pod template")
            continue
        if mounted:
            template["spec"]["volumes"] = as_list(template["spec"].get("volumes")) + mounted
        of_pod = {"name": metadata.get("name"), "namespace": metadata.get("namespace")}
        of_pod["ownerReferences"] = [owner | {"controller": True}]
        yield server.complete(template, "v1", "Pod", {**as_map(template.get("metadata")), **of_pod})[1]


class _ApiServer:
    def __init__(self, rest: RestClient) -> None:
        self._rest, self._until = rest, time.monotonic() + DRY_RUN_SECONDS
        self._resources: dict[str, list[Any]] = {}

    def complete(
        self, part: dict[str, Any], version: object, kind: object, metadata: Mapping[str, Any]
    ) -> tuple[object, Outcome]:
        """Complete an object or template of this kind in place. Returns the UID that the object would have,
        and the outcome."""
        name = as_text(metadata.get("name") or metadata.get("generateName")).rstrip("-") or "pod"
        namespace = as_text(metadata.get("namespace")) or "default"
        named = {"generateName": f"{name}-", "name": None, "resourceVersion": None}
        sent = {**part, "apiVersion": version, "kind": kind, "metadata": {**metadata, **named}}
        path = ""
        try:
            path = self._path(as_text(version), as_text(kind), namespace)
            created = self._exchange("POST", path, sent, _QUERY)
        except Refused as refused:
            said = refused.message if path else f"the API server does not serve {kind} of {version}"
            said, is_rejected = visible(shorten(said)), bool(path) and self._is_rejected(refused, path)
            return None, Outcome(refusal=said) if is_rejected else Outcome(unknown=said)
        except NO_ANSWER:
            self._until = 0.0
            return None, Outcome(unknown="the API server did not answer in time")
        created = json.loads(json.dumps(created).replace(created["metadata"]["name"], name))
        new = {key: created["metadata"].get(key) for key in ("labels", "annotations")}
        own = as_map(part.get("metadata"))
        part |= {key: created[key] for key in part.keys() & created.keys()}
        part["metadata"] = {**own, **new}
        return created["metadata"].get("uid"), Outcome(complete=True)

    def _path(self, version: str, kind: str, namespace: str) -> str:
        root = quote(f"/apis/{version}" if "/" in version else f"/api/{version}")
        if root not in self._resources:
            self._resources[root] = as_list(self._exchange("GET", root).get("resources"))
        rows = (row for row in map(as_map, self._resources[root]) if row.get("kind") == kind)
        name = next((name for row in rows if "/" not in (name := as_text(row.get("name")))), "")
        if not name:
            raise Refused(HTTPStatus.NOT_FOUND, "")
        return f"{root}/namespaces/{quote(namespace, safe='')}/{quote(name)}"

    def _is_rejected(self, refused: Refused, path: str) -> bool:
        """Whether the API server would not create the object, whoever asks."""
        if refused.status != HTTPStatus.FORBIDDEN:
            return refused.status in _INVALID and _HAS_SIDE_EFFECTS not in refused.message
        *root, _, namespace, resource = path.split("/")
        group = root[2] if root[1] == "apis" else ""
        asked = {"verb": "create", "group": group, "resource": resource, "namespace": namespace}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        with suppress(Refused, *NO_ANSWER):
            answer = self._exchange("POST", _REVIEWS, {**review, "spec": {"resourceAttributes": asked}})
            return as_map(answer.get("status")).get("allowed") is True
        return False

    def _exchange(
        self, method: str, path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        if (within := self._until - time.monotonic()) <= 0:
            raise TimeoutError
        return self._rest.exchange(method, path, within, body, query=query, at_most=SNAPSHOT_OBJECT)
