"""The pods that a manifest makes: its pods, and one for each pod template of a workload.

A pod template is a map whose ``spec`` has ``containers``, wherever it stands: in Deployments, Jobs, CronJobs,
JobSets, RayClusters and Kubeflow's jobs alike. KServe's InferenceServices have a pod spec without a template,
or a ``model`` with resources (kserve/kserve, pkg/apis/serving/v1beta1/predictor.go), and the templates of
Argo Workflows one ``container`` or ``script`` (argoproj/argo-workflows, pkg/apis/workflow/v1alpha1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from extender.k8s.manifest import Unreadable
from extender.k8s.objects import Event, Node, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.k8s.resource_api.manifests import ResourceClaimTemplateManifest
from extender.k8s.resource_api.objects import DeviceClaim, ResourceClaimTemplate
from extender.source.errors import Unavailable
from extender.source.object_texts import Broken, documents, objects_of_manifest
from extender.untrusted.limits import KEY, YAML_NODES, quoted, shorten

SUSPENDED = "spec.suspend: true"
"""Stands among the gates of a pod whose workload makes no pods yet."""
_KUEUE_QUEUE, _KUEUE_GATE = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/admission"
"""Kueue holds what has this label until it is admitted (kubernetes-sigs/kueue, pkg/controller/constants)."""
_MOST_COPIES = 256


class Template(NamedTuple):
    """A pod, and the workload that makes so many ``copies`` of it ("Job train"; "" for a pod of its own).
    ``together``: how many pods of all its templates must start together, 0 where it does not say so."""

    pod: Pod
    workload: str = ""
    copies: int = 1
    together: int = 0


def parse_pod(text: str, name: str) -> Pod:
    """The only pod or pod template of a manifest. Raises ``ValueError``, whose text begins with ``name``."""
    found = parse_templates(text, name)
    if len(found) > 1:
        raise ValueError(f"{name}: has {len(found)} pods or pod templates instead of one")
    return found[0].pod


def parse_templates(text: str, name: str) -> list[Template]:
    """All pods and pod templates of a manifest, JSON or YAML: at least one.

    Raises ``ValueError``, whose text begins with ``name``.
    """
    try:
        read = documents(text, name, YAML_NODES)
    except Unavailable as error:
        raise ValueError(str(error)) from None
    objects = [one for document in read for one in _objects(document)]
    if found := [template for one in objects for template in _of_object(one, name)]:
        claims = {one.key: one.devices for one in _claim_templates(objects)}
        return [one._replace(pod=_with_claims(one.pod, claims)) for one in found]
    kinds = ", ".join(sorted({_text(one.get("kind")) or "no kind" for one in objects}))
    problem = f"has no pod and no pod template ({kinds or 'no object'})"
    advice = "create it, and explain the pods that it makes by their names" if kinds else "is it empty?"
    raise ValueError(shorten(f"{name}: {problem}: {advice}"))


def beside_pods(text: str, name: str) -> list[Event]:
    """The other objects of a manifest that matter to its pods, such as a PodGroup or a ResourceClaim. Nodes
    and pods do not count: they are not in the cluster."""
    found = objects_of_manifest(text, name, YAML_NODES)
    return [Upserted(one) for one in found if not (one is None or isinstance(one, Broken | Node | Pod))]


def _claim_templates(objects: Iterable[dict[str, Any]]) -> Iterator[ResourceClaimTemplate]:
    for one in objects:
        if _text(one.get("kind")) == "ResourceClaimTemplate":
            with suppress(Unreadable):
                yield ResourceClaimTemplateManifest.from_value(one).record()


def _with_claims(pod: Pod, templates: Mapping[str, DeviceClaim]) -> Pod:
    """The pod with what its claims ask for whose templates are known."""
    claims = (
        replace(one, devices=templates.get(f"{pod.namespace}/{one.template}")) for one in pod.spec.claims
    )
    return replace(pod, spec=replace(pod.spec, claims=tuple(claims))) if templates else pod


def _objects(document: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 (whatever the text holds)
    """The objects of a list, or the one object."""
    items = document
    if isinstance(document, dict):
        items = document.get("items") if _text(document.get("kind")).endswith("List") else [document]
    yield from (one for one in items or () if isinstance(one, dict)) if isinstance(items, list) else ()


def _of_object(obj: dict[str, Any], file: str) -> Iterator[Template]:
    metadata = _map(obj.get("metadata"))
    kind, name = _text(obj.get("kind")), _text(metadata.get("name")) or _text(metadata.get("generateName"))
    if kind == "Pod":
        yield Template(_held(_pod(obj, file), obj))
        return
    templates = [*_templates(obj, (), 1)]
    parts = [_shortened(path[-1:]) for path, *_ in templates]
    if len(set(parts)) < len(parts):
        parts = [_shortened(path) for path, *_ in templates]
    for part, (_, template, count) in zip(parts, templates, strict=True):
        part = part if len(templates) > 1 else ""
        own = _map(template.get("metadata"))
        named = {"namespace": metadata.get("namespace"), **own, "name": "-".join(filter(None, (name, part)))}
        pod = _pod({"metadata": named, "spec": template["spec"]}, file)
        workload = " ".join(filter(None, (kind, name, part)))
        yield Template(_held(pod, obj), shorten(workload, KEY), count, _together(obj))


def _held(pod: Pod, obj: dict[str, Any]) -> Pod:
    """The pod with what holds the object's pods back, unless it has gates of its own."""
    spec, gates = _map(obj.get("spec")), pod.gates
    if spec.get("suspend") is True or _map(spec.get("runPolicy")).get("suspend") is True:
        gates = gates or (SUSPENDED,)
    elif _KUEUE_QUEUE in _map(_map(obj.get("metadata")).get("labels")):
        gates = gates or (_KUEUE_GATE,)
    return replace(pod, gates=gates)


def _together(obj: dict[str, Any]) -> int:
    """How many of the object's pods start together as it says, or as one group of it: in a LeaderWorkerSet,
    and in jobs of Kubeflow and Volcano."""
    spec = _map(obj.get("spec"))
    policy = _map(_map(spec.get("runPolicy")).get("schedulingPolicy"))
    sizes = (
        _map(spec.get("leaderWorkerTemplate")).get("size"),
        policy.get("minAvailable"),
        spec.get("minAvailable"),
    )
    return next(filter(None, map(_number, sizes)), 0)


def _number(value: object) -> int:
    """A number of pods, 0 for what is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return max(0, min(value, _MOST_COPIES))


def _shortened(path: tuple[str, ...]) -> str:
    """What tells a template apart, as short as people say it: ``workerTemplate`` is ``worker``."""
    return "-".join(re.sub("(Template|GroupSpec|ReplicaSpecs)$", "", one) for one in path)


def _templates(
    value: object, path: tuple[str, ...], count: int
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], int]]:
    """The pod templates in a value, each with what tells it apart from others of its workload, and how many
    pods it makes; of a LeaderWorkerSet those of one group."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            names = (_text(_map(item).get(key)) for key in ("name", "groupName"))
            yield from _templates(item, (*path, next(filter(None, names), str(number))), count)
    elif isinstance(value, dict):
        if "leaderWorkerTemplate" not in value:
            count *= _number(value.get("replicas")) or _number(value.get("parallelism")) or 1
            count *= _number(value.get("numOfHosts")) or 1  # of a group of workers of Ray
        if isinstance(_map(value.get("spec")).get("containers"), list):
            yield path, value, count
        elif isinstance(value.get("containers"), list):  # a pod spec without "template", as in KServe
            yield path, {"spec": value}, count
        elif container := next(filter(_is_container, map(value.get, _ONE_CONTAINER)), None):
            yield path, {"spec": {**value, "containers": [container]}}, count
        elif resources := next(filter(None, (_gpu_resources(value.get(key)) for key in _RESOURCES)), None):
            pod = {**_map(value.get("extraPodSpec")), **value, "containers": [{"resources": resources}]}
            yield path, {"spec": pod}, count * (_number(value.get("numNodes")) or 1)
        else:
            for key, part in value.items():
                is_name = key not in _STRUCTURE and not isinstance(part, list)
                others = int("leaderTemplate" in value) if key == "workerTemplate" else 0
                copies = max(_number(value.get("size")) - others, 1) if key == "workerTemplate" else 1
                yield from _templates(part, (*path, key) if is_name else path, count * copies)


def _gpu_resources(value: object) -> dict[str, Any]:
    """What one container asks for, if that is GPUs; Dynamo calls them ``gpu``."""
    parts = {part: _map(_map(value).get(part)) for part in ("limits", "requests")}
    if not any("gpu" in name for names in parts.values() for name in names):
        return {}
    renamed = {"gpu": "nvidia.com/gpu"}
    return {part: {renamed.get(k, k): v for k, v in names.items()} for part, names in parts.items()}


def _is_container(value: object) -> bool:
    return "image" in _map(value) or "resources" in _map(value)


_ONE_CONTAINER = ("container", "script", "model")
"""Keys of one container that stands for a pod: templates of Argo Workflows, the predictor of KServe."""
_RESOURCES = ("resources", "resourcesPerNode")
"""Keys of what each pod asks for where nothing else says how it looks: NVIDIA's NIMService and Dynamo
(NVIDIA/k8s-nim-operator, ai-dynamo/dynamo), the TrainJob of kubeflow/trainer (pkg/apis/trainer)."""
_STRUCTURE = frozenset({"spec", "template", "jobTemplate"})
"""Keys that tell no template apart."""


def _pod(manifest: dict[str, Any], file: str) -> Pod:
    try:
        pod = PodManifest.from_value(manifest).record()
    except Unreadable as error:
        name = _text(_map(manifest.get("metadata")).get("name"))
        raise ValueError(shorten(f"{file}: Pod {quoted(name)}: {error}")) from None
    if not pod.name:
        raise ValueError(f"{file}: a pod has no name")
    return pod


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
