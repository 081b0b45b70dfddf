"""Jobs of many pods as their users write them, and the pods that their operators make, with the labels that
these write. No operator runs in the tests.

Sources: kubeflow/trainer (release-1.9, pkg/common/util/labels.go; master), kubeflow/mpi-operator,
kubernetes-sigs/jobset (pkg/controllers), NVIDIA/grove (operator/api/common/labels.go),
kubernetes-sigs/lws (pkg/webhooks/pod_webhook.go), ray-project/kuberay (controllers/ray/common/pod.go),
kubernetes-sigs/kueue (pkg/controller/jobframework).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
WORKERS = 16
"""Pods with GPUs of each job."""
GPUS = 8
"""What each of them asks for: a whole node."""


@dataclass(frozen=True)
class Job:
    """What the API server has of a job: the object that says how many pods start together, and these pods, in
    the order in which they are created."""

    plural: str
    object: Object
    pods: list[Object]


def _spec(gpus: int = GPUS) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits}
    return {"schedulerName": "stowage", "containers": [{"name": "c", "image": "i", "resources": resources}]}


def _template(gpus: int = GPUS) -> Object:
    return {"spec": _spec(gpus)}


def _object(api: str, kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _pod(
    name: str, owner: tuple[str, str, str], gpus: int, labels: Mapping[str, str], **metadata: Any
) -> Object:
    api, kind, of = owner
    reference = {"apiVersion": api, "kind": kind, "name": of, "uid": f"uid-{of}", "controller": True}
    about = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": dict(labels)}
    about |= {"ownerReferences": [reference]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about | metadata,
        "spec": _spec(gpus),
    }


def _kubeflow(
    kind: str,
    specs: str,
    roles: Mapping[str, int],
    api: str = "kubeflow.org/v1",
    without_gpus: str = "",
    operator: str = "",
    **spec: Any,
) -> Callable[[str], Job]:
    """``without_gpus``: the role that needs none."""

    def make(name: str) -> Job:
        gpus = {role: 0 if role == without_gpus else GPUS for role in roles}
        replicas = {role: {"replicas": n, "template": _template(gpus[role])} for role, n in roles.items()}
        pods = []
        for role, count in roles.items():
            labels = {
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/operator-name": operator or f"{kind.lower()}-controller",
                "training.kubeflow.org/replica-type": role.lower(),
            }
            by_job = role == "Launcher" and api.endswith("v2beta1")
            owner = ("batch/v1", "Job", f"{name}-launcher") if by_job else (api, kind, name)
            for index in range(count):
                own = {"training.kubeflow.org/replica-index": str(index)}
                pods.append(_pod(f"{name}-{role.lower()}-{index}", owner, gpus[role], labels | own))
        return Job(f"{kind.lower()}s", _object(api, kind, name, {specs: replicas, **spec}), pods)

    return make


def _job_set(jobs: Mapping[str, tuple[int, int]]) -> Callable[[str], Job]:
    """``jobs``: how many Jobs there are by name, and how many pods each of them has."""

    def make(name: str) -> Job:
        replicated, pods = [], []
        for job, (replicas, parallelism) in jobs.items():
            of_job = {"parallelism": parallelism, "completions": parallelism, "template": _template()}
            replicated.append({"name": job, "replicas": replicas, "template": {"spec": of_job}})
            for one in range(replicas):
                labels = {
                    "jobset.sigs.k8s.io/jobset-name": name,
                    "jobset.sigs.k8s.io/replicatedjob-name": job,
                    "jobset.sigs.k8s.io/job-index": str(one),
                }
                owner = ("batch/v1", "Job", f"{name}-{job}-{one}")
                pods += [
                    _pod(f"{name}-{job}-{one}-{index}", owner, GPUS, labels) for index in range(parallelism)
                ]
        spec = {"replicatedJobs": replicated}
        return Job("jobsets", _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec), pods)

    return make


def _pod_gang(name: str) -> Job:
    groups, pods = [], []
    for clique, count in {"prefill": 4, "decode": 12}.items():
        names = [f"{name}-{clique}-{index}" for index in range(count)]
        references = [{"namespace": "default", "name": one} for one in names]
        groups.append({"name": f"{name}-{clique}", "minReplicas": count, "podReferences": references})
        owner = ("grove.io/v1alpha1", "PodClique", f"{name}-{clique}")
        labels = {"grove.io/podgang": name, "grove.io/podclique": f"{name}-{clique}"}
        pods += [_pod(one, owner, GPUS, labels) for one in names]
    spec = {"podgroups": groups}
    return Job("podgangs", _object("scheduler.grove.io/v1alpha1", "PodGang", name, spec), pods)


def _leader_worker_set(name: str) -> Job:
    api, prefix = "leaderworkerset.x-k8s.io/v1", "leaderworkerset.sigs.k8s.io/"
    labels = {f"{prefix}name": name, f"{prefix}group-index": "0"}
    size = {f"{prefix}size": str(WORKERS)}
    pods = []
    for index in range(WORKERS):
        pod = f"{name}-0-{index}" if index else f"{name}-0"
        owner = ("apps/v1", "StatefulSet", f"{name}-0" if index else name)
        own = {f"{prefix}worker-index": str(index)}
        pods.append(_pod(pod, owner, GPUS, labels | own, annotations=size))
    template = {"size": WORKERS, "leaderTemplate": _template(), "workerTemplate": _template()}
    spec = {"replicas": 1, "leaderWorkerTemplate": template}
    return Job("leaderworkersets", _object(api, "LeaderWorkerSet", name, spec), pods)


def ray_cluster(
    name: str, replicas: int = WORKERS, hosts: int = 1, minimum: int | None = None, head_gpus: int = 0
) -> Job:
    """A head and a group of workers."""
    owner = ("ray.io/v1", "RayCluster", name)
    common = {"ray.io/cluster": name, "ray.io/is-ray-node": "yes"}
    labels = common | {"ray.io/node-type": "head", "ray.io/group": "headgroup"}
    pods = [_pod(f"{name}-head", owner, head_gpus, labels)]
    for one in range(replicas):
        labels = common | {"ray.io/node-type": "worker", "ray.io/group": "gpu"}
        if hosts > 1:
            labels |= {"ray.io/worker-group-replica-name": f"{name}-gpu-{one}"}
        pods += [_pod(f"{name}-gpu-{one}-{host}", owner, GPUS, labels) for host in range(hosts)]
    group = {
        "groupName": "gpu",
        "replicas": replicas,
        "minReplicas": replicas if minimum is None else minimum,
        "maxReplicas": replicas,
        "numOfHosts": hosts,
        "template": _template(),
    }
    spec = {"headGroupSpec": {"template": _template(head_gpus)}, "workerGroupSpecs": [group]}
    return Job("rayclusters", _object("ray.io/v1", "RayCluster", name, spec), pods)


def _kueue(name: str) -> Job:
    """An Indexed Job of 20 pods, of which Kueue has admitted 16."""
    workload = f"job-{name}-1a2b3"
    labels = {"kueue.x-k8s.io/podset": "main", "batch.kubernetes.io/job-name": name}
    pods = [
        _pod(
            f"{name}-{index}",
            ("batch/v1", "Job", name),
            GPUS,
            labels | {"batch.kubernetes.io/job-completion-index": str(index)},
            annotations={"kueue.x-k8s.io/workload": workload},
        )
        for index in range(WORKERS)
    ]
    spec = {"podSets": [{"name": "main", "count": 20, "minCount": 8, "template": _template()}]}
    found = _object("kueue.x-k8s.io/v1beta2", "Workload", workload, spec)
    assigned = [{"name": "main", "count": WORKERS}]
    found["status"] = {"admission": {"clusterQueue": "q", "podSetAssignments": assigned}}
    return Job("workloads", found, pods)


JOBS: Mapping[str, Callable[[str], Job]] = {
    "PyTorchJob": _kubeflow("PyTorchJob", "pytorchReplicaSpecs", {"Master": 1, "Worker": 15}),
    "TFJob": _kubeflow("TFJob", "tfReplicaSpecs", {"PS": 2, "Chief": 1, "Worker": 15}, without_gpus="PS"),
    "XGBoostJob": _kubeflow("XGBoostJob", "xgbReplicaSpecs", {"Master": 1, "Worker": 15}),
    "JAXJob": _kubeflow("JAXJob", "jaxReplicaSpecs", {"Worker": 16}),
    "PaddleJob": _kubeflow("PaddleJob", "paddleReplicaSpecs", {"Worker": 16}),
    "MPIJob": _kubeflow(
        "MPIJob",
        "mpiReplicaSpecs",
        {"Launcher": 1, "Worker": 16},
        "kubeflow.org/v2beta1",
        without_gpus="Launcher",
        operator="mpi-operator",
    ),
    "OldMPIJob": _kubeflow(
        "MPIJob", "mpiReplicaSpecs", {"Worker": 16, "Launcher": 1}, without_gpus="Launcher"
    ),
    "JobSet": _job_set({"driver": (1, 1), "workers": (3, 5)}),
    "TrainJob": _job_set({"node": (1, 16)}),
    "PodGang": _pod_gang,
    "LeaderWorkerSet": _leader_worker_set,
    "RayCluster": ray_cluster,
    "KueueWorkload": _kueue,
}
