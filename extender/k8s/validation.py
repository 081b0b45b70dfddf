"""Why the API server rejects the manifest of a pod or workload: unknown or missing fields, and values that do
not go together. Most rules are in ``api-fields.json``.

Source: strict field validation, as kubectl requests it, and ``pkg/apis/{core,apps,batch}/validation`` of
k8s.io/kubernetes v1.37.2.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from extender.data import facts
from extender.k8s.job_kinds import parts_of, pod_templates
from extender.k8s.manifest import as_list, as_map, as_text
from extender.k8s.quantity import QuantityError, exact
from extender.untrusted.limits import KEY, quoted, shorten

_KNOWN = facts("api-fields")
_EMPTY: tuple[object, ...] = (None, "", [], {})


class Mistake(NamedTuple):
    """``text``: a clause. ``wrong``: a name, in place of which one of ``known`` may be meant. An unknown
    field is not ``certain`` in objects of other projects. An ``excerpt`` of a manifest lacks this field."""

    text: str
    wrong: str = ""
    known: Sequence[str] = ()
    certain: bool = True
    excerpt: bool = False


def mistakes(obj: dict[str, Any]) -> Iterator[Mistake]:
    """The mistakes in an object that is or has pod templates, in its order."""
    kind, version = as_text(obj.get("kind")), as_text(obj.get("apiVersion"))
    expected, templates = _KNOWN["versions"].get(kind), [*pod_templates(obj, (), 1)]
    if not expected or version.partition("/")[0] not in _KNOWN["groups"]:
        written = {id(part) for part in parts_of(obj)}  # others are made of other fields
        for template in (template for _, template, _ in templates if id(template) in written):
            yield from _in(template["spec"], "PodSpec", "spec", own=False)
        return
    if version not in ("", expected):
        yield Mistake(f"{kind} is in {expected}, not in {quoted(version)}")
    yield from _in(obj, kind, "", own=True)
    labels, wanted = _at(obj, "spec.template.metadata.labels"), _at(obj, "spec.selector.matchLabels")
    if "template" in as_map(obj.get("spec")) and not as_map(wanted).items() <= as_map(labels).items():
        yield Mistake("spec.selector does not match spec.template.metadata.labels")
    made = [as_map(claim).get("metadata") for claim in as_list(_at(obj, "spec.volumeClaimTemplates"))]
    for _, template, _ in templates:
        yield from _of_containers(template["spec"], made)


def _in(value: object, kind: str, path: str, *, own: bool) -> Iterator[Mistake]:
    """The mistakes in a value of this type. ``own``: in an object of Kubernetes itself."""
    for number, item in enumerate(as_list(value)):
        yield from _in(item, kind, f"{path}[{number}]", own=own)
    fields, parts, at = _KNOWN["fields"].get(kind, {}), as_map(value), f"{path}." if path else ""
    if not parts or not fields:
        return
    for name in (name for name in parts if name not in fields):
        of_pod = ": it belongs to the pod's spec" if name in _KNOWN["fields"]["PodSpec"] else ""
        text = f"{quoted(name)} is no field of {path or kind}{of_pod}"
        yield Mistake(text, "" if of_pod else shorten(name, KEY), tuple(fields), own or bool(of_pod))
    in_excerpts = kind == "Container" or (kind.endswith("Spec") and kind != "PodSpec")
    for name in _KNOWN["required"].get(kind, ()) if own else ():
        if parts.get(name) is None:
            yield Mistake(f"{at}{name} is missing", excerpt=in_excerpts)
    for condition, when, name, must, rule in _KNOWN["rules"].get(kind, ()):
        for wrong in [] if _wrong(_at(parts, condition), when) else _wrong(_at(parts, name), must):
            known = must if isinstance(must, list) and condition == name else ()
            text, excerpt = shorten(f"{wrong}", KEY), in_excerpts and wrong is None
            why = f"{at}{name} {rule.format(quoted(text))}"
            yield Mistake(why, text if known else "", known, excerpt=excerpt)
    if kind == "ResourceRequirements":
        yield from _of_resources(parts, at)
    for name, part in parts.items():
        yield from _in(part, fields.get(name, ""), at + name, own=own)


def _wrong(value: object, rule: object) -> list[Any]:
    """The value, or the keys or values of a map, that break a rule: be ``set`` or ``empty``, one of several
    values, or match a pattern, as all values of a map do or, for ``{"keys": pattern}``, all its keys."""
    match rule:
        case "set" | "empty":
            return [] if (value in _EMPTY) == (rule == "empty") else [value]
        case {"keys": str(pattern)}:
            items: list[Any] = [*as_map(value)]
        case str(pattern):
            items = [*as_map(value).values()] or [value]
        case _:
            return [] if value in as_list(rule) else [value]
    return [item for item in items if not re.fullmatch(pattern, f"{item}")]


def _of_resources(parts: dict[str, Any], at: str) -> Iterator[Mistake]:
    requests, limits = as_map(parts.get("requests")), as_map(parts.get("limits"))
    names = requests.keys() | limits.keys()
    if names.isdisjoint(("cpu", "memory")) and any(name.startswith("hugepages-") for name in names):
        yield Mistake(f"{at}limits: huge pages also require cpu or memory")
    for name in (name for name in requests.keys() & limits.keys() if "/" not in name):
        try:
            if exact(f"{requests[name]}") > exact(f"{limits[name]}"):
                yield Mistake(f"{at}requests: {quoted(name)} is more than its limit")
        except QuantityError:
            continue  # it is reported with the request


def _of_containers(spec: dict[str, Any], made: list[object]) -> Iterator[Mistake]:
    """Equal names, and names of volumes and claims that the pod does not have. ``made``: the volumes that a
    StatefulSet adds."""
    containers = [*as_list(spec.get("initContainers")), *as_list(spec.get("containers"))]
    if twice := [name for name, count in Counter(_names(containers)).items() if count > 1]:
        yield Mistake(f"two containers have the name {quoted(twice[0])}")
    for field, part, added in (("volumes", "volumeMounts", made), ("resourceClaims", "resources.claims", [])):
        known = _names([*as_list(spec.get(field)), *added])
        for name in _names(use for container in containers for use in as_list(_at(container, part))):
            if name not in known:
                yield Mistake(f"{quoted(name)} is not among the {field} of the pod", name, known)


def _names(entries: Iterable[object]) -> list[str]:
    return [*filter(None, (as_text(as_map(entry).get("name")) for entry in entries))]


def _at(value: object, path: str) -> Any:  # noqa: ANN401 (any value)
    for key in path.split("."):
        value = as_map(value).get(key)
    return value
