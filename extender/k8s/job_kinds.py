"""Jobs of many pods, from the objects of their operators: the number of pods that start together, and which;
the PodGroups of all APIs that have one; and the pod templates in an object of any kind.

A kind is a row of ``JOB_KINDS``, its name in ``objects.JobKind``, the reader of its pods' labels in
``queues.gang_words`` and its rule in ``deploy/rbac.yaml``. A TrainJob (Kubeflow Trainer v2) creates a JobSet,
NVIDIA's Dynamo a PodGang or a LeaderWorkerSet, a RayJob and a RayService a RayCluster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct

from extender.k8s.manifest import Int, Manifest, Unreadable, as_list, as_map, as_text, is_large, unix_seconds
from extender.k8s.objects import (
    Admission,
    Job,
    JobKind,
    JobTemplate,
    PodGroup,
    PodGroupKind,
    ReplicaSet,
    RequiredDomain,
    Stage,
    required_domain,
)
from extender.k8s.pod_manifest import PodManifest, time_limit
from extender.untrusted.limits import GANG_LEVELS, GANG_MEMBERS, GANG_TEMPLATES, OBJECT_ENTRIES

SUSPENDED = "spec.suspend: true"
"""Added to the gates of a pod whose workload is suspended."""
USED_UP = "ResourceQuota"
"""The first gate of a pod that is not created, before its quota."""
KUEUE_QUEUE, KUEUE_GATE = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/admission"
"""Kueue holds objects with this label until admission (kubernetes-sigs/kueue, pkg/controller/constants)."""
_Fields = dict[str, Any]
PRIORITY_BOOST, BOOSTED_AT = "kueue.x-k8s.io/priority-boost", "stowage.dev/priority-boosted-at"
"""Annotations of a Workload: what Kueue adds to its priority, and when Stowage last changed that."""


class Size(NamedTuple):
    """The minimum of pods of a job that must run, and other fields of ``PodGroup``."""

    minimum: int
    together: int | None = None
    by_role: Mapping[str, int] = {}
    stages: Mapping[str, Stage] = {}
    domains: tuple[RequiredDomain, ...] = ()
    domains_of: Mapping[str, tuple[RequiredDomain, ...]] = {}


class _Row(NamedTuple):
    """``path`` of the kind's lists below /apis. ``size`` reads ``spec`` and ``status``."""

    path: str
    size: Callable[[_Fields, _Fields], Size]


def _kubeflow(spec: _Fields, status: _Fields) -> Size:
    """``runPolicy.schedulingPolicy.minAvailable``, else the elastic minimum, else all. A launcher that waits
    for the workers is not created before they run. MPI jobs have no workers by default, other roles one."""
    roles = [(key, as_map(value)) for key, value in spec.items() if key.endswith("ReplicaSpecs")]
    pods = {
        name: count_of(as_map(replica).get("replicas"), int((key, name) != ("mpiReplicaSpecs", "Worker")))
        for key, role in roles
        for name, replica in role.items()
    }
    if spec.get("launcherCreationPolicy") == "WaitForWorkersReady":
        pods.pop("Launcher", None)
    total = sum(pods.values())
    policy = as_map(as_map(spec.get("runPolicy")).get("schedulingPolicy"))
    least = count_of(as_map(spec.get("elasticPolicy")).get("minReplicas"), total)
    return Size(min(count_of(policy.get("minAvailable"), least), total))


def _job_set(spec: _Fields, status: _Fields) -> Size:
    """All pods of all jobs, including those that ``dependsOn`` or a startup policy holds back until others
    are ready: they need resources beside them. A job that waits until another is complete is a later stage:
    it runs with the jobs that may run then."""
    jobs = [as_map(job) for job in as_list(spec.get("replicatedJobs"))]
    total = sum(map(_pods_of_job, jobs))
    if len(jobs) > GANG_TEMPLATES or not any("dependsOn" in job for job in jobs):
        return Size(total)
    pods, done = dict[str, int](), dict[str, frozenset[str]]()  # complete before a job starts, by job
    for job in jobs:  # each names only jobs above it
        name, before = as_text(job.get("name")), frozenset[str]()
        for dependency in map(as_map, as_list(job.get("dependsOn"))):
            if (other := as_text(dependency.get("name"))) in done:
                before |= done[other] | {other} if dependency.get("status") == "Complete" else done[other]
        pods[name], done[name] = _pods_of_job(job), before
    stages = {}
    for name, before in done.items():
        running = frozenset(other for other in done if done[other] <= before and other not in before)
        stages[name] = Stage(sum(pods[other] for other in running), running)
    return Size(next(iter(stages.values())).pods, stages=stages)


def _pods_of_job(replicated: _Fields) -> int:
    spec = as_map(as_map(replicated.get("template")).get("spec"))
    parallelism = count_of(spec.get("parallelism"), 1)
    at_once = min(parallelism, count_of(spec.get("completions"), parallelism))
    return count_of(replicated.get("replicas"), 1) * at_once


def _pod_gang(spec: _Fields, status: _Fields) -> Size:
    """The groups of pods may share domains, some of them another, and each its own. The operator writes the
    keys of node labels into ``packConstraint.required``."""
    groups = [as_map(group) for group in as_list(spec.get("podgroups"))]
    parts = defaultdict[str, list[RequiredDomain]](list)
    for config in map(as_map, as_list(spec.get("topologyConstraintGroupConfigs"))):
        shared = required_domain(_packed(config), f"groups {as_text(config.get('name'))}")
        for name in {*map(as_text, as_list(config.get("podGroupNames")))}:
            parts[name] += shared
    for group in groups:
        name = as_text(group.get("name"))
        parts[name] += required_domain(_packed(group), name)
    minimum = sum(count_of(group.get("minReplicas")) for group in groups)
    domains_of = {name: tuple(domains) for name, domains in parts.items() if domains}
    return Size(minimum, domains=required_domain(_packed(spec)), domains_of=domains_of)


def _packed(spec: _Fields) -> object:
    return as_map(as_map(spec.get("topologyConstraint")).get("packConstraint")).get("required")


def _leader_worker_set(spec: _Fields, status: _Fields) -> Size:
    """The size of one group: each group is a separate gang."""
    return Size(count_of(as_map(spec.get("leaderWorkerTemplate")).get("size"), 1))


def _ray_cluster(spec: _Fields, status: _Fields) -> Size:
    """Ray works with its head and any number of workers, but a head alone is useless: the cluster starts with
    the ``minReplicas`` of each group, or with one worker. A replica needs all of its hosts."""
    groups = [as_map(group) for group in as_list(spec.get("workerGroupSpecs"))]
    groups = [group for group in groups if group.get("suspend") is not True]
    hosts = {as_text(group.get("groupName")): count_of(group.get("numOfHosts")) or 1 for group in groups}
    workers = sum(
        count_of(group.get("minReplicas")) * (count_of(group.get("numOfHosts")) or 1) for group in groups
    )
    wanted = any(count_of(group.get("replicas")) for group in groups)
    return Size(1, min(1 + (workers or wanted), GANG_MEMBERS), hosts)


def _kueue(spec: _Fields, status: _Fields) -> Size:
    """The counts of the admission, which may be partial, else the requested ones."""
    admitted = as_list(as_map(status.get("admission")).get("podSetAssignments"))
    return Size(
        sum(count_of(as_map(pod_set).get("count")) for pod_set in admitted or as_list(spec.get("podSets")))
    )


JOB_KINDS: Mapping[JobKind, _Row] = {
    # https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1 (SchedulingPolicy), and
    # minMember in pkg/controller.v1/common/job.go
    "PyTorchJob": _Row("kubeflow.org/v1/pytorchjobs", _kubeflow),
    "TFJob": _Row("kubeflow.org/v1/tfjobs", _kubeflow),
    "XGBoostJob": _Row("kubeflow.org/v1/xgboostjobs", _kubeflow),
    "JAXJob": _Row("kubeflow.org/v1/jaxjobs", _kubeflow),
    "PaddleJob": _Row("kubeflow.org/v1/paddlejobs", _kubeflow),
    "OldMPIJob": _Row("kubeflow.org/v1/mpijobs", _kubeflow),
    # https://github.com/kubeflow/mpi-operator/blob/master/pkg/controller/podgroup.go (calculateMinAvailable)
    "MPIJob": _Row("kubeflow.org/v2beta1/mpijobs", _kubeflow),
    # https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go (ReplicatedJob)
    "JobSet": _Row("jobset.x-k8s.io/v1alpha2/jobsets", _job_set),
    # https://github.com/NVIDIA/grove/blob/main/scheduler/api/core/v1alpha1/podgang.go (PodGroup.MinReplicas)
    "PodGang": _Row("scheduler.grove.io/v1alpha1/podgangs", _pod_gang),
    # https://github.com/kubernetes-sigs/lws/blob/main/api/leaderworkerset/v1/leaderworkerset_types.go (Size)
    "LeaderWorkerSet": _Row("leaderworkerset.x-k8s.io/v1/leaderworkersets", _leader_worker_set),
    # https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/util.go
    "RayCluster": _Row("ray.io/v1/rayclusters", _ray_cluster),
    # https://github.com/kubernetes-sigs/kueue/blob/main/apis/kueue/v1beta2/workload_types.go (Admission)
    "KueueWorkload": _Row("kueue.x-k8s.io/v1beta2/workloads", _kueue),
}


class JobManifest(Manifest, frozen=True, gc=False):
    """A job of any of these kinds."""

    kind: str = ""
    spec: Any = None
    status: Any = None

    def record(self, kind: JobKind | None = None) -> PodGroup:
        """The number of the job's pods that run together. ``kind``: for a job that does not name its own."""
        named: list[JobKind] = [known for known in JOB_KINDS if known == self.kind]
        own = kind or named[0]
        spec, namespace = as_map(self.spec), self.metadata.namespace_or_default
        if is_large([self.spec, self.status]):
            problem = f"it has more than {OBJECT_ENTRIES} entries"
            return PodGroup(own, namespace, self.metadata.name, None, problem=problem)
        size = JOB_KINDS[own].size(spec, as_map(self.status))
        return PodGroup(
            own,
            namespace,
            self.metadata.name,
            min(size.minimum, GANG_MEMBERS),
            together=size.together,
            by_role=dict(islice(size.by_role.items(), GANG_TEMPLATES)),
            stages=size.stages,
            domains=size.domains,
            domains_of=size.domains_of,
            templates=tuple(_templates(spec, namespace)),
            longest=_longest(spec),
            is_suspended=is_suspended(spec),
            admission=_admission(self) if own == "KueueWorkload" else None,
        )


class _TimeLimit(Struct, frozen=True, gc=False):
    activeDeadlineSeconds: Int | None = None
    suspend: bool = False


class _Start(Struct, frozen=True, gc=False):
    startTime: str | None = None


class TimedJobManifest(Manifest, frozen=True, gc=False):
    """The time limit of a Job of Kubernetes (k8s.io/api v0.37.1, ``batch/v1/types.go``). A suspended Job
    keeps the time of its last start until it is resumed."""

    spec: _TimeLimit = _TimeLimit()
    status: _Start = _Start()

    def record(self) -> Job:
        metadata, started = self.metadata, unix_seconds(self.status.startTime) * (not self.spec.suspend)
        limit = time_limit(self.spec.activeDeadlineSeconds, metadata.labels)
        return Job(metadata.namespace_or_default, metadata.name, metadata.uid, started, *limit)


class _Amounts(_TimeLimit, frozen=True, gc=False):
    parallelism: Int | None = None
    completions: Int | None = None
    replicas: Int | None = None
    template: Any = None


class _Made(_Start, frozen=True, gc=False):
    active: Int | None = None
    succeeded: Int | None = None
    replicas: Int | None = None
    conditions: tuple[dict[str, Any], ...] = ()


class PodOwnerManifest(TimedJobManifest, frozen=True, gc=False):
    """A Job or ReplicaSet with the pods that it has not created (k8s.io/api v0.37.1, ``batch/v1/types.go``,
    ``apps/v1/types.go``)."""

    spec: _Amounts = _Amounts()
    status: _Made = _Made()

    def record(self) -> Job:
        job, spec, status = super().record(), self.spec, self.status
        at_once = 1 if spec.parallelism is None else spec.parallelism
        if spec.completions is not None:
            at_once = min(at_once, spec.completions - (status.succeeded or 0))
        wanted = at_once if spec.replicas is None else spec.replicas
        missing = min(wanted - (status.active or status.replicas or 0), GANG_MEMBERS)
        held = [of.get("type") for of in status.conditions if of.get("status") == "True"]
        is_read = missing > 0 and not is_large([spec.template])
        templates = _templates({"template": spec.template}, job.namespace) if is_read else []
        if not templates or "Complete" in held or "Failed" in held:
            return job
        gate = (KUEUE_GATE if KUEUE_QUEUE in self.metadata.labels else SUSPENDED,) if spec.suspend else ()
        pod = templates[0].pod
        return replace(job, unmade=JobTemplate(replace(pod, gates=pod.gates or gate), missing))


class ReplicaSetManifest(PodOwnerManifest, frozen=True, gc=False):
    def record(self) -> ReplicaSet:
        job = super().record()
        return ReplicaSet(job.namespace, job.name, job.uid, problem=job.problem, unmade=job.unmade)


def is_suspended(spec: _Fields) -> bool:
    """Whether a workload creates no pods at present: ``spec`` of a Job, or of one of Kubeflow."""
    return True in (spec.get("suspend"), as_map(spec.get("runPolicy")).get("suspend"))


def _admission(workload: JobManifest) -> Admission | None:
    """None once it has finished (kubernetes-sigs/kueue, ``apis/kueue/v1beta2/workload_types.go``)."""
    spec, status, notes = as_map(workload.spec), as_map(workload.status), workload.metadata.annotations
    conditions = map(as_map, as_list(status.get("conditions")))
    true = {as_text(known.get("type")) for known in conditions if known.get("status") == "True"}
    evictions = map(as_map, as_list(as_map(status.get("schedulingStats")).get("evictions")))
    boost, boosted = notes.get(PRIORITY_BOOST, "0"), unix_seconds(notes.get(BOOSTED_AT))
    priority = spec.get("priority") or 0
    if "Finished" in true or type(priority) is not int:
        return None
    return Admission(
        workload.metadata.resourceVersion,
        as_text(as_map(status.get("admission")).get("clusterQueue")),
        priority,
        "Admitted" in true and "Evicted" not in true,
        sum(count_of(known.get("count")) for known in evictions if known.get("reason") == "Preempted"),
        int(boost) if boost == "0" or (boosted and boost in set("123456789")) else None,
        boosted,
    )


def _longest(spec: _Fields) -> float:
    """Seconds from the job's start (Kubeflow), or from the admission (Kueue); pods start later, so none runs
    longer."""
    of_job = as_map(spec.get("runPolicy")).get("activeDeadlineSeconds")
    limits = spec.get("maximumExecutionTimeSeconds"), of_job
    known = (float(limit) for limit in limits if type(limit) is int and 0 <= limit < 2**63)
    return min(known, default=math.inf)


def _templates(spec: _Fields, namespace: str) -> list[JobTemplate]:
    """The pods that a spec creates. Unreadable ones are omitted until they exist."""
    found = []
    with suppress(RecursionError):
        for number, (path, template, count) in enumerate(islice(pod_templates(spec, (), 1), GANG_TEMPLATES)):
            own = as_map(template.get("metadata"))
            metadata = {**own, "namespace": namespace, "name": f"template-{number}"}
            with suppress(Unreadable):
                pod = PodManifest.from_value({"metadata": metadata, "spec": template["spec"]}).record()
                found.append(JobTemplate(pod, min(count, GANG_MEMBERS), *path[-1:]))
    return found


def count_of(value: object, default: int = 0) -> int:
    """A number of pods; ``default`` if the field is absent or not a number."""
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return max(0, min(value, GANG_MEMBERS))


def pod_templates(
    value: object, path: tuple[str, ...], count: int
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], int]]:
    """The pod templates in a value, each with the path that identifies it within its workload, and its number
    of pods; for a LeaderWorkerSet, those of one group.

    A pod template is a map whose ``spec`` has ``containers``, at any path: in Deployments, Jobs, CronJobs,
    JobSets, RayClusters and Kubeflow's jobs. KServe's InferenceServices have a pod spec without a template,
    or a ``model`` with resources (kserve/kserve, pkg/apis/serving/v1beta1/predictor.go), and the templates of
    Argo Workflows one ``container`` or ``script`` (argoproj/argo-workflows, pkg/apis/workflow/v1alpha1).
    """
    if isinstance(value, list):
        for number, item in enumerate(value):
            names = (as_text(as_map(item).get(key)) for key in ("name", "groupName"))
            yield from pod_templates(item, (*path, next(filter(None, names), str(number))), count)
    elif isinstance(value, dict):
        if "leaderWorkerTemplate" not in value:
            count *= count_of(next((value[key] for key in _COPIES if key in value), None), 1)
            count *= count_of(value.get("numOfHosts")) or 1  # of a Ray worker group
            nodes = as_map(value.get("multinode")).get("nodeCount")  # of a Dynamo service
            count *= count_of(nodes or as_map(value.get("multiNode")).get("size")) or 1  # of a NIMService
        if isinstance(as_map(value.get("spec")).get("containers"), list):
            yield path, value, count
        elif isinstance(value.get("containers"), list):  # a pod spec without "template", as in KServe
            yield path, {"spec": value}, count
        elif container := next(filter(_is_container, map(value.get, _ONE_CONTAINER)), None):
            yield path, {"spec": {**value, "containers": [container]}}, count
        elif resources := next(filter(None, (_gpu_resources(value.get(key)) for key in _RESOURCES)), None):
            pod = {**as_map(value.get("extraPodSpec")), **value, "containers": [{"resources": resources}]}
            yield path, {"spec": pod}, count * (count_of(value.get("numNodes")) or 1)
        else:
            for key, part in value.items():
                is_name = key not in _STRUCTURE and not isinstance(part, list)
                others = int("leaderTemplate" in value) if key == "workerTemplate" else 0
                copies = max(count_of(value.get("size")) - others, 1) if key == "workerTemplate" else 1
                yield from pod_templates(part, (*path, key) if is_name else path, count * copies)


def _gpu_resources(value: object) -> dict[str, Any]:
    """The requests of one container, if they include GPUs; Dynamo and vLLM call these ``gpu``."""
    asked = as_map(value)
    parts = {part: as_map(asked.get(part)) for part in ("limits", "requests")}
    parts = {"limits": {k: v for k, v in asked.items() if k in _FLAT}} if "gpu" in asked else parts
    if not any("gpu" in name for names in parts.values() for name in names):
        return {}
    renamed = {"gpu": as_text(asked.get("gpuType")) or "nvidia.com/gpu"}
    return {part: {renamed.get(k, k): v for k, v in names.items()} for part, names in parts.items()}


def _is_container(value: object) -> bool:
    return "image" in as_map(value) or "resources" in as_map(value)


_ONE_CONTAINER = ("container", "script", "model")
"""Keys of a single container that represents a pod: templates of Argo Workflows, KServe's predictor."""
_RESOURCES = ("resources", "resourcesPerNode")
"""Keys of the requests of each pod in objects without a pod spec: NVIDIA's NIMService and Dynamo
(NVIDIA/k8s-nim-operator, ai-dynamo/dynamo), the TrainJob of kubeflow/trainer (pkg/apis/trainer)."""
_FLAT = frozenset({"cpu", "memory", "gpu"})
"""Resources of vLLM's VLLMRuntime, without limits and requests (vllm-project/production-stack)."""
_COPIES = ("replicas", "parallelism", "count")
"""Keys of a template's number of pods; ``count`` is that of Kueue's Workload."""
_STRUCTURE = frozenset({"spec", "template", "jobTemplate"})
"""Keys that do not identify a template."""


def parts_of(value: object) -> Iterator[object]:
    """The value and everything in it."""
    yield value
    for part in value.values() if isinstance(value, dict) else as_list(value):
        yield from parts_of(part)


POD_GROUP_APIS: dict[str, PodGroupKind] = {
    "scheduling.k8s.io/v1beta1": "PodGroup",
    "scheduling.k8s.io/v1alpha3": "AlphaPodGroup",
    "scheduling.k8s.io/v1alpha2": "OldAlphaPodGroup",
    "scheduling.x-k8s.io/v1alpha1": "CoschedulingPodGroup",
    "scheduling.sigs.k8s.io/v1alpha1": "KoordinatorPodGroup",
    "scheduling.volcano.sh/v1beta1": "VolcanoPodGroup",
    "scheduling.run.ai/v2alpha2": "KaiPodGroup",
}
NATIVE: tuple[PodGroupKind, ...] = ("PodGroup", "AlphaPodGroup", "OldAlphaPodGroup")
"""The kinds of Kubernetes itself: those of 1.37, the newest first, and that of 1.36."""
_MOST = (1 << 31) - 1  # all these fields are int32


class _Gang(Struct, frozen=True, gc=False):
    minCount: Int | None = None


class _Policy(Struct, frozen=True, gc=False):
    basic: dict[str, Any] | None = None
    gang: _Gang | None = None


class _Spec(Struct, frozen=True, gc=False):
    parentCompositePodGroupName: str | None = None
    schedulingPolicy: _Policy = _Policy()
    disruptionMode: Any = None
    minMember: Int | None = None
    minTaskMember: dict[str, Int] = {}
    subGroups: tuple[Any, ...] = ()
    minSubGroup: Any = None
    schedulingConstraints: Any = None
    topologyConstraint: Any = None
    priority: Int | None = None
    preemptionPolicy: Any = None


class PodGroupManifest(Manifest, frozen=True, gc=False):
    """A PodGroup of the API in ``apiVersion``, which items of a list do not have.

    Sources: Kubernetes' own: k8s.io/api v0.36.3, ``scheduling/v1alpha2/types.go``; v1beta1 and v1alpha3
    (v0.37.2) write ``disruptionMode`` as a union, ``{all: {}}``; their ``schedulingConstraints.topology`` has
    one item (``pkg/scheduler/framework/plugins/topologyaware/topology_placement.go``).
    kubernetes-sigs/scheduler-plugins, ``apis/scheduling/v1alpha1/types.go``, and its older group that
    Koordinator uses. volcano-sh/apis, ``pkg/apis/scheduling/v1beta1/types.go``.
    kai-scheduler/KAI-Scheduler, ``pkg/apis/scheduling/v2alpha2``, and docs/topology/multilevel.md: a level is
    a label of nodes, or an alias in a Topology, which is not read.
    """

    apiVersion: str = ""
    spec: _Spec = _Spec()

    def record(self, kind: PodGroupKind = "PodGroup") -> PodGroup:
        """The group, of this kind if it does not name its API. Its namespace is ``default`` if the manifest
        has none."""
        kind = POD_GROUP_APIS.get(self.apiVersion, kind)
        is_native = kind in NATIVE
        minimum, whole = _native(self.spec) if is_native else _of_custom_resource(self.spec)
        if minimum is not None and not 0 <= minimum <= _MOST:
            minimum = None
        in_composite = is_native and bool(self.spec.parentCompositePodGroupName)
        namespace, name = self.metadata.namespace_or_default, self.metadata.name
        priority = self.spec.priority if kind in NATIVE[:2] and not in_composite else None
        never = is_native and self.spec.preemptionPolicy == "Never"
        group = PodGroup(kind, namespace, name, minimum, whole, in_composite, priority=priority)
        levels = as_list(as_map(self.spec.schedulingConstraints).get("topology"))[: GANG_LEVELS + 1]
        native = [domain for level in levels for domain in required_domain(as_map(level).get("key"))]
        domains = tuple(native) if is_native else required_domain(_level(self.spec.topologyConstraint))
        parts = _parts(self.spec.subGroups)
        return replace(group, never_preempts=never, domains=domains, domains_of=parts)


def _native(spec: _Spec) -> tuple[int | None, bool]:
    policy, mode = spec.schedulingPolicy, spec.disruptionMode
    whole = mode == "PodGroup" or (isinstance(mode, dict) and "all" in mode)
    if policy.gang is None:
        return (None if policy.basic is None else 0), whole
    return policy.gang.minCount, whole


def _of_custom_resource(spec: _Spec) -> tuple[int | None, bool]:
    """KAI's subgroups and Volcano's tasks have their own minimums, so it matters which member is removed.
    Volcano ignores those of tasks if the group's minimum is below their sum (``CheckTaskValid`` of its
    ``pkg/scheduler/api/job_info.go``)."""
    minimum, tasks = spec.minMember, spec.minTaskMember
    if minimum is None:  # absent in JSON if it is 0
        groups = [{"minSubGroup": spec.minSubGroup}, *map(as_map, spec.subGroups)]
        fewer = any(group.get("minSubGroup") is not None for group in groups)
        minimum = None if fewer else sum(count_of(group.get("minMember")) for group in groups)
    whole = len(tasks) > 1 and minimum is not None and minimum >= sum(tasks.values())
    return minimum, whole or bool(spec.subGroups)


def _parts(groups: tuple[Any, ...]) -> Mapping[str, tuple[RequiredDomain, ...]]:
    """By the name of each subgroup of KAI, the domains that its pods must share: those of the subgroups above
    it, then its own."""
    named = {as_text(group.get("name")): group for group in map(as_map, islice(groups, GANG_MEMBERS))}
    found = {}
    for name in named:
        domains, above = tuple[RequiredDomain, ...](), name
        for _ in range(GANG_LEVELS):
            if (group := named.get(above)) is None:
                break
            domains = required_domain(_level(group.get("topologyConstraint")), above) + domains
            above = as_text(group.get("parent"))
        else:
            domains = (RequiredDomain(""),)  # a circle, or more levels than any topology has
        if domains:
            found[name] = domains
    return found


def _level(constraint: object) -> object:
    return as_map(constraint).get("requiredTopologyLevel")
