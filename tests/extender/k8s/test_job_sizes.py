"""How many pods of a job must run, for every kind and for the numbers that a user may write.

Each row names where the kind's own controller says so.
"""

from __future__ import annotations

from typing import Any

import pytest

from extender.k8s.job_kinds import JOB_KINDS, JobManifest
from extender.k8s.objects import JobKind

Spec = dict[str, Any]
TEMPLATE = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}


def kubeflow(key: str, roles: dict[str, int | None], **more: Any) -> Spec:
    replicas = {
        role: {"template": TEMPLATE} | ({} if count is None else {"replicas": count})
        for role, count in roles.items()
    }
    return {key: replicas, **more}


def job(name: str, replicas: int | None = 1, depends: str = "", **spec: int) -> Spec:
    made: Spec = {"name": name, "template": {"spec": {**spec, "template": TEMPLATE}}}
    if replicas is not None:
        made["replicas"] = replicas
    if depends:
        on, _, status = depends.partition(" ")
        made["dependsOn"] = [{"name": on, "status": status}]
    return made


def group(name: str, **counts: Any) -> Spec:
    return {"groupName": name, "template": TEMPLATE, **counts}


PYTORCH = "kubeflow/trainer release-1.9, pkg/apis/kubeflow.org/v1/pytorch_defaults.go"
COMMON = "kubeflow/trainer release-1.9, pkg/controller.v1/common/job.go (minMember)"
MPI = "kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/default.go"
JOB_SET = "kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go"
RAY = "ray-project/kuberay, ray-operator/controllers/ray/utils/util.go"
GROVE = "NVIDIA/grove, scheduler/api/core/v1alpha1/podgang.go"
LWS = "kubernetes-sigs/lws, api/leaderworkerset/v1/leaderworkerset_types.go"
KUEUE = "kubernetes-sigs/kueue, apis/kueue/v1beta2/workload_types.go"


def least(pods: int) -> Spec:
    return {"schedulingPolicy": {"minAvailable": pods}}


def everywhere(what: str, roles: dict[str, int | None], minimum: int, source: str, **more: Any) -> list[Any]:
    """The row for each of Kubeflow's kinds whose roles have one pod by default."""
    keys = {
        "PyTorchJob": "pytorch",
        "TFJob": "tf",
        "XGBoostJob": "xgb",
        "JAXJob": "jax",
        "PaddleJob": "paddle",
    }
    return [
        (kind, what, kubeflow(f"{key}ReplicaSpecs", roles, **more), {}, minimum, source)
        for kind, key in keys.items()
    ]


ROWS: list[tuple[JobKind, str, Spec, Spec, int, str]] = [
    *everywhere("one role", {"Worker": 4}, 4, COMMON),
    *everywhere("absent is one", {"Master": None, "Worker": 3}, 4, PYTORCH),
    *everywhere("zero is none", {"Master": 1, "Worker": 0}, 1, PYTORCH),
    *everywhere("all optional", {"Worker": 4}, 0, COMMON, runPolicy=least(0)),
    *everywhere("some", {"Worker": 4}, 3, COMMON, runPolicy=least(3)),
    *everywhere("scaled down", {"Worker": 2}, 2, COMMON, runPolicy=least(3)),
    (
        "PyTorchJob",
        "elastic",
        kubeflow("pytorchReplicaSpecs", {"Worker": 4}, elasticPolicy={"minReplicas": 2}),
        {},
        2,
        COMMON,
    ),
    ("MPIJob", "launcher and workers", kubeflow("mpiReplicaSpecs", {"Launcher": 1, "Worker": 4}), {}, 5, MPI),
    (
        "MPIJob",
        "no workers by default",
        kubeflow("mpiReplicaSpecs", {"Launcher": None, "Worker": None}),
        {},
        1,
        MPI,
    ),
    (
        "MPIJob",
        "launcher afterwards",
        kubeflow(
            "mpiReplicaSpecs", {"Launcher": 1, "Worker": 4}, launcherCreationPolicy="WaitForWorkersReady"
        ),
        {},
        4,
        MPI,
    ),
    ("OldMPIJob", "zero is none", kubeflow("mpiReplicaSpecs", {"Launcher": 1, "Worker": 0}), {}, 1, MPI),
    (
        "JobSet",
        "absent is one",
        {"replicatedJobs": [job("a", None), job("b", 2, parallelism=3)]},
        {},
        7,
        JOB_SET,
    ),
    ("JobSet", "zero jobs", {"replicatedJobs": [job("a"), job("b", 0, parallelism=3)]}, {}, 1, JOB_SET),
    ("JobSet", "zero pods", {"replicatedJobs": [job("a"), job("b", 2, parallelism=0)]}, {}, 1, JOB_SET),
    (
        "JobSet",
        "nothing to complete",
        {"replicatedJobs": [job("a"), job("b", parallelism=4, completions=0)]},
        {},
        1,
        JOB_SET,
    ),
    (
        "JobSet",
        "the last completions",
        {"replicatedJobs": [job("a", parallelism=4, completions=2)]},
        {},
        2,
        JOB_SET,
    ),
    (
        "JobSet",
        "first stage",
        {"replicatedJobs": [job("a", parallelism=2), job("b", depends="a Complete", parallelism=5)]},
        {},
        2,
        JOB_SET,
    ),
    (
        "JobSet",
        "ready beside it",
        {"replicatedJobs": [job("a"), job("b", depends="a Ready", parallelism=5)]},
        {},
        6,
        JOB_SET,
    ),
    (
        "JobSet",
        "through another",
        {"replicatedJobs": [job("a"), job("b", depends="a Complete"), job("c", depends="b Ready")]},
        {},
        1,
        JOB_SET,
    ),
    ("PodGang", "all optional", {"podgroups": [{"minReplicas": 0}, {}]}, {}, 0, GROVE),
    ("PodGang", "some", {"podgroups": [{"minReplicas": 2}, {"minReplicas": 1}]}, {}, 3, GROVE),
    ("LeaderWorkerSet", "absent is one", {"leaderWorkerTemplate": {}}, {}, 1, LWS),
    ("LeaderWorkerSet", "no replicas", {"replicas": 0, "leaderWorkerTemplate": {"size": 4}}, {}, 4, LWS),
    ("RayCluster", "any number", {"workerGroupSpecs": [group("g", replicas=4, minReplicas=2)]}, {}, 1, RAY),
    ("KueueWorkload", "requested", {"podSets": [{"count": 2}, {"count": 0}]}, {}, 2, KUEUE),
    (
        "KueueWorkload",
        "partly admitted",
        {"podSets": [{"count": 8}]},
        {"admission": {"podSetAssignments": [{"count": 3}]}},
        3,
        KUEUE,
    ),
]
TOGETHER: list[tuple[str, list[Spec], int]] = [
    ("head and minimum", [group("g", replicas=4, minReplicas=2)], 3),
    ("head and one worker", [group("g", replicas=4)], 2),
    ("zero workers", [group("g", replicas=0, minReplicas=0)], 1),
    ("a group of zero", [group("g", replicas=1, minReplicas=1), group("h", replicas=0, minReplicas=0)], 2),
    ("suspended group", [group("g", replicas=4, minReplicas=2, suspend=True)], 1),
    ("all hosts of a replica", [group("g", replicas=1, minReplicas=1, numOfHosts=4)], 5),
]


def record(kind: JobKind, spec: Spec, status: Spec) -> Any:
    manifest = {"kind": kind, "metadata": {"name": "j", "namespace": "n"}, "spec": spec, "status": status}
    return JobManifest.from_value(manifest).record(kind)


@pytest.mark.parametrize(("kind", "what", "spec", "status", "minimum", "source"), ROWS)
def test_a_job_needs_the_pods_that_its_controller_creates(
    kind: JobKind, what: str, spec: Spec, status: Spec, minimum: int, source: str
) -> None:
    assert record(kind, spec, status).minimum == minimum, (what, source)


def test_every_kind_has_a_row() -> None:
    assert {row[0] for row in ROWS} == JOB_KINDS.keys()


@pytest.mark.parametrize(("what", "groups", "together"), TOGETHER)
def test_a_ray_cluster_starts_with_its_head_and_the_minimum_of_workers(
    what: str, groups: list[Spec], together: int
) -> None:
    assert record("RayCluster", {"workerGroupSpecs": groups}, {}).together == together, (what, RAY)
