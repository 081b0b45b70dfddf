"""The pod templates in an object of any kind, and the number of pods of each.

A pod template is a map whose ``spec`` has ``containers``, at any path: in Deployments, Jobs, CronJobs,
JobSets, RayClusters and Kubeflow's jobs. KServe's InferenceServices have a pod spec without a template,
or a ``model`` with resources (kserve/kserve, pkg/apis/serving/v1beta1/predictor.go), and the templates of
Argo Workflows one ``container`` or ``script`` (argoproj/argo-workflows, pkg/apis/workflow/v1alpha1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extender.untrusted.limits import GANG_MEMBERS


def count_of(value: object, default: int = 0) -> int:
    """A number of pods; ``default`` if the field is absent or not a number."""
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return max(0, min(value, GANG_MEMBERS))


def pod_templates(
    value: object, path: tuple[str, ...], count: int
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], int]]:
    """The pod templates in a value, each with the path that identifies it within its workload, and its number
    of pods; for a LeaderWorkerSet, those of one group."""
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


def as_map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def parts_of(value: object) -> Iterator[object]:
    """The value and everything in it."""
    yield value
    for part in value.values() if isinstance(value, dict) else as_list(value):
        yield from parts_of(part)
