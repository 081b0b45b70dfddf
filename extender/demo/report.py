"""The result of a run, counted in the scheduler's cache, as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from extender.demo.pods import GPU, large_job
from extender.demo.scheduler import NodeInfo, PodInfo, Scheduler, fits, read_pod

_LARGE = 8


def figures(run: Scheduler) -> dict[str, str]:
    """What the table shows of a run. GPUs are whole GPUs, without MIG devices and replicas."""
    nodes, job = list(run.nodes.values()), read_pod(large_job())
    idle = [node for node in nodes if _is_idle(node)]
    taken, gpus = sum(one.requested[GPU] for one in nodes), sum(one.allocatable.get(GPU, 0) for one in nodes)
    pods = run.placed + run.waiting
    return {
        "pods placed": f"{len(run.placed)} of {len(pods)}",
        "8-GPU jobs placed": f"{_large_jobs(run.placed)} of {_large_jobs(pods)}",
        "whole GPUs in use": f"{taken} of {gpus}",
        "free blocks of 8 GPUs": str(sum(node.free(GPU) // _LARGE for node in nodes)),
        "8-GPU jobs that could still start": str(sum(_count_fitting(node, job) for node in nodes)),
        "GPUs on nodes with no GPU in use": str(sum(node.free(GPU) for node in idle)),
        "nodes with no GPU in use": str(len(idle)),
    }


def table(default: Scheduler, stowage: Scheduler) -> str:
    """A table of both runs."""
    one, other = figures(default), figures(stowage)
    rows = [("", "kube-scheduler's", "with"), ("", "default spreading", "Stowage")]
    rows += [(label, cell, other[label]) for label, cell in one.items()]
    first, second, third = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"  {a:<{first}}   {b:>{second}}   {c:>{third}}" for a, b, c in rows)


def waiting(run: Scheduler) -> str:
    """The pods that were not placed, by their requests."""
    empty = [replace(node, requested=Counter()) for node in run.nodes.values()]
    asked = Counter(_request_text(pod, empty) for pod in run.waiting)
    if not asked:
        return "With Stowage no pod stays pending."
    lines = (f"  {pods:>3} x {request}" for request, pods in asked.most_common())
    return "\n".join(["Pods still pending with Stowage, by request per node:", *lines])


def _request_text(pod: PodInfo, empty: Iterable[NodeInfo]) -> str:
    devices = ", ".join(f"{name}: {count}" for name, count in pod.amounts.items() if _is_device(name))
    product = pod.manifest["spec"]["nodeSelector"].get("nvidia.com/gpu.product", "any product")
    never = "" if any(fits(node, pod) for node in empty) else " (larger than any node)"
    return f"{devices}, {product}{never}"


def _is_device(resource: str) -> bool:
    return resource.startswith("nvidia.com/")


def _is_idle(node: NodeInfo) -> bool:
    devices = [name for name, count in node.allocatable.items() if count and _is_device(name)]
    return bool(devices) and not any(node.requested[name] for name in devices)


def _large_jobs(pods: Iterable[PodInfo]) -> int:
    return sum(pod.amounts.get(GPU) == _LARGE for pod in pods)


def _count_fitting(node: NodeInfo, pod: PodInfo) -> int:
    """How many more such pods fit on the node."""
    return min(node.free(name) // amount for name, amount in pod.amounts.items())
