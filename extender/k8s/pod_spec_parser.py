"""Reads the part of a pod's spec that placement needs, within the limits of ``limits.py``.

A spec beyond a limit is replaced by a summary: one container that requests what the whole pod uses, so that
the node of a running pod is still accounted for. Equal specs are one object, because a cluster with 30,000
pods has a few hundred templates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from operator import methodcaller
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from extender.k8s.metadata import NO_ENTRIES, TextMap, is_relevant, sorted_pairs
from extender.k8s.objects import Container, Pairs, PodClaim, PodSpec
from extender.k8s.quantity import QuantityError, milli, whole
from extender.untrusted.bounded_cache import BoundedMap, WeakInterner
from extender.untrusted.limits import CONTAINERS, KEY, POD_CLAIMS, POD_RESOURCES, RESOURCES, SELECTOR_ITEMS


class _Resources(TypedDict, total=False):
    requests: TextMap
    limits: TextMap


class _Port(TypedDict, total=False):
    hostPort: int | None


class _Container(TypedDict, total=False):
    name: str | None
    image: Any
    ports: list[_Port] | None
    resources: _Resources | None
    restartPolicy: str | None


class ClaimManifest(TypedDict, total=False):
    name: str | None
    resourceClaimName: str | None
    resourceClaimTemplateName: str | None


class PlacementSpecManifest(TypedDict, total=False):
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    resources: _Resources | None
    overhead: TextMap
    nodeSelector: TextMap
    resourceClaims: list[ClaimManifest] | None


_specs: WeakInterner[PodSpec] = WeakInterner()
_Entries: TypeAlias = tuple[tuple[str, str | None], ...]
_Simple: TypeAlias = tuple[str | None, bool, _Entries, _Entries]
_simple_specs: BoundedMap[_Simple, PodSpec] = BoundedMap(1024)
"""The specs of the last templates. To compare texts is faster than to make a spec and find its equal."""
_RESOURCES_OF = methodcaller("get", "resources")
_SELDOM = frozenset({"resources", "overhead", "nodeSelector", "resourceClaims"})
"""Fields of a pod spec with lists and maps, apart from containers."""


def parse_spec(manifest: PlacementSpecManifest) -> tuple[PodSpec, str]:
    """The spec, and which limit it exceeds ("" for none). Beyond a limit the spec is a summary."""
    simple = _simple(manifest)
    if simple is not None and (seen := _simple_specs.get(simple)) is not None:
        return seen, ""
    spec, problem = _parse_spec(manifest)
    if simple is not None and not problem:
        texts = chain(*simple[2], *simple[3])
        _simple_specs.put(simple, spec, 2000 + 2 * sum(64 + len(text or "") for text in texts))
    return spec, problem


def _simple(manifest: PlacementSpecManifest) -> _Simple | None:
    """All that the spec of most pods is made of; None where there is more than one container and its
    resources, or too many of them."""
    containers = manifest.get("containers") or ()
    if len(containers) != 1 or manifest.get("initContainers") or manifest.keys() & _SELDOM:
        return None
    container = containers[0]
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or NO_ENTRIES, resources.get("limits") or NO_ENTRIES
    if len(requests) > RESOURCES or len(limits) > RESOURCES:
        return None
    names = container.get("name"), container.get("restartPolicy") == "Always"
    return *names, tuple(requests.items()), tuple(limits.items())


def _parse_spec(manifest: PlacementSpecManifest) -> tuple[PodSpec, str]:
    if problem := _length_problem(manifest):
        return _summary(manifest), problem
    pod_level = manifest.get("resources") or {}
    spec = PodSpec(
        containers=tuple([_container(c) for c in manifest.get("containers") or ()]),
        init_containers=tuple([_container(c) for c in manifest.get("initContainers") or ()]),
        requests=sorted_pairs(pod_level.get("requests")),
        limits=sorted_pairs(pod_level.get("limits")),
        overhead=sorted_pairs(manifest.get("overhead")),
        node_selector=sorted_pairs(manifest.get("nodeSelector")),
        claims=tuple([_claim(c) for c in manifest.get("resourceClaims") or ()]),
    )
    if (known := _specs.find(spec)) is not None:  # checked when it was added
        return known, ""
    if problem := _size_problem(spec):
        return _summary(manifest), problem
    return _specs.add(spec), ""


def _container(container: _Container) -> Container:
    requests, limits = _with_default_requests(container.get("resources"))
    return Container(
        container.get("name") or "", requests, limits, container.get("restartPolicy") == "Always"
    )


def _with_default_requests(resources: _Resources | None) -> tuple[Pairs, Pairs]:
    """Requests and limits. A resource with a limit and no request requests its limit (``SetDefaults_Pod`` of
    k8s.io/kubernetes)."""
    if not resources:
        return (), ()
    requests, limits = resources.get("requests"), resources.get("limits")
    if not limits:
        return sorted_pairs(requests), ()
    given = {name: text for name, text in requests.items() if text is not None} if requests else {}
    return sorted_pairs(limits | given), sorted_pairs(limits)


def _claim(claim: ClaimManifest) -> PodClaim:
    template = claim.get("resourceClaimTemplateName") or ""
    return PodClaim(claim.get("name") or "", claim.get("resourceClaimName") or "", template)


def _length_problem(manifest: PlacementSpecManifest) -> str:
    """Which list or map of the manifest is too long to parse, "" for none."""
    pod_level = manifest.get("resources") or {}
    containers, inits = manifest.get("containers") or (), manifest.get("initContainers") or ()
    if not inits and len(containers) == 1 and not manifest.keys() & _SELDOM:  # most pods
        resources = containers[0].get("resources") or {}
        entries = max(_length(resources.get("requests")), _length(resources.get("limits")))
        return _exceeded((entries, RESOURCES, "resources of one container"))
    maps = pod_level.get("requests"), pod_level.get("limits"), manifest.get("overhead")
    of_containers = [r.values() for r in map(_RESOURCES_OF, (*containers, *inits)) if r]
    return _exceeded(
        (max(len(containers), len(inits)), CONTAINERS, "containers"),
        (max(map(_length, maps)), RESOURCES, "resources of the pod as a whole"),
        (len(manifest.get("nodeSelector") or ()), SELECTOR_ITEMS, "entries in the node selector"),
        (len(manifest.get("resourceClaims") or ()), POD_CLAIMS, "resource claims"),
        (max(map(_length, chain(*of_containers)), default=0), RESOURCES, "resources of one container"),
    )


def _length(entries: TextMap) -> int:
    return len(entries) if entries else 0


def _size_problem(spec: PodSpec) -> str:
    """Which limit a spec exceeds although none of its lists is too long, "" for none."""
    resources = [len(container.requests) for container in spec.all_containers]
    return _exceeded(
        (max(resources, default=0), RESOURCES, "resources of one container"),
        (sum(resources), POD_RESOURCES, "resources of all containers"),
        (max(map(len, spec.texts()), default=0), KEY, "characters in a name or quantity"),
    )


def _exceeded(*counts: tuple[int, int, str]) -> str:
    """The first (count, limit, of what) that is beyond its limit, as a text; "" for none."""
    return next((f"more than {limit} {what}" for count, limit, what in counts if count > limit), "")


def _summary(manifest: PlacementSpecManifest) -> PodSpec:
    """A spec of one container that requests what all containers use at once, or slightly more.

    There may be thousands of containers, so equal quantities are counted before they are parsed. Of more than
    ``POD_RESOURCES`` resources, those about GPUs come first, then those with short names.
    """
    inits: tuple[list[_Container], list[_Container]] = [], []  # those that end, and sidecars
    for container in manifest.get("initContainers") or ():
        inits[container.get("restartPolicy") == "Always"].append(container)
    main, ending, sidecars = map(_quantity_counts, (manifest.get("containers") or (), *inits))
    names = {name for name, _ in chain(main, ending, sidecars)}
    if len(names) > POD_RESOURCES:
        relevant = {"cpu", "memory", *filter(is_relevant, names)}
        ordered = sorted(names & relevant, key=len) + sorted(names - relevant, key=len)
        names = set(ordered[:POD_RESOURCES])
    main_sums, sidecar_sums, peak = _sums(main, names), _sums(sidecars, names), Counter[str]()
    for name, text in ending:
        if name in names:
            peak[name] = max(peak[name], _amount(name, text))
    requests = {name: max(main_sums[name], peak[name]) + sidecar_sums[name] for name in names}
    quantities = sorted((name, f"{n}m" if name == "cpu" else str(n)) for name, n in requests.items())
    pod_level = manifest.get("resources") or {}
    return PodSpec(
        containers=(Container("", tuple(quantities)),),
        requests=_cpu_and_memory(pod_level.get("requests")),
        limits=_cpu_and_memory(pod_level.get("limits")),
        overhead=_cpu_and_memory(manifest.get("overhead")),
    )


def _quantity_counts(containers: Iterable[_Container]) -> Counter[tuple[str, str | None]]:
    """How many containers request each quantity of each resource."""
    resources = filter(None, map(_RESOURCES_OF, containers))
    requests = [(one.get("limits") or NO_ENTRIES) | (one.get("requests") or NO_ENTRIES) for one in resources]
    return Counter(chain.from_iterable(map(dict.items, requests)))


def _sums(counts: Mapping[tuple[str, str | None], int], names: Collection[str]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for (name, text), count in counts.items():
        if name in names:
            sums[name] += count * _amount(name, text)
    return sums


def _amount(name: str, text: str | None) -> int:
    """Milli-CPU, bytes of memory, or the number of anything else; 0 if it cannot be parsed."""
    try:
        if text is None or len(name) > KEY:
            return 0
        return milli(text) if name == "cpu" else whole(text)
    except QuantityError:
        return 0


def _cpu_and_memory(entries: TextMap) -> Pairs:
    """CPU and memory are the only resources that a pod as a whole may request."""
    found = ((name, (entries or NO_ENTRIES).get(name)) for name in ("cpu", "memory"))
    return tuple((name, text[:KEY]) for name, text in found if text is not None)
