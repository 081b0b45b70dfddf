"""In-place resize: what a pod with a node holds of CPU and memory, where its spec requests something else.

The rule is kube-scheduler's (``PodRequests`` with ``UseStatusResources`` of k8s.io/component-helpers,
resource/helpers.go): of each container and sidecar the largest of what is requested, what kubelet has
allocated and what the container runs with; while kubelet says that the resize is infeasible, what is
requested does not count. Resources of the pod as a whole likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from extender.k8s.metadata import NO_ENTRIES, Text
from extender.k8s.pod_spec_parser import PlacementSpecManifest
from extender.k8s.quantity import milli, whole


class _Amounts(TypedDict, total=False):
    cpu: Text | None
    memory: Text | None


class _Actual(TypedDict, total=False):
    requests: _Amounts | None


class HeldManifest(TypedDict, total=False):
    """What a pod as a whole has by its status."""

    allocatedResources: _Amounts | None
    resources: _Actual | None


class HeldByContainer(HeldManifest, total=False):
    """What a container has. ``resources`` is absent before Kubernetes 1.33."""

    name: str | None


_KINDS: tuple[Literal["containers"], Literal["initContainers"]] = ("containers", "initContainers")
_READ = {"cpu": milli, "memory": whole}
"""What can be resized (``ValidatePodResize`` of k8s.io/kubernetes, pkg/apis/core/validation)."""


def held_spec(
    spec: PlacementSpecManifest,
    statuses: Iterable[HeldByContainer],
    of_pod: HeldManifest,
    is_infeasible: Callable[[], bool],
) -> PlacementSpecManifest | None:
    """The spec with what the pod holds in the place of what it requests, None where that is the same.

    ``statuses``: of its containers and sidecars. Raises ``QuantityError``.
    """
    by_name = {one.get("name"): one for one in statuses if one.get("resources") is not None}
    changed: dict[str, Any] = {}
    for kind in _KINDS if by_name else ():
        for place, container in enumerate(cast("list[dict[str, Any]]", spec.get(kind) or ())):
            status = by_name.get(container.get("name"))
            if status is None or (kind == "initContainers" and container.get("restartPolicy") != "Always"):
                continue
            if held := _held(container.get("resources") or NO_ENTRIES, status, _READ, is_infeasible):
                containers = changed.setdefault(kind, [*cast("list[Any]", spec[kind])])
                containers[place] = {**container, "resources": held}
    if of_pod.get("resources") is not None:
        resources = cast("dict[str, Any]", spec.get("resources") or NO_ENTRIES)
        requested = [name for name in _READ if name in (resources.get("requests") or ())]
        if held := _held(resources, of_pod, requested, is_infeasible):
            changed["resources"] = held
    return cast("PlacementSpecManifest", {**spec, **changed}) if changed else None


def _held(
    resources: Mapping[str, Any],
    status: HeldManifest,
    names: Collection[str],
    is_infeasible: Callable[[], bool],
) -> dict[str, Any]:
    """The resources with what is held of these as the request; nothing where that is the same."""
    requests: Mapping[str, str | None] = resources.get("requests") or NO_ENTRIES
    actual: Mapping[str, Any] = (status.get("resources") or {}).get("requests") or NO_ENTRIES
    allocated: Mapping[str, Any] = status.get("allocatedResources") or NO_ENTRIES
    changed = {}
    for name in names:
        requested, runs_with = requests.get(name), actual.get(name)
        if runs_with == requested == allocated.get(name, runs_with):  # almost always
            continue
        if requested is None:
            requested = (resources.get("limits") or NO_ENTRIES).get(name)
        found = [text for text in (runs_with, allocated.get(name)) if text is not None]
        known = found if requested is None or is_infeasible() else [requested, *found]
        if (largest := max(known, key=_READ[name], default="0")) != requested:
            changed[name] = largest
    return {**resources, "requests": {**requests, **changed}} if changed else {}
