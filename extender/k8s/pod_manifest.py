"""Reads a Pod from its manifest: the fields that placement needs, about a tenth of its 4 KB of JSON.

Every text and list of the record is bounded by ``limits.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from math import inf

from msgspec import Struct

from extender.k8s.affinity import parse_constraints
from extender.k8s.manifest import (
    Manifest,
    Name,
    all_entries,
    drop_large_entries,
    relevant_entries,
    unix_seconds,
)
from extender.k8s.objects import Owner, Pod, PodSpec, Unchecked
from extender.k8s.pod_spec import (
    ClaimManifest,
    HeldManifest,
    PodSpecManifest,
    VolumeManifest,
    held_spec,
    parse_spec,
)
from extender.k8s.pod_templates import as_map, as_text
from extender.k8s.quantity import QuantityError
from extender.untrusted import limits


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


def _resized(spec: PodSpecManifest, status: _Status) -> tuple[PodSpec | None, str]:
    """The spec that the pod holds if it differs from its requests, and its unreadable part."""

    def is_infeasible() -> bool:
        pending = (c.reason for c in status.conditions if c.type == "PodResizePending")
        return next(pending, "") == "Infeasible"

    statuses = (*status.containerStatuses, *status.initContainerStatuses)
    try:
        held = held_spec(spec, statuses, status, is_infeasible)
    except QuantityError as error:
        return None, f"what it holds while it is resized: {error}"
    return (None if held is spec else parse_spec(held)[0]), ""


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
