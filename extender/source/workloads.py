"""The pods that a manifest makes: its pods, and one for each pod template of a workload.

A pod template is a map whose ``spec`` has ``containers``, wherever it stands: in Deployments, Jobs, CronJobs,
JobSets, RayClusters and Kubeflow's jobs alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.source.interface import Unavailable
from extender.source.snapshot import documents
from extender.untrusted.limits import KEY, YAML_NODES, quoted, shorten
from extender.untrusted.validation import validation_problem


class Template(NamedTuple):
    """A pod, and the workload that makes it ("Job train"; "" for a pod of its own)."""

    pod: Pod
    workload: str = ""


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
        return found
    kinds = ", ".join(sorted({_text(one.get("kind")) or "no kind" for one in objects}))
    raise ValueError(shorten(f"{name}: has no pod and no pod template ({kinds or 'no object'})"))


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
        yield Template(_pod(obj, file))
        return
    templates = [*_templates(obj, ())]
    for path, template in templates:
        own = _map(template.get("metadata"))
        part = "-".join(path) if len(templates) > 1 else ""
        named = {"namespace": metadata.get("namespace"), **own, "name": "-".join(filter(None, (name, part)))}
        workload = " ".join(filter(None, (kind, name, part)))
        yield Template(_pod({"metadata": named, "spec": template["spec"]}, file), shorten(workload, KEY))


def _templates(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The pod templates in a value, each with what tells it apart from others of its workload."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            names = (_text(_map(item).get(key)) for key in ("name", "groupName"))
            yield from _templates(item, (*path, next(filter(None, names), str(number))))
    elif isinstance(value, dict):
        if isinstance(_map(value.get("spec")).get("containers"), list):
            yield path, value
            return
        for key, part in value.items():
            is_name = key not in _STRUCTURE and not isinstance(part, list)
            yield from _templates(part, (*path, key) if is_name else path)


_STRUCTURE = frozenset({"spec", "template", "jobTemplate"})
"""Keys that tell no template apart."""


def _pod(manifest: dict[str, Any], file: str) -> Pod:
    try:
        pod = PodManifest.model_validate(manifest).record()
    except ValidationError as error:
        name = _text(_map(manifest.get("metadata")).get("name"))
        raise ValueError(shorten(f"{file}: Pod {quoted(name)}: {validation_problem(error)}")) from None
    if not pod.name:
        raise ValueError(f"{file}: a pod has no name")
    return pod


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
