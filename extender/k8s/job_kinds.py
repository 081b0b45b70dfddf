"""Jobs of many pods, from the objects of their operators: the number of pods that start together, and which.

A kind is a row of ``JOB_KINDS``, its name in ``objects.JobKind``, the reader of its pods' labels in
``queues.gang_words`` and its rule in ``deploy/rbac.yaml``. A TrainJob (Kubeflow Trainer v2) creates a JobSet,
NVIDIA's Dynamo a PodGang or a LeaderWorkerSet, a RayJob and a RayService a RayCluster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct

from extender.k8s.manifest import Int, Manifest, Unreadable, is_large, unix_seconds
from extender.k8s.objects import (
    Admission,
    Job,
    JobKind,
    JobTemplate,
    PodGroup,
    ReplicaSet,
    RequiredDomain,
    Stage,
    required_domain,
)
from extender.k8s.pod_manifest import PodManifest, time_limit
from extender.k8s.pod_templates import as_list, as_map, as_text, count_of, pod_templates
from extender.untrusted.limits import GANG_MEMBERS, GANG_TEMPLATES, OBJECT_ENTRIES

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
