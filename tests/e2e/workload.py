"""Manifests of nodes and pods for the tests."""

from .controlplane.api import NAMESPACE, Object
from .runner import RUNS


def node(
    name: str, resources: dict[str, int], *, labels: dict[str, str] | None = None, cpu: int = 128
) -> Object:
    """A node whose device plugin advertises `resources`, such as {"nvidia.com/gpu": 8}."""
    amounts = {"cpu": str(cpu), "memory": "2Ti", "pods": "250"} | {
        key: str(n) for key, n in resources.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(
    name: str,
    resources: dict[str, int],
    *,
    scheduler: str = "stowage",
    runs_for: str | None = None,
    priority_class: str | None = None,
    cpu: str = "1",
    product: str | None = None,
    on: str | None = None,
    prepares_with: dict[str, int] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Object:
    """A pod of one container. With `runs_for` ("2s") it finishes after that time.

    `product` is the GPU product that its node must have. `on` creates it on a node without a scheduler.
    `prepares_with` are the resources of an init container.
    """
    spec: Object = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [_container("work", resources, cpu)],
    }
    if priority_class is not None:
        spec["priorityClassName"] = priority_class
    if product is not None:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": product}
    if on is not None:
        spec["nodeName"] = on
    if prepares_with is not None:
        spec["initContainers"] = [_container("prepare", prepares_with, cpu)]
    notes = (annotations or {}) | ({} if runs_for is None else {"e2e.stowage.dev/runs-for": runs_for})
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": notes, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def process_pod(
    name: str,
    resources: dict[str, int],
    command: list[str],
    *,
    env: dict[str, str] | None = None,
    volumes: dict[str, str] | None = None,
    grace_s: int = 10,
) -> Object:
    """A pod for `runner.py`, for kube-scheduler's default profile. `volumes`: mount paths by name."""
    one = pod(name, resources, scheduler="default-scheduler", labels={RUNS: ""})
    one["spec"] |= {"terminationGracePeriodSeconds": grace_s, "restartPolicy": "Never"}
    one["spec"]["volumes"] = [{"name": volume, "emptyDir": {}} for volume in volumes or {}]
    one["spec"]["containers"][0] |= {
        "command": command,
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in (volumes or {}).items()],
    }
    return one


def job(name: str, pod: Object, *, pods: int = 1) -> Object:
    """A Job that runs this many pods at once, like the given one, and ignores disruptions."""
    metadata = {key: pod["metadata"][key] for key in ("labels", "annotations")}
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    spec = {
        "parallelism": pods,
        "completions": pods,
        "podFailurePolicy": {"rules": [disrupted]},
        "template": {"metadata": metadata, "spec": pod["spec"] | {"restartPolicy": "Never"}},
    }
    named = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": spec}


def budget(name: str, labels: dict[str, str], *, min_available: int) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": labels}},
    }


def priority_class(name: str, value: int) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def _container(name: str, resources: dict[str, int], cpu: str) -> Object:
    amounts = {"cpu": cpu, "memory": "1Gi"} | {key: str(n) for key, n in resources.items()}
    return {"name": name, "image": name, "resources": {"requests": amounts, "limits": amounts}}
