"""The pods of a manifest: its own, and one for each pod template of a workload."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from extender.k8s.job_kinds import (
    JOB_KINDS,
    KUEUE_GATE,
    KUEUE_QUEUE,
    SUSPENDED,
    count_of,
    is_suspended,
    pod_templates,
)
from extender.k8s.manifest import Unreadable, as_map, as_text
from extender.k8s.objects import Event, Node, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.k8s.resource_claims import DeviceClaim, ResourceClaimTemplateManifest
from extender.k8s.validation import Mistake, mistakes
from extender.source.errors import Unavailable
from extender.source.object_texts import Broken, documents, objects_of_manifest
from extender.untrusted.limits import KEY, LISTED_NAMES, YAML_NODES, quoted, shorten

_RAY_CLUSTERS = ("rayClusterSpec", "rayClusterConfig")
"""Fields of a RayJob and a RayService with a RayCluster's spec."""
_BETWEEN = {"deployment": "replicaset", "cronjob": "job"}
"""Kinds whose pods belong to intermediate objects, whose names begin with the name of their owner."""


class Template(NamedTuple):
    """A pod, and the workload that creates ``copies`` of it ("Job train"; "" for a bare pod).
    ``together``: number of pods of all its templates that must start together, 0 if not specified.
    ``mistakes``: why the API server would reject the object."""

    pod: Pod
    workload: str = ""
    copies: int = 1
    together: int = 0
    mistakes: tuple[Mistake, ...] = ()


def parse_pod(text: str, name: str) -> Pod:
    """The only pod or pod template of a manifest. Raises ``ValueError`` with a text that starts with
    ``name``."""
    found = parse_templates(text, name)
    if len(found) > 1:
        raise ValueError(f"{name}: has {len(found)} pods or pod templates instead of one")
    return found[0].pod


def parse_templates(text: str, name: str, complete: Container[int] = ()) -> list[Template]:
    """All pods and pod templates of a JSON or YAML manifest, at least one. ``complete``: the numbers, from 0,
    of those that are as the API server would create them.

    Raises ``ValueError``, whose text begins with ``name``.
    """
    try:
        read = documents(text, name, YAML_NODES)
    except Unavailable as error:
        raise ValueError(str(error)) from None
    objects = [obj for document in read for obj in _objects(document)]
    if found := [template for obj in objects for template in _of_object(obj, name)]:
        claims = dict[str, DeviceClaim]()
        for obj in objects:
            if as_text(obj.get("kind")) == "ResourceClaimTemplate":
                with suppress(Unreadable):
                    claim_template = ResourceClaimTemplateManifest.from_value(obj).record()
                    claims[claim_template.key] = claim_template.devices
        pods = (replace(template.pod, complete=i in complete) for i, template in enumerate(found))
        return [t._replace(pod=_with_claims(pod, claims)) for t, pod in zip(found, pods, strict=True)]
    kinds = ", ".join(sorted({as_text(obj.get("kind")) or "no kind" for obj in objects}))
    problem = f"has no pod and no pod template ({kinds or 'no object'})"
    advice = "create it, and explain the pods that it makes by their names" if kinds else "is it empty?"
    raise ValueError(shorten(f"{name}: {problem}: {advice}"))


def beside_pods(text: str, name: str) -> list[Event]:
    """The other objects of a manifest that matter to its pods, such as a PodGroup or a ResourceClaim, without
    nodes and pods: these are not in the cluster."""
    found = objects_of_manifest(text, name, YAML_NODES)
    return [Upserted(obj) for obj in found if not (obj is None or isinstance(obj, Broken | Node | Pod))]


def pods_named(pods: Iterable[Pod], name: str, kind: str = "pod") -> list[str]:
    """Keys of the pods of this name, or of the workload of this (lowercase) kind, pending pods first."""
    if kind == "pod":
        return [pod.key for pod in pods if pod.name == name]
    direct = {(kind, name)}
    if between := _BETWEEN.get(kind):
        found = {pod.owner for pod in pods if pod.owner and pod.owner.kind.lower() == between}
        direct = {(between, owner.name) for owner in found if owner.name.rpartition("-")[0] == name}
    owned = [pod for pod in pods if pod.owner and (pod.owner.kind.lower(), pod.owner.name) in direct]
    return [pod.key for pod in sorted(owned, key=lambda pod: (bool(pod.node_name), pod.key))]


def merged(texts: Iterable[tuple[str, str]], namespace: str | None) -> str:
    """The objects of several manifests, each with its name, as one; ``namespace`` for objects without one.
    Raises ``ValueError``."""
    objects = []
    for name, text in texts:
        try:
            read = documents(text, name, YAML_NODES) if text.strip() else []
        except Unavailable as error:
            raise ValueError(str(error)) from None
        objects += [obj for document in read for obj in _objects(document)]
    for obj in objects if namespace else ():
        metadata = obj["metadata"] = as_map(obj.get("metadata"))
        metadata["namespace"] = own = metadata.get("namespace") or namespace
        if own != namespace:
            raise ValueError(
                f"{quoted(as_text(metadata.get('name')))} is in namespace {quoted(str(own))}, not {namespace}"
            )
    return json.dumps({"kind": "List", "items": objects}, default=str)


def _with_claims(pod: Pod, templates: Mapping[str, DeviceClaim]) -> Pod:
    """The pod with the devices of those claims whose templates are known."""
    claims = (
        replace(claim, devices=templates.get(f"{pod.namespace}/{claim.template}"))
        for claim in pod.spec.claims
    )
    return replace(pod, spec=replace(pod.spec, claims=tuple(claims))) if templates else pod


def _objects(document: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 (any document)
    items = document
    if isinstance(document, dict):
        items = document.get("items") if as_text(document.get("kind")).endswith("List") else [document]
    yield from (obj for obj in items or () if isinstance(obj, dict)) if isinstance(items, list) else ()


def _of_object(obj: dict[str, Any], file: str) -> Iterator[Template]:
    metadata = as_map(obj.get("metadata"))
    kind = as_text(obj.get("kind"))
    name = as_text(metadata.get("name")) or as_text(metadata.get("generateName"))
    wrong = tuple(islice(mistakes(obj), LISTED_NAMES))
    if kind == "Pod":
        yield Template(_held(_pod(obj, file), obj), mistakes=wrong)
        return
    templates = [*pod_templates(obj, (), 1)]
    templates = [template for template in templates if template[-1]] or templates  # no roles with 0 replicas
    parts = [_shortened(path[-1:]) for path, *_ in templates]
    if len(set(parts)) < len(parts):
        parts = [_shortened(path) for path, *_ in templates]
    for part, (path, template, count) in zip(parts, templates, strict=True):
        part = part if len(templates) > 1 else ""
        own = as_map(template.get("metadata"))
        named = {"namespace": metadata.get("namespace"), **own, "name": "-".join(filter(None, (name, part)))}
        pod = _pod({"metadata": named, "spec": template["spec"]}, file)
        workload = " ".join(filter(None, (kind, name, part)))
        together = _together(obj, *path[-1:])
        yield Template(_held(pod, obj), shorten(workload, KEY), max(count, 1), together, wrong)


def _held(pod: Pod, obj: dict[str, Any]) -> Pod:
    """The pod with the gates of the object, unless it has its own."""
    gates = pod.gates
    if is_suspended(as_map(obj.get("spec"))):
        gates = gates or (SUSPENDED,)
    elif KUEUE_QUEUE in as_map(as_map(obj.get("metadata")).get("labels")):
        gates = gates or (KUEUE_GATE,)
    return replace(pod, gates=gates)


def _together(obj: dict[str, Any], role: str = "") -> int:
    """Number of the object's pods that it, or one of its groups, declares to start together with those of a
    role."""
    spec = as_map(obj.get("spec"))
    of_ray = next((as_map(spec[key]) for key in _RAY_CLUSTERS if key in spec), None)
    kind, spec = (as_text(obj.get("kind")), spec) if of_ray is None else ("RayCluster", of_ray)
    for known, row in JOB_KINDS.items():
        if known == kind:
            size = row.size(spec, {})
            if stage := size.stages.get(role):
                return stage.pods
            return size.minimum if size.together is None else size.together
    # A TrainJob (kubeflow/trainer, pkg/apis/trainer/v1alpha1); Volcano's Job.
    return count_of(as_map(spec.get("trainer")).get("numNodes")) or count_of(spec.get("minAvailable"))


def _shortened(path: tuple[str, ...]) -> str:
    """The part of the path that identifies the template: ``worker`` for ``workerTemplate``."""
    return "-".join(re.sub("(Template|GroupSpec|ReplicaSpecs)$", "", part) for part in path)


def _pod(manifest: dict[str, Any], file: str) -> Pod:
    try:
        pod = PodManifest.from_value(manifest).record()
    except Unreadable as error:
        name = as_text(as_map(manifest.get("metadata")).get("name"))
        raise ValueError(shorten(f"{file}: Pod {quoted(name)}: {error}")) from None
    if not pod.name:
        raise ValueError(f"{file}: a pod has no name")
    return pod
