"""The gang that a pod names, in the labels and annotations of every common system.

The first system in ``_READERS`` of which a pod has labels or annotations decides. Users write all of them, so
a gang never crosses a namespace, and a name that is too long for an object is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from extender.k8s.job_kinds import NATIVE
from extender.k8s.node_filter import HOSTNAME
from extender.k8s.objects import Pod, PodGroupKind, RequiredDomain, required_domain
from extender.untrusted.limits import OBJECT_NAME

GANG = "stowage.dev/gang"
"""Label or annotation of a pod: the name of its gang."""
GANG_MIN = "stowage.dev/gang-min"
"""Label or annotation: number of members that must run; all if it is absent."""
KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"
"""Annotation: the name of the Workload of the pod's job."""
KUEUE_POD_SET = "kueue.x-k8s.io/podset"
"""Label: the part of the Workload to which the pod belongs."""
KUEUE_LEVEL = "kueue.x-k8s.io/podset-required-topology"
"""Annotation: the label key of nodes that all pods of a part of a Workload must share."""
_KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
_KOORDINATOR_MIN = "gang.scheduling.koordinator.sh/min-available"
_OLD_KOORDINATOR = "pod-group.scheduling.sigs.k8s.io"
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


class _Topology(NamedTuple):
    """Annotations of a system: the level in which all pods must share a domain, that for each slice of them,
    and the number of pods of a slice."""

    level: str
    slice_level: str
    slice_size: str


_TOPOLOGIES = (
    # kubernetes-sigs/kueue, ``apis/kueue/v1beta2/topology_types.go``
    _Topology(
        KUEUE_LEVEL,
        "kueue.x-k8s.io/podset-slice-required-topology",
        "kueue.x-k8s.io/podset-slice-size",
    ),
    # kai-scheduler/KAI-Scheduler, docs/topology
    _Topology(
        "kai.scheduler/topology-required-placement",
        "kai.scheduler/segment-topology-required-placement",
        "kai.scheduler/segment-size",
    ),
)
_SLICES_OF_SLICES = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
_REQUIRE_A_DOMAIN = frozenset({
    *(name for names in _TOPOLOGIES for name in (names.level, names.slice_level)),
    _SLICES_OF_SLICES,
})  # fmt: skip
_INDEXES = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "kueue.x-k8s.io/pod-group-pod-index",
)
"""Labels with the number of a pod in its job, by which systems make slices."""
_PARTS = ("kai.scheduler/subgroup-name", "grove.io/podclique")
"""Labels with the part of a PodGroup of KAI, or of a PodGang, to which a pod belongs."""


@dataclass(frozen=True, slots=True)
class GangWords:
    """A pod's declaration of its gang. ``kind`` and ``name`` identify the gang within a namespace.

    ``minimum``: the one that the pod itself declares, None if it declares none. ``pod_groups``: kinds of
    objects that declare the minimum, with this name or the name ``object``; the first that exists counts.
    ``role``: the role whose number in that object counts, "" for all, and ``stage`` one of the roles that run
    in a stage of it. ``indispensable``: without this pod, the others are useless. ``others_unlike``: members
    that do not exist yet may have requests that differ from this pod's. ``domains``: topology domains that
    the pod must share with others, by its own annotations; ``part``: its part of ``object``, which may
    require some.
    """

    kind: str
    name: str
    minimum: int | None = None
    pod_groups: tuple[PodGroupKind, ...] = ()
    object: str = ""
    role: str = ""
    stage: str = ""
    indispensable: bool = False
    others_unlike: bool = False
    domains: tuple[RequiredDomain, ...] = ()
    part: str = ""


NO_WORDS = GangWords("", "")


def words_of(pod: Pod) -> GangWords | None:
    """The gang that a pod names, None if it names none."""
    if not pod.pod_group and _NAMES.isdisjoint(pod.labels) and _NAMES.isdisjoint(pod.annotations):
        return None  # as for most pods
    for read in _READERS:
        words = read(pod)
        if words is not None:
            domains, part = _own_domains(pod), next(filter(None, map(pod.labels.get, _PARTS)), "")
            words = replace(words, domains=domains, part=part) if domains or part else words
            return words if 0 < len(words.name) <= OBJECT_NAME else None
    return None


def _own_domains(pod: Pod) -> tuple[RequiredDomain, ...]:
    """The domains that the pod's annotations require, the widest first. Once Kueue has chosen the nodes and
    written node selectors, there is nothing to choose."""
    entries = pod.annotations
    if _REQUIRE_A_DOMAIN.isdisjoint(entries):
        return ()
    pod_set = pod.labels.get(KUEUE_POD_SET, "")
    selected = {key for key, _ in pod.spec.node_selector}
    if pod_set and not selected.isdisjoint({HOSTNAME, *(entries.get(names.level) for names in _TOPOLOGIES)}):
        return ()
    group = entries.get("kueue.x-k8s.io/podset-group-name") or pod_set
    found = [required_domain(entries.get(names.level), group) for names in _TOPOLOGIES]
    found += [_slice(pod, group, names) for names in _TOPOLOGIES]
    found += [(RequiredDomain(""),)] if _SLICES_OF_SLICES in entries else []
    return tuple(domain for domains in found for domain in domains)


def _slice(pod: Pod, group: str, names: _Topology) -> tuple[RequiredDomain, ...]:
    """The slice of the pod: by its number in its job, and the number of the job in its JobSet."""
    if names.slice_level not in pod.annotations:
        return ()
    size = _count(pod.annotations, names.slice_size)
    numbers = (_count(pod.labels, label) for label in _INDEXES)
    number = next((number for number in numbers if number is not None), None)
    if not size or number is None:
        return (RequiredDomain(""),)
    job = pod.labels.get("jobset.sigs.k8s.io/job-index", "")
    return required_domain(pod.annotations[names.slice_level], f"{group} {job} slice {number // size}", size)


_Entries: TypeAlias = tuple[tuple[Callable[[Pod], Mapping[str, str]], str], ...]


def _labels(*keys: str) -> _Entries:
    return tuple((attrgetter("labels"), key) for key in keys)


def _annotations(*keys: str) -> _Entries:
    return tuple((attrgetter("annotations"), key) for key in keys)


@dataclass(frozen=True, slots=True)
class _System:
    """A system whose pods name their gang in the first of ``names`` that they have, its minimum in the first
    of ``minimums``, and their stage in the label ``stage``. ``alone``: pods that each run on their own."""

    kind: str
    names: _Entries
    pod_groups: tuple[PodGroupKind, ...] = ()
    minimums: _Entries = ()
    stage: str = ""
    alone: Callable[[Pod], bool] = field(default=lambda pod: False)

    def __call__(self, pod: Pod) -> GangWords | None:
        name = next(filter(None, (entries(pod).get(key) for entries, key in self.names)), "")
        if not name or self.alone(pod):
            return None
        counts = (_count(entries(pod), key) for entries, key in self.minimums)
        minimum = next((count for count in counts if count is not None), None)
        return GangWords(self.kind, name, minimum, self.pod_groups, stage=pod.labels.get(self.stage, ""))


def _is_serving(pod: Pod) -> bool:
    """Whether each pod of the group serves on its own, such as those of a StatefulSet: kubernetes-sigs/kueue,
    ``GroupServingAnnotationKey`` in ``pkg/controller/jobs/pod/constants``."""
    return pod.annotations.get("kueue.x-k8s.io/pod-group-serving") == "true"


_KUBEFLOW: tuple[PodGroupKind, ...] = ("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob")
_LEADERS = frozenset({"master", "chief", "launcher"})
"""Types of replicas without which the job's workers are useless."""


def _kubeflow(pod: Pod) -> GangWords | None:
    """kubeflow/trainer, branch release-1.9, ``pkg/apis/kubeflow.org/v1/common_types.go``. Only the launcher
    of an MPIJob (kubeflow/mpi-operator, v2beta1) is a pod of a separate Job. Workers may come and go, the
    master is a subgroup of its own (NVIDIA/KAI-Scheduler, ``pkg/podgrouper/podgrouper/plugins/kubeflow``)."""
    name = pod.labels.get("training.kubeflow.org/job-name")
    if not name:
        return None
    kinds: tuple[PodGroupKind, ...] = ("MPIJob", "OldMPIJob")
    if pod.owner and pod.owner.kind in _KUBEFLOW:
        kinds = tuple(kind for kind in _KUBEFLOW if kind == pod.owner.kind)
    leads = pod.labels.get("training.kubeflow.org/replica-type", "").lower() in _LEADERS
    return GangWords(kinds[0], name, pod_groups=kinds, indispensable=leads)


def _kueue_workload(pod: Pod) -> GangWords | None:
    """kubernetes-sigs/kueue, ``apis/kueue/v1beta2/topology_types.go`` (WorkloadAnnotation, set by default
    since 0.14). A Job that is not Indexed is a queue of tasks. Slices of an elastic job replace each
    other."""
    name = pod.annotations.get(KUEUE_WORKLOAD)
    indexed = "batch.kubernetes.io/job-completion-index" in pod.labels
    elastic = "kueue.x-k8s.io/workload-slice-name" in pod.annotations
    is_job = pod.owner is None or pod.owner.kind == "Job"
    if not name or elastic or (is_job and not indexed) or _is_serving(pod):
        return None
    return GangWords("Kueue Workload", name, pod_groups=("KueueWorkload",))


def _leader_worker_set(pod: Pod) -> GangWords | None:
    """kubernetes-sigs/lws, ``api/leaderworkerset/v1/leaderworkerset_types.go``. A group restarts as a whole
    (RecreateGroupOnPodRestart, the default). Its workers may be created only when the leader is ready, from a
    different template."""
    prefix = "leaderworkerset.sigs.k8s.io/"
    name, index = pod.labels.get(f"{prefix}name"), pod.labels.get(f"{prefix}group-index")
    if not name or not index:
        return None
    return GangWords(
        "LeaderWorkerSet",
        f"{name}-{index}",
        _count(pod.annotations, f"{prefix}size"),
        ("LeaderWorkerSet",),
        object=name,
        indispensable=pod.labels.get(f"{prefix}worker-index") == "0",
        others_unlike=True,
    )


def _ray(pod: Pod) -> GangWords | None:
    """ray-project/kuberay, ``ray-operator/controllers/ray/utils/constant.go``. A cluster is lost with its
    head, and continues with any number of workers. The hosts of one worker replica
    (``ray.io/worker-group-replica-name``, since 1.5) are replaced together."""
    name = pod.labels.get("ray.io/cluster")
    if not name:
        return None
    replica = pod.labels.get("ray.io/worker-group-replica-name")
    if replica:
        group = pod.labels.get("ray.io/group", "")
        return GangWords("Ray worker", replica, None, ("RayCluster",), object=name, role=group)
    head = pod.labels.get("ray.io/node-type") == "head"
    return GangWords("Ray", name, 1, ("RayCluster",), indispensable=head, others_unlike=True)


def _sharing_a_domain(pod: Pod) -> GangWords | None:
    """Any number of pods of one controller may run, but in the domain that they require."""
    owner = pod.owner
    return GangWords("Topology", f"{owner.kind} {owner.name}", 0) if owner and _own_domains(pod) else None


_READERS: tuple[Callable[[Pod], GangWords | None], ...] = (
    _System("stowage", _labels(GANG) + _annotations(GANG), (), _labels(GANG_MIN) + _annotations(GANG_MIN)),
    # ``spec.schedulingGroup.podGroupName`` (Kubernetes 1.36 and later, feature gate GenericWorkload):
    # k8s.io/api v0.36.3, ``core/v1/types.go``
    lambda pod: GangWords("PodGroup", pod.pod_group, pod_groups=NATIVE) if pod.pod_group else None,
    # kubernetes-sigs/scheduler-plugins, ``apis/scheduling/v1alpha1/types.go`` (PodGroupLabel). Koordinator
    # may read the same label: without the object, its annotation contains the minimum.
    _System(
        "coscheduling",
        _labels("scheduling.x-k8s.io/pod-group"),
        ("CoschedulingPodGroup",),
        _annotations(_KOORDINATOR_MIN),
    ),
    # volcano-sh/apis, ``pkg/apis/scheduling/v1beta1/labels.go``
    _System(
        "Volcano",
        _annotations("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"),
        ("VolcanoPodGroup",),
    ),
    # NVIDIA/KAI-Scheduler, ``pkg/common/constants/constants.go`` (PodGroupAnnotationForPod)
    _System("KAI", _annotations("pod-group-name"), ("KaiPodGroup",)),
    # koordinator-sh/koordinator, ``apis/extension/coscheduling.go``, and ``GetGangNameByPod`` of
    # ``pkg/scheduler/plugins/coscheduling/util/gang_helper.go``
    _System(
        "Koordinator",
        _labels(_OLD_KOORDINATOR, f"{_OLD_KOORDINATOR}/name")
        + _annotations("gang.scheduling.koordinator.sh/name"),
        ("KoordinatorPodGroup",),
        _labels(f"{_OLD_KOORDINATOR}/min-available") + _annotations(_KOORDINATOR_MIN),
    ),
    # kubernetes-sigs/kueue, ``GetPodGroupName`` in ``pkg/util/pod/pod.go``: groups of plain pods. Since 0.18
    # the name may be an annotation, which decides.
    _System(
        "Kueue",
        _annotations(_KUEUE_GROUP) + _labels(_KUEUE_GROUP),
        minimums=_annotations("kueue.x-k8s.io/pod-group-total-count"),
        alone=_is_serving,
    ),
    _leader_worker_set,
    # NVIDIA/grove, ``operator/api/common/labels.go``
    _System("PodGang", _labels("grove.io/podgang"), ("PodGang",)),
    # kubernetes-sigs/jobset, ``api/jobset/v1alpha2/jobset_types.go``. By its failure policy, a JobSet
    # restarts all of its jobs when one has failed.
    _System(
        "JobSet",
        _labels("jobset.sigs.k8s.io/jobset-name"),
        ("JobSet",),
        stage="jobset.sigs.k8s.io/replicatedjob-name",
    ),
    *(_kubeflow, _ray, _kueue_workload, _sharing_a_domain),
)
_NAMES = frozenset({
    *(key for system in _READERS if isinstance(system, _System) for _, key in system.names),
    *("leaderworkerset.sigs.k8s.io/name", "ray.io/cluster"),
    *("training.kubeflow.org/job-name", KUEUE_WORKLOAD, *_REQUIRE_A_DOMAIN),
})  # fmt: skip
"""Labels and annotations with the name of a gang: a pod without any of them names no gang."""


def _count(entries: Mapping[str, str], key: str) -> int | None:
    """The number of members that an entry declares, None if it is missing or not a number."""
    text = entries.get(key)
    return int(text) if text and _COUNT.fullmatch(text) else None
