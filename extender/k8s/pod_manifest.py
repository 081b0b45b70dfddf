"""Reads a Pod from its manifest: the fields that placement needs, about a tenth of its 4 KB of JSON.

Every text and list of the record is bounded by ``limits.py``. A spec that exceeds a limit is replaced by a
summary: one container that requests the resources of the whole pod, so that the usage of the pod's node stays
correct. Pods of one template share their spec: a cluster with 30,000 pods has a few hundred templates.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import chain, islice
from math import inf
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from extender.k8s.affinity import AffinityManifest, Toleration, parse_constraints
from extender.k8s.manifest import (
    Int,
    Manifest,
    Name,
    Pairs,
    Texts,
    all_entries,
    as_map,
    as_text,
    drop_large_entries,
    is_relevant,
    pairs_of,
    relevant_entries,
    unix_seconds,
)
from extender.k8s.objects import Container, Owner, Pod, PodClaim, PodSpec, Unchecked
from extender.k8s.quantity import QuantityError, milli, whole
from extender.untrusted import limits
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import (
    CACHE,
    CONTAINERS,
    KEY,
    POD_CLAIMS,
    POD_RESOURCES,
    RESOURCES,
    SELECTOR_ITEMS,
)


class ResourcesManifest(Struct, frozen=True, gc=False):
    requests: Texts = {}
    limits: Texts = {}


class _Port(Struct, frozen=True, gc=False):
    containerPort: Int = 0
    hostPort: Int = 0


class ContainerManifest(Struct, frozen=True, gc=False):
    name: str = ""
    image: str = ""
    ports: tuple[_Port, ...] = ()
    resources: ResourcesManifest = ResourcesManifest()
    restartPolicy: str = ""


class ClaimManifest(Struct, frozen=True, gc=False):
    name: str = ""
    resourceClaimName: str = ""
    resourceClaimTemplateName: str = ""


class _Source(Struct, frozen=True, gc=False):
    """Where the data of a volume is: each kind of source has one of these."""

    claimName: Name = ""
    type: str = ""
    medium: str = ""


class VolumeManifest(Struct, frozen=True, gc=False):
    name: Name = ""
    persistentVolumeClaim: _Source | None = None
    ephemeral: Any = None
    hostPath: _Source | None = None
    emptyDir: _Source | None = None


class _SchedulingGroup(Struct, frozen=True, gc=False):
    podGroupName: Name = ""


class _SchedulingGate(Struct, frozen=True, gc=False):
    name: Name = ""


class PodSpecManifest(Struct, frozen=True, gc=False):
    containers: tuple[ContainerManifest, ...] = ()
    initContainers: tuple[ContainerManifest, ...] = ()
    resources: ResourcesManifest = ResourcesManifest()
    overhead: Texts = {}
    nodeSelector: Texts = {}
    resourceClaims: tuple[ClaimManifest, ...] = ()
    nodeName: Name = ""
    schedulerName: str = "default-scheduler"
    priority: Int = 0
    priorityClassName: Name = ""
    runtimeClassName: Name = ""
    preemptionPolicy: str = ""
    restartPolicy: str = ""
    hostNetwork: bool = False
    activeDeadlineSeconds: Int | None = None
    terminationGracePeriodSeconds: Int | None = None
    schedulingGroup: _SchedulingGroup = _SchedulingGroup()
    schedulingGates: tuple[_SchedulingGate, ...] = ()
    affinity: AffinityManifest = AffinityManifest()
    tolerations: tuple[Toleration, ...] = ()
    topologySpreadConstraints: tuple[Any, ...] = ()
    volumes: tuple[VolumeManifest, ...] = ()


_Entries: TypeAlias = tuple[tuple[str, str], ...]
_Containers: TypeAlias = tuple[tuple[str, bool, _Entries, _Entries], ...]
_Key: TypeAlias = tuple[_Containers, _Containers, _Entries, _Entries, _Entries, _Entries, Any]
_UNREAD = 1 << 80
_specs: BoundedMap[_Key, PodSpec] = BoundedMap(1024, 2 * CACHE)
"""The specs of recent templates. Comparing texts is faster than creating a spec."""


def parse_spec(manifest: PodSpecManifest) -> tuple[PodSpec, str]:
    """The spec, and the limit that it exceeds ("" for none), in which case the spec is a summary."""
    key = (
        _containers_key(manifest.containers),
        _containers_key(manifest.initContainers),
        tuple(manifest.resources.requests.items()),
        tuple(manifest.resources.limits.items()),
        tuple(manifest.overhead.items()),
        tuple(manifest.nodeSelector.items()),
        manifest.resourceClaims,
    )
    if (seen := _specs.get(key)) is not None:
        return seen, ""
    if problem := _length_problem(manifest):
        return _summary(manifest), problem
    spec = PodSpec(
        containers=tuple([_container(container) for container in manifest.containers]),
        init_containers=tuple([_container(container) for container in manifest.initContainers]),
        requests=pairs_of(manifest.resources.requests),
        limits=pairs_of(manifest.resources.limits),
        overhead=pairs_of(manifest.overhead),
        node_selector=pairs_of(manifest.nodeSelector),
        claims=tuple(
            [
                PodClaim(claim.name, claim.resourceClaimName, claim.resourceClaimTemplateName)
                for claim in manifest.resourceClaims
            ]
        ),
    )
    if problem := _size_problem(spec):
        return _summary(manifest), problem
    _specs.put(key, spec, 2000 + 2 * sum(64 + len(text) for text in spec.texts()))
    return spec, ""


def _containers_key(containers: tuple[ContainerManifest, ...]) -> _Containers:
    return tuple(
        [
            (
                container.name,
                container.restartPolicy == "Always",
                tuple(container.resources.requests.items()),
                tuple(container.resources.limits.items()),
            )
            for container in containers
        ]
    )


def _container(container: ContainerManifest) -> Container:
    """Requests default to limits (``SetDefaults_Pod`` of k8s.io/kubernetes)."""
    resources = container.resources
    requests, limits = pairs_of(resources.limits | resources.requests), pairs_of(resources.limits)
    return Container(container.name, requests, limits, container.restartPolicy == "Always")


def _length_problem(manifest: PodSpecManifest) -> str:
    """The list or map of the manifest that is too long to parse, "" for none."""
    maps = manifest.resources.requests, manifest.resources.limits, manifest.overhead
    entries = [
        max(len(container.resources.requests), len(container.resources.limits))
        for container in (*manifest.containers, *manifest.initContainers)
    ]
    return _exceeded(
        (max(len(manifest.containers), len(manifest.initContainers)), CONTAINERS, "containers"),
        (max(map(len, maps)), RESOURCES, "resources of the pod as a whole"),
        (len(manifest.nodeSelector), SELECTOR_ITEMS, "entries in the node selector"),
        (len(manifest.resourceClaims), POD_CLAIMS, "resource claims"),
        (max(entries, default=0), RESOURCES, "resources of one container"),
    )


def _size_problem(spec: PodSpec) -> str:
    """The limit that a spec exceeds although none of its lists is too long, "" for none."""
    resources = [len(container.requests) for container in spec.all_containers]
    return _exceeded(
        (max(resources, default=0), RESOURCES, "resources of one container"),
        (sum(resources), POD_RESOURCES, "resources of all containers"),
        (max(map(len, spec.texts()), default=0), KEY, "characters in a name or quantity"),
    )


def _exceeded(*counts: tuple[int, int, str]) -> str:
    """The first (count, limit, description) that exceeds its limit, as text; "" for none."""
    for count, limit, what in counts:
        if count > limit:
            return f"more than {limit} {what}"
    return ""


def _summary(manifest: PodSpecManifest) -> PodSpec:
    """A spec of one container that requests the concurrent usage of all containers, or slightly more.

    There may be thousands of containers, so equal quantities are counted before they are parsed. If there are
    more than ``POD_RESOURCES`` resources, those about GPUs are preferred, then those with short names.
    """
    inits: tuple[list[ContainerManifest], list[ContainerManifest]] = [], []  # those that end, and sidecars
    for container in manifest.initContainers:
        inits[container.restartPolicy == "Always"].append(container)
    main, ending, sidecars = map(_quantity_counts, (manifest.containers, *inits))
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
    return PodSpec(
        containers=(Container("", tuple(quantities)),),
        requests=_cpu_and_memory(manifest.resources.requests),
        limits=_cpu_and_memory(manifest.resources.limits),
        overhead=_cpu_and_memory(manifest.overhead),
    )


def _quantity_counts(containers: Iterable[ContainerManifest]) -> Counter[tuple[str, str]]:
    resources = (container.resources for container in containers)
    return Counter(chain.from_iterable((a.limits | a.requests).items() for a in resources))


def _sums(counts: Mapping[tuple[str, str], int], names: Collection[str]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for (name, text), count in counts.items():
        if name in names:
            sums[name] += count * _amount(name, text)
    return sums


def _amount(name: str, text: str) -> int:
    """Milli-CPU, bytes of memory, or the count of another resource; an impossible amount if unreadable."""
    try:
        if len(name) > KEY:
            return 0
        return milli(text) if name == "cpu" else whole(text)
    except QuantityError:
        return _UNREAD


def _cpu_and_memory(entries: Texts) -> Pairs:
    """CPU and memory are the only resources that a pod as a whole may request."""
    return tuple((name, entries[name][:KEY]) for name in ("cpu", "memory") if name in entries)


# In-place resize: the CPU and memory that a bound pod holds if they differ from the requests in its spec.


class HeldManifest(Struct, frozen=True, gc=False):
    """Resources in the status of a pod or container. ``resources`` is absent before Kubernetes 1.33."""

    name: str = ""
    allocatedResources: Texts = {}
    resources: ResourcesManifest | None = None


_READ = {"cpu": milli, "memory": whole}
"""Resizable resources (``ValidatePodResize`` of k8s.io/kubernetes, pkg/apis/core/validation)."""


def _resized(spec: PodSpecManifest, status: _Status) -> tuple[PodSpec | None, str]:
    """The spec with the held resources of a bound pod instead of the requested ones, None if they are equal,
    and its unreadable part.

    The rule is kube-scheduler's (``PodRequests`` with ``UseStatusResources`` of k8s.io/component-helpers,
    resource/helpers.go): for each container and sidecar, the maximum of its requests, the resources allocated
    by kubelet, and its actual resources; requests are ignored while kubelet reports the resize as infeasible.
    The same applies to resources of the pod as a whole.
    """
    statuses = (*status.containerStatuses, *status.initContainerStatuses)
    by_name = {reported.name: reported for reported in statuses if reported.resources is not None}

    def held(container: ContainerManifest) -> ContainerManifest:
        if (reported := by_name.get(container.name)) is None:
            return container
        resources = _held(container.resources, reported, _READ, status)
        return container if resources is container.resources else replace(container, resources=resources)

    resources = spec.resources
    try:
        containers = tuple([held(container) for container in spec.containers])
        inits = tuple([held(c) if c.restartPolicy == "Always" else c for c in spec.initContainers])
        if status.resources is not None:
            requested = [name for name in _READ if name in resources.requests]
            resources = _held(resources, status, requested, status)
    except QuantityError as error:
        return None, f"what it holds while it is resized: {error}"
    if (containers, inits, resources) == (spec.containers, spec.initContainers, spec.resources):
        return None, ""
    return parse_spec(replace(spec, containers=containers, initContainers=inits, resources=resources))[0], ""


def _held(
    resources: ResourcesManifest, reported: HeldManifest, names: Iterable[str], status: _Status
) -> ResourcesManifest:
    """The resources with the held amounts of ``names`` as requests; the same object if they are equal. Raises
    ``QuantityError``."""
    actual = reported.resources.requests if reported.resources else {}
    changed: dict[str, str] = {}
    for name in names:
        requested, runs_with = resources.requests.get(name), actual.get(name)
        allocated = reported.allocatedResources.get(name, runs_with)
        if runs_with == requested == allocated:  # almost always
            continue
        requested = resources.limits.get(name) if requested is None else requested
        known = [text for text in (runs_with, allocated) if text is not None]
        pending = (c.reason for c in status.conditions if c.type == "PodResizePending")
        if requested is not None and next(pending, "") != "Infeasible":
            known = [requested, *known]
        if (largest := max(known, key=_READ[name], default="0")) != requested:
            changed[name] = largest
    return replace(resources, requests=resources.requests | changed) if changed else resources


class _Device(Struct, frozen=True, gc=False):
    resourceID: str = ""


class _DeviceResource(Struct, frozen=True, gc=False):
    name: str = ""
    resources: tuple[_Device, ...] = ()


class _ContainerStatus(HeldManifest, frozen=True, gc=False):
    allocatedResourcesStatus: tuple[_DeviceResource, ...] = ()


class _Condition(Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    lastTransitionTime: str | None = None


class _Status(HeldManifest, frozen=True, gc=False):
    phase: str = "Pending"
    reason: str = ""
    conditions: tuple[_Condition, ...] = ()
    nominatedNodeName: Name = ""
    startTime: str | None = None
    containerStatuses: tuple[_ContainerStatus, ...] = ()
    initContainerStatuses: tuple[HeldManifest, ...] = ()
    resourceClaimStatuses: tuple[ClaimManifest, ...] = ()


class PodManifest(Manifest, frozen=True, gc=False):
    spec: PodSpecManifest = PodSpecManifest()
    status: _Status = _Status()

    def record(self) -> Pod:
        """The pod. Its namespace is ``default`` if the manifest has none."""
        metadata, spec, status = self.metadata, self.spec, self.status
        owner = metadata.controller
        kind = owner.kind if owner else max([other.kind for other in metadata.ownerReferences], default="")
        owner_kind = sys.intern(kind[: limits.KEY])  # without a controller, the alphabetically last one
        raw = all_entries(metadata.labels), relevant_entries(metadata.annotations)
        labels, annotations, unreadable, too_many = drop_large_entries(
            *raw, limits.POD_ANNOTATION, limits.POD_ANNOTATIONS
        )
        parsed_spec, problem = parse_spec(spec)
        resources = [r for container in status.containerStatuses for r in container.allocatedResourcesStatus]
        devices = tuple([(r.name, device.resourceID) for r in resources for device in r.resources])
        spread_keys, affinity = _spread_keys(spec), spec.affinity
        unchecked = _unchecked(spec, spread_keys)
        depends_on_pods = bool(unchecked or affinity.podAffinity or affinity.podAntiAffinity)
        namespace, name = metadata.namespace_or_default, metadata.name or metadata.generateName
        volumes = [v for v in spec.volumes if v.persistentVolumeClaim or v.ephemeral]
        volume_claims = tuple([_claim_name(volume, name) for volume in volumes])
        disruption, disrupted = _reason(status.conditions, "DisruptionTarget", "True")
        if len(devices) > limits.REPORTED_DEVICES:
            devices = devices[: limits.REPORTED_DEVICES]
            problem = f"kubelet reports more than {limits.REPORTED_DEVICES} devices"
        deleting, ends = metadata.deletionTimestamp is not None, unix_seconds(metadata.deletionTimestamp)
        resized, unread = _resized(spec, status) if spec.nodeName else (None, "")
        pod = Pod(
            namespace=namespace,
            name=name,
            uid=metadata.uid,
            spec=parsed_spec,
            resized=resized,
            misaligned=status.phase == "Failed" and status.reason == "TopologyAffinityError",
            not_admitted=status.phase == "Failed" and status.reason == "UnexpectedAdmissionError",
            node_name=sys.intern(spec.nodeName),
            phase=sys.intern(status.phase[: limits.KEY] or "Pending"),
            ready=any([c.type == "Ready" and c.status == "True" for c in status.conditions]),
            scheduler_name=sys.intern(spec.schedulerName[: limits.KEY] or "default-scheduler"),
            priority=spec.priority,
            priority_class=sys.intern(spec.priorityClassName),
            never_preempts=spec.preemptionPolicy == "Never",
            nominated_node=sys.intern(status.nominatedNodeName),
            deleting=deleting,
            ends=ends or 1.0 * deleting,
            deleted=ends - (metadata.deletionGracePeriodSeconds or 0),
            created=unix_seconds(metadata.creationTimestamp),
            started=unix_seconds(status.startTime),
            finished=_finished(status),
            grace=max(float(_GRACE if (grace := spec.terminationGracePeriodSeconds) is None else grace), 1.0),
            deadline=time_limit(spec.activeDeadlineSeconds, labels)[0],
            is_service=spec.restartPolicy == "Always",
            annotations=annotations,
            labels=labels,
            devices=devices,
            claims=tuple(
                [(s.name, s.resourceClaimName) for s in status.resourceClaimStatuses if s.resourceClaimName]
            ),
            scheduling_constraints=parse_constraints(
                spec.nodeSelector,
                affinity,
                spec.tolerations,
                owner_kind,
                namespace,
                spread_keys,
            ),
            owner=_owner_of(owner_kind, owner.name, owner.uid) if owner else None,
            pod_group=sys.intern(spec.schedulingGroup.podGroupName),
            gates=tuple(
                [sys.intern(gate.name) for gate in islice(spec.schedulingGates, limits.SCHEDULING_GATES)]
            ),
            unscheduled=_reason(status.conditions, "PodScheduled", "False")[0],
            disruption=disruption,
            disrupted=disrupted,
            has_other_constraints=bool(volume_claims) or depends_on_pods,
            has_local_data=any([_holds_data_of_the_node(v, metadata.annotations) for v in spec.volumes]),
            volume_claims=volume_claims[: limits.POD_CLAIMS],
            ephemeral_claims=tuple([f"{name}-{v.name}" for v in volumes if not v.persistentVolumeClaim]),
            unchecked=unchecked,
            runtime_class=sys.intern(spec.runtimeClassName),
            depends_on_pods=depends_on_pods,
            only_pauses=bool(spec.containers) and all([_is_pause(c.image) for c in spec.containers]),
            unreadable=unreadable,
            problem=problem or too_many or unread,
        )
        return pod if pod.node_name else pod.with_version(metadata.resourceVersion)


@lru_cache(maxsize=1024)  # three names each, so its size is bounded
def _owner_of(kind: str, name: str, uid: str) -> Owner:
    """Pods of one owner share one object."""
    return Owner(kind, sys.intern(name), sys.intern(uid))


def _reason(conditions: Iterable[_Condition], kind: str, status: str) -> tuple[str, float]:
    """The reason of the condition of this type and its time, "" and 0 unless it has this status."""
    for condition in conditions:
        if condition.type == kind and condition.status == status:
            reason = sys.intern(condition.reason[: limits.KEY] or "unknown")
            return reason, unix_seconds(condition.lastTransitionTime)
    return "", 0.0


_GRACE = 30
"""Seconds (``DefaultTerminationGracePeriodSeconds`` of k8s.io/api core/v1)."""
_SAFE_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
KUEUE_LONGEST = "kueue.x-k8s.io/max-exec-time-seconds"


def time_limit(deadline: int | None, labels: Mapping[str, str]) -> tuple[float, str]:
    """Seconds that a pod, or the pods of a Job, may run, and the field or label that sets this limit;
    infinite and "" for none. The label is for what Kueue admits (kubernetes-sigs/kueue,
    MaxExecTimeSecondsLabel in ``pkg/controller/constants/constants.go``)."""
    own = (inf, "") if deadline is None else (float(max(deadline, 0)), "activeDeadlineSeconds")
    longest = labels.get(KUEUE_LONGEST, "")
    return min(own, (float(longest), KUEUE_LONGEST)) if longest.isdecimal() and longest.isascii() else own


def _finished(status: _Status) -> float:
    """The time at which the containers had ended, and the pod was no longer ready."""
    if status.phase not in ("Succeeded", "Failed"):
        return 0.0
    return max(
        [
            unix_seconds(condition.lastTransitionTime)
            for condition in status.conditions
            if condition.type == "Ready"
        ],
        default=0.0,
    )


def _unchecked(spec: PodSpecManifest, spread_keys: tuple[str, ...]) -> tuple[Unchecked, ...]:
    """With the host's network, every port of a container is one of the host."""
    of_host, kinds = spec.hostNetwork, (spec.affinity.podAffinity, spec.affinity.podAntiAffinity)
    host_ports = any([p.hostPort or (of_host and p.containerPort) for c in spec.containers for p in c.ports])
    unread = any([len(kind.terms("")) < len(kind.required) for kind in kinds if kind])
    ports = (Unchecked.HOST_PORTS,) if host_ports else ()
    spread = (Unchecked.SPREAD,) if spread_keys else ()
    return ports + spread + ((Unchecked.AFFINITY,) if unread else ())


def _spread_keys(spec: PodSpecManifest) -> tuple[str, ...]:
    """The keys of the constraints by which kube-scheduler rejects nodes."""
    if not (spread := spec.topologySpreadConstraints):
        return ()
    hard = [c for c in map(as_map, spread) if c.get("whenUnsatisfiable") == "DoNotSchedule"]
    return tuple([as_text(c.get("topologyKey"))[: limits.KEY] for c in hard[: limits.SELECTOR_ITEMS]])


def _claim_name(volume: VolumeManifest, pod: str) -> str:
    """The claim of an ephemeral volume is named after the pod and the volume."""
    return volume.persistentVolumeClaim.claimName if volume.persistentVolumeClaim else f"{pod}-{volume.name}"


def _holds_data_of_the_node(volume: VolumeManifest, annotations: Mapping[str, str]) -> bool:
    """Whether it may hold such data: a hostPath by its ``HostPathType`` (k8s.io/api core/v1), an emptyDir on
    disk, unless the annotation lists it (``isLocalVolume`` of Cluster Autoscaler)."""
    path, empty = volume.hostPath, volume.emptyDir
    of_host = path is not None and path.type not in ("Socket", "CharDevice", "BlockDevice")
    if not of_host and (empty is None or empty.medium == "Memory"):
        return False
    may_be_lost = annotations.get(_SAFE_VOLUMES)
    return not may_be_lost or volume.name not in may_be_lost.split(",")


def _is_pause(image: str) -> bool:
    """Whether the image is named ``pause``, such as registry.k8s.io/pause:3.10 and its mirrors, or
    ``pause-amd64``, as in older releases."""
    if "pause" not in image:
        return False
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return name == "pause" or name.startswith("pause-")
