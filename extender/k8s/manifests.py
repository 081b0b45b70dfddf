"""Nodes and pods of the wire, and the records made from them.

A pod of the API is 4 KB of JSON of which placement needs a tenth. These models read that tenth and skip the
rest; any field may be absent or null. ``record()`` shares what many objects have in common, and keeps no more
of an object than ``limits.py`` allows, whatever its author wrote: beyond this module every text and every
list is bounded.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import chain, islice, repeat
from operator import add, methodcaller
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from extender.k8s import gpu_health as health
from extender.k8s.mig_config import KEY, NODE_LABEL, layouts_of
from extender.k8s.objects import (
    Card,
    Container,
    KoordinatorDevice,
    MigLayouts,
    Node,
    Pairs,
    Pod,
    PodClaim,
    PodSpec,
)
from extender.k8s.quantity import QuantityError, milli, whole
from extender.k8s.resource_api.claim_parser import parse_claim
from extender.k8s.resource_api.objects import DeviceClass, ResourceClaim, ResourceSlice
from extender.k8s.resource_api.slice_parser import parse_class, parse_slice
from extender.k8s.scheduling_rules_parser import WireAffinity, WireOwner, WireToleration, rules_of
from extender.k8s.taints import Taint
from extender.untrusted import limits
from extender.untrusted.bounded_cache import Shared
from extender.untrusted.limits import NAME, NODE_CONDITIONS, NODE_TAINTS

# Domains (with their sub-domains) and bare names of annotations and pod labels that speak of GPUs, queues or
# gangs. All others are dropped: on most pods they outweigh everything that is kept.
_DOMAINS = (
    *(".stowage.dev", ".nvidia.com", ".hami.io", ".koordinator.sh", ".volcano.sh", ".scheduling.k8s.io"),
    *(".kai.scheduler", ".run.ai", ".kueue.x-k8s.io", ".kwok.x-k8s.io", ".aliyun.com"),
)
_BARE_PREFIXES = ("ALIYUN_COM_GPU", "gpu-", "runai-", "pod-group-name")


# The parts are typed dicts: pydantic fills them at half the cost of models, and the garbage collector leaves
# dicts of text alone. Quantities may be written as plain numbers ("cpu: 1"); Kubernetes takes them too.
WireText: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]
_Map: TypeAlias = dict[str, WireText | None] | None
_Name: TypeAlias = Annotated[str, Field(max_length=limits.KEY)]
"""What an object goes by. The API server lets through 253 characters, so a longer one is no object of its."""


class WireMetadata(TypedDict, total=False):
    name: _Name | None
    generateName: _Name | None
    namespace: _Name | None
    uid: _Name | None
    labels: _Map
    annotations: _Map
    creationTimestamp: str | None
    deletionTimestamp: str | None
    resourceVersion: str | None
    ownerReferences: list[WireOwner] | None


class _Taint(TypedDict, total=False):
    key: str | None
    value: str | None
    effect: str | None


class _NodeSpec(TypedDict, total=False):
    unschedulable: bool | None
    taints: list[_Taint] | None


class _Condition(TypedDict, total=False):
    type: str | None
    status: str | None


class _NodeStatus(TypedDict, total=False):
    allocatable: _Map
    conditions: list[_Condition] | None


class _Resources(TypedDict, total=False):
    requests: _Map
    limits: _Map


class _Container(TypedDict, total=False):
    name: str | None
    resources: _Resources | None
    restartPolicy: str | None


class _Claim(TypedDict, total=False):
    name: str | None
    resourceClaimName: str | None
    resourceClaimTemplateName: str | None


class WirePodSpec(TypedDict, total=False):
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    resources: _Resources | None
    overhead: _Map
    nodeSelector: _Map
    resourceClaims: list[_Claim] | None
    nodeName: _Name | None
    schedulerName: str | None
    priority: int | None
    affinity: WireAffinity | None
    tolerations: list[WireToleration] | None


class _Device(TypedDict, total=False):
    resourceID: str | None


class _DeviceResource(TypedDict, total=False):
    name: str | None
    resources: list[_Device] | None


class _ContainerStatus(TypedDict, total=False):
    allocatedResourcesStatus: list[_DeviceResource] | None


class _PodStatus(TypedDict, total=False):
    phase: str | None
    nominatedNodeName: _Name | None
    startTime: str | None
    containerStatuses: list[_ContainerStatus] | None
    resourceClaimStatuses: list[_Claim] | None


class WireNode(BaseModel):
    """A Node of the wire."""

    metadata: WireMetadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None

    def record(self) -> Node:
        """The node that this manifest describes."""
        metadata, spec, status = self.metadata or {}, self.spec or {}, self.status or {}
        labels, annotations, unreadable, problem = _readable(
            _interned(metadata.get("labels")),
            _kept(metadata.get("annotations")),
            limits.NODE_ANNOTATION,
            limits.NODE_ANNOTATIONS,
        )
        allocatable, taints = _interned(status.get("allocatable")), spec.get("taints") or []
        if len(allocatable) > limits.RESOURCES or len(taints) > limits.NODE_TAINTS:
            allocatable, taints, too_many = _node_within(allocatable, taints)
            problem = problem or too_many
        return Node(
            name=sys.intern(metadata.get("name") or ""),
            uid=metadata.get("uid") or "",
            labels=labels,
            annotations=annotations,
            allocatable=allocatable,
            unschedulable=bool(spec.get("unschedulable")),
            taints=tuple([_taint(t) for t in taints]),
            created=_seconds(metadata.get("creationTimestamp")),
            conditions=_conditions(status.get("conditions") or ()),
            unreadable=unreadable,
            problem=problem,
        )


class WirePod(BaseModel):
    """A Pod of the wire."""

    metadata: WireMetadata | None = None
    spec: WirePodSpec | None = None
    status: _PodStatus | None = None

    def record(self) -> Pod:
        """The pod that this manifest describes; a namespace that is not given is ``default``."""
        metadata, wire, status = self.metadata or {}, self.spec or {}, self.status or {}
        labels, annotations, unreadable, unnamed = _readable(
            _kept(metadata.get("labels")),
            _kept(metadata.get("annotations")),
            limits.POD_ANNOTATION,
            limits.POD_ANNOTATIONS,
        )
        spec, problem = _spec(wire)
        devices = _devices(status.get("containerStatuses") or ())
        if len(devices) > limits.REPORTED_DEVICES:
            devices = devices[: limits.REPORTED_DEVICES]
            problem = f"kubelet reports more than {limits.REPORTED_DEVICES} devices"
        return Pod(
            namespace=sys.intern(metadata.get("namespace") or "default"),
            name=metadata.get("name") or metadata.get("generateName") or "",
            uid=metadata.get("uid") or "",
            spec=spec,
            node_name=sys.intern(wire.get("nodeName") or ""),
            phase=sys.intern((status.get("phase") or "Pending")[: limits.KEY]),
            scheduler_name=sys.intern((wire.get("schedulerName") or "default-scheduler")[: limits.KEY]),
            priority=wire.get("priority") or 0,
            nominated_node=sys.intern(status.get("nominatedNodeName") or ""),
            deleting=metadata.get("deletionTimestamp") is not None,
            created=_seconds(metadata.get("creationTimestamp")),
            started=_seconds(status.get("startTime")),
            annotations=annotations,
            labels=labels,
            devices=devices,
            claims=_claims(status.get("resourceClaimStatuses") or ()),
            rules=rules_of(
                wire.get("affinity"),
                wire.get("tolerations"),
                metadata.get("ownerReferences"),
                len(wire.get("nodeSelector") or ()),
            ),
            unreadable=unreadable,
            problem=problem or unnamed,
        )


class WireSlice(BaseModel):
    """A ResourceSlice of the wire."""

    metadata: WireMetadata | None = None
    spec: Any = None

    def record(self) -> ResourceSlice:
        """The slice that this manifest describes."""
        return parse_slice((self.metadata or {}).get("name") or "", self.spec)


class WireDeviceClass(BaseModel):
    """A DeviceClass of the wire."""

    metadata: WireMetadata | None = None
    spec: Any = None

    def record(self) -> DeviceClass:
        """The class that this manifest describes."""
        return parse_class((self.metadata or {}).get("name") or "", self.spec)


class _Card(TypedDict, total=False):
    type: str | None
    id: str | None
    minor: int | None
    health: bool | None
    resources: _Map


class _CardsSpec(TypedDict, total=False):
    devices: list[_Card] | None


class WireCards(BaseModel):
    """A Device of Koordinator's (``scheduling.koordinator.sh/v1alpha1``) of the wire."""

    metadata: WireMetadata | None = None
    spec: _CardsSpec | None = None

    def record(self) -> KoordinatorDevice:
        """The GPUs that this manifest describes; one without a number is none that pods could be given."""
        cards = [
            Card(minor, one.get("id") or "", one.get("health") is True, _pairs(one.get("resources")))
            for one in (self.spec or {}).get("devices") or ()
            if one.get("type") == "gpu" and (minor := one.get("minor")) is not None
        ]
        return KoordinatorDevice((self.metadata or {}).get("name") or "", tuple(cards))


class WireMigLayouts(BaseModel):
    """A ConfigMap of NVIDIA's MIG manager of the wire."""

    metadata: WireMetadata | None = None
    data: _Map = None

    def record(self) -> MigLayouts:
        """The layouts that this manifest describes, without those that cannot be read."""
        metadata = self.metadata or {}
        name = f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or ''}"
        node = (metadata.get("labels") or {}).get(NODE_LABEL) or ""
        return MigLayouts(name, node, *layouts_of((self.data or {}).get(KEY) or ""))


class WireClaim(BaseModel):
    """A ResourceClaim of the wire."""

    metadata: WireMetadata | None = None
    spec: Any = None
    status: Any = None

    def record(self) -> ResourceClaim:
        """The claim that this manifest describes; a namespace that is not given is ``default``."""
        metadata = self.metadata or {}
        namespace = sys.intern(metadata.get("namespace") or "default")
        return parse_claim(namespace, metadata.get("name") or "", self.spec, self.status)


_specs: Shared[PodSpec] = Shared()
"""30,000 pods come from a few hundred templates: the first of equal specs stands for all of them."""


_RESOURCES_OF = methodcaller("get", "resources")


def _spec(wire: WirePodSpec) -> tuple[PodSpec, str]:
    """The spec, and what of it exceeds a limit; then it has one container that uses what the pod uses."""
    if problem := _too_many(wire):
        return _summary(wire), problem
    overall = wire.get("resources") or {}
    spec = PodSpec(
        containers=tuple([_container(c) for c in wire.get("containers") or ()]),
        init_containers=tuple([_container(c) for c in wire.get("initContainers") or ()]),
        requests=_pairs(overall.get("requests")),
        limits=_pairs(overall.get("limits")),
        overhead=_pairs(wire.get("overhead")),
        node_selector=_pairs(wire.get("nodeSelector")),
        claims=tuple([_claim(c) for c in wire.get("resourceClaims") or ()]),
    )
    if (known := _specs.find(spec)) is not None:  # within the limits, as it was when it came first
        return known, ""
    if problem := _excess(spec):
        return _summary(wire), problem
    return _specs.add(spec), ""


def _too_many(wire: WirePodSpec) -> str:
    """Which of the lists of a spec is too long for going through it, "" for none."""
    overall = wire.get("resources") or {}
    containers, inits = wire.get("containers") or (), wire.get("initContainers") or ()
    maps = overall.get("requests"), overall.get("limits"), wire.get("overhead")
    counts = (
        (max(len(containers), len(inits)), limits.CONTAINERS, "containers"),
        (max(map(_length, maps)), limits.RESOURCES, "resources of the pod as a whole"),
        (len(wire.get("nodeSelector") or ()), limits.SELECTOR_ITEMS, "entries in the node selector"),
        (len(wire.get("resourceClaims") or ()), limits.POD_CLAIMS, "resource claims"),
    )
    for count, most, what in counts:
        if count > most:
            return f"more than {most} {what}"
    each = [one.values() for one in map(_RESOURCES_OF, (*containers, *inits)) if one]
    if max(map(_length, chain.from_iterable(each)), default=0) > limits.RESOURCES:
        return f"more than {limits.RESOURCES} resources of one container"
    return ""


def _length(entries: _Map) -> int:
    return len(entries) if entries else 0


def _excess(spec: PodSpec) -> str:
    """What of a pod's spec exceeds a limit although none of its lists is too long, "" for nothing."""
    every = (*spec.init_containers, *spec.containers)
    resources = [len(c.requests) for c in every]
    counts = (
        (max(resources, default=0), limits.RESOURCES, "resources of one container"),
        (sum(resources), limits.POD_RESOURCES, "resources of all containers"),
        (max(map(len, _texts(spec)), default=0), limits.KEY, "characters in a name or quantity"),
    )
    return next((f"more than {most} {what}" for count, most, what in counts if count > most), "")


def _texts(spec: PodSpec) -> Iterable[str]:
    """Every text of a spec."""
    every = (*spec.init_containers, *spec.containers)
    maps = chain.from_iterable((c.requests, c.limits) for c in every)
    pairs = chain(*maps, spec.requests, spec.limits, spec.overhead, spec.node_selector)
    claims = chain.from_iterable((c.name, c.claim, c.template) for c in spec.claims)
    return chain((c.name for c in every), chain.from_iterable(pairs), claims)


def _summary(wire: WirePodSpec) -> PodSpec:
    """A spec of one container that requests what all of them use at once, or a little more, so that the books
    are right. It may have thousands of containers, so equal quantities are counted before they are read.

    Of more than ``POD_RESOURCES`` names those that speak of GPUs and the short ones stay.
    """
    inits: tuple[list[_Container], list[_Container]] = [], []  # those that end, and sidecars
    for one in wire.get("initContainers") or ():
        inits[one.get("restartPolicy") == "Always"].append(one)
    together, before, beside = map(_asked, (wire.get("containers") or (), *inits))
    names = {name for name, _ in chain(together, before, beside)}
    if len(names) > limits.POD_RESOURCES:
        speaking = {"cpu", "memory", *filter(_matters, names)}
        ordered = sorted(names & speaking, key=len) + sorted(names - speaking, key=len)
        names = set(ordered[: limits.POD_RESOURCES])
    used, running, peak = _sums(together, names), _sums(beside, names), Counter[str]()
    for name, text in before:
        if name in names:
            peak[name] = max(peak[name], _amount(name, text))
    requests = {name: max(used[name], peak[name]) + running[name] for name in names}
    overall = wire.get("resources") or {}
    return PodSpec(
        containers=(
            Container("", tuple(sorted((n, _quantity(n, amount)) for n, amount in requests.items()))),
        ),
        requests=_only_native(overall.get("requests")),
        limits=_only_native(overall.get("limits")),
        overhead=_only_native(wire.get("overhead")),
    )


def _asked(containers: Iterable[_Container]) -> Counter[tuple[str, str | None]]:
    """How often each quantity of each resource is requested."""
    found = filter(None, map(_RESOURCES_OF, containers))
    asked = [(one.get("limits") or _NOTHING) | (one.get("requests") or _NOTHING) for one in found]
    return Counter(chain.from_iterable(map(dict.items, asked)))


def _sums(asked: Mapping[tuple[str, str | None], int], names: Collection[str]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for (name, text), count in asked.items():
        if name in names:
            sums[name] += count * _amount(name, text)
    return sums


def _amount(name: str, text: str | None) -> int:
    """Milli-CPU, bytes of memory, or the number of anything else; 0 for what cannot be read."""
    try:
        if text is None or len(name) > limits.KEY:
            return 0
        return milli(text) if name == "cpu" else whole(text)
    except QuantityError:
        return 0


def _quantity(name: str, amount: int) -> str:
    return f"{amount}m" if name == "cpu" else str(amount)


def _only_native(entries: _Map) -> Pairs:
    """CPU and memory, the resources that a pod as a whole may request."""
    found = ((name, (entries or _NOTHING).get(name)) for name in ("cpu", "memory"))
    return tuple((name, text[: limits.KEY]) for name, text in found if text is not None)


def _container(container: _Container) -> Container:
    requests, limits = _completed(container.get("resources"))
    return Container(
        container.get("name") or "", requests, limits, container.get("restartPolicy") == "Always"
    )


def _claim(claim: _Claim) -> PodClaim:
    template = claim.get("resourceClaimTemplateName") or ""
    return PodClaim(claim.get("name") or "", claim.get("resourceClaimName") or "", template)


def _node_within(
    allocatable: Mapping[str, str], taints: list[_Taint]
) -> tuple[Mapping[str, str], list[_Taint], str]:
    """So much of what a node offers and of its taints as is kept, and what exceeds a limit."""
    problem = ""
    if len(allocatable) > limits.RESOURCES:  # the MIG instances of a former layout stay behind as zeros
        allocatable = {name: text for name, text in allocatable.items() if text != "0"}
    if len(allocatable) > limits.RESOURCES:
        allocatable, problem = {}, f"offers more than {limits.RESOURCES} resources"
    if len(taints) > limits.NODE_TAINTS:
        problem = f"more than {limits.NODE_TAINTS} taints"
    return allocatable, taints[: limits.NODE_TAINTS], problem


def _taint(taint: _Taint) -> Taint:
    return Taint(taint.get("key") or "", taint.get("value") or "", taint.get("effect") or "")


def _conditions(conditions: Iterable[_Condition]) -> Pairs:
    """Those that speak of GPUs: heartbeats change the others every few minutes."""
    named = ((one.get("type") or "", one.get("status") or "") for one in islice(conditions, NODE_CONDITIONS))
    kept = ((sys.intern(kind), sys.intern(status[:NAME])) for kind, status in named if health.matters(kind))
    return tuple(islice(kept, NODE_TAINTS))


def _devices(statuses: Iterable[_ContainerStatus]) -> Pairs:
    resources = [r for s in statuses for r in s.get("allocatedResourcesStatus") or ()]
    devices = [(r.get("name") or "", d) for r in resources for d in r.get("resources") or ()]
    return tuple([(name, device.get("resourceID") or "") for name, device in devices])


def _claims(statuses: Iterable[_Claim]) -> Pairs:
    return tuple([(s.get("name") or "", claim) for s in statuses if (claim := s.get("resourceClaimName"))])


@lru_cache(maxsize=4096)
def _that_matters(key: str) -> str | None:
    """The name of an annotation or label, None where it is not kept: equal names become one text.

    ``key`` is no longer than ``KEY``, so the cache is bounded.
    """
    return key if _matters(key) else None


def _matters(key: str) -> bool:
    domain, slash, _ = f".{key}".partition("/")
    return domain.endswith(_DOMAINS) if slash else key.startswith(_BARE_PREFIXES)


_NOTHING: dict[str, str] = {}


def _kept(entries: _Map) -> Mapping[str, str]:
    if not entries:
        return _NOTHING
    kept = {
        name: text or ""
        for key, text in entries.items()
        if len(key) <= limits.KEY and (name := _that_matters(key)) is not None
    }
    return kept or _NOTHING


def _readable(
    labels: Mapping[str, str], annotations: Mapping[str, str], most: int, together: int
) -> tuple[Mapping[str, str], Mapping[str, str], tuple[str, ...], str]:
    """The labels and annotations that are kept: of at most ``most`` characters each, and with their names
    ``together``. And the names of those that are left out, the largest first; a problem where these are too
    many to be named."""
    maps = labels, annotations
    if sum([len("".join(m)) + len("".join(m.values())) for m in maps if m]) <= most:  # as on almost all
        return labels, annotations, (), ""
    sizes = [map(add, map(len, entries), map(len, entries.values())) for entries in maps]
    found = sorted(chain(zip(sizes[0], labels, repeat(0)), zip(sizes[1], annotations, repeat(1))))
    read: tuple[dict[str, str], dict[str, str]] = {}, {}
    left_out = []
    for place, (size, key, number) in enumerate(found):
        text = maps[number][key]
        together -= size
        if together < 0:  # the others are larger
            left_out += [key for _, key, _ in found[place:]]
            break
        if len(text) > most:
            left_out.append(key)
        else:
            read[number][key] = text
    unnamed = f"more than {limits.LISTED_NAMES} annotations and labels are too large"
    return (
        *read,
        tuple(left_out[: limits.LISTED_NAMES]),
        unnamed if len(left_out) > limits.LISTED_NAMES else "",
    )


def _interned(entries: _Map) -> Mapping[str, str]:
    return {sys.intern(k): sys.intern(v) for k, v in entries.items() if v is not None} if entries else {}


def _pairs(entries: Mapping[str, str | None] | None) -> Pairs:
    return tuple(sorted([(k, v) for k, v in entries.items() if v is not None])) if entries else ()


def _completed(resources: _Resources | None) -> tuple[Pairs, Pairs]:
    # SetDefaults_Pod of k8s.io/kubernetes: what has a limit and no request requests its limit.
    if not resources:
        return (), ()
    requests, limited = resources.get("requests"), resources.get("limits")
    if not limited:
        return _pairs(requests), ()
    asked = {name: text for name, text in requests.items() if text is not None} if requests else {}
    return _pairs(limited | asked), _pairs(limited)


def _seconds(timestamp: str | None) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except (ValueError, OverflowError):
        return 0.0  # only orders pods by age: not worth losing the object


def complaint(error: ValidationError) -> str:
    """The first thing that is wrong, and where, in one line of at most ``PROBLEM`` characters.

    Where very much is wrong only that: to have the first error pydantic describes all of them.
    """
    if (count := error.error_count()) > limits.ERRORS:
        return f"{count} values are not what they should be"
    first = error.errors(include_url=False, include_input=False)[0]
    what = "Input should be an object" if first["type"] in ("model_type", "dict_type") else first["msg"]
    where = ".".join(limits.shorten(str(part), limits.QUOTED) for part in first["loc"])
    return limits.shorten(": ".join(filter(None, (where, what))))
