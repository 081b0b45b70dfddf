"""The result of a run, measured from the scheduler's cache, as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from extender.demo.pods import GPU, large_job
from extender.demo.scheduler import Amounts, NodeInfo, PodInfo, Scheduler, fits, read_pod
from extender.untrusted.terminal import show_progress

_LARGE = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a fleet after a run. GPUs are whole GPUs, without MIG devices and replicas."""

    pods: int
    placed: int
    large_jobs: int
    large_placed: int
    gpus: int
    gpus_taken: int
    free_blocks: int
    could_start: int
    idle_nodes: int
    gpus_on_idle_nodes: int


def measure(run: Scheduler) -> Outcome:
    """The outcome of a run."""
    nodes = list(run.nodes.values())
    idle = [node for node in nodes if _is_idle(node)]
    job = read_pod(large_job())
    return Outcome(
        pods=len(run.placed) + len(run.waiting),
        placed=len(run.placed),
        large_jobs=_large_jobs(run.placed + run.waiting),
        large_placed=_large_jobs(run.placed),
        gpus=sum(node.allocatable.get(GPU, 0) for node in nodes),
        gpus_taken=sum(node.requested[GPU] for node in nodes),
        free_blocks=sum(node.free(GPU) // _LARGE for node in nodes),
        could_start=sum(_count_fitting(node, job) for node in nodes),
        idle_nodes=len(idle),
        gpus_on_idle_nodes=sum(node.free(GPU) for node in idle),
    )


_ROWS: list[tuple[str, Callable[[Outcome], str]]] = [
    ("pods placed", lambda o: f"{o.placed} of {o.pods}"),
    ("8-GPU jobs placed", lambda o: f"{o.large_placed} of {o.large_jobs}"),
    ("whole GPUs in use", lambda o: f"{o.gpus_taken} of {o.gpus}"),
    ("free blocks of 8 GPUs", lambda o: str(o.free_blocks)),
    ("8-GPU jobs that could still start", lambda o: str(o.could_start)),
    ("GPUs on nodes with no GPU in use", lambda o: str(o.gpus_on_idle_nodes)),
    ("nodes with no GPU in use", lambda o: str(o.idle_nodes)),
]


def table(default: Outcome, stowage: Outcome) -> str:
    """A table of both outcomes."""
    rows = [("", "kube-scheduler's", "with"), ("", "default spreading", "Stowage")]
    rows += [(label, cell(default), cell(stowage)) for label, cell in _ROWS]
    first, second, third = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"  {a:<{first}}   {b:>{second}}   {c:>{third}}" for a, b, c in rows)


def waiting(run: Scheduler) -> str:
    """The pods that were not placed, by their requests."""
    empty = [replace(node, requested=Counter()) for node in run.nodes.values()]
    asked = Counter(_request_text(pod, empty) for pod in run.waiting)
    if not asked:
        return "With Stowage no pod waits."
    lines = (f"  {pods:>3} x {request}" for request, pods in asked.most_common())
    return "\n".join(["Pods that wait with Stowage, by what they request of one node:", *lines])


def progress(items: Sequence[T], label: str) -> Iterator[T]:
    """The items, with a progress bar."""
    for done, item in enumerate(items):
        show_progress(label, done / len(items))
        yield item
    show_progress(label, 1)


def _devices(amounts: Amounts) -> Iterable[tuple[str, int]]:
    return ((name, count) for name, count in amounts.items() if name.startswith("nvidia.com/") and count)


def _request_text(pod: PodInfo, empty: Iterable[NodeInfo]) -> str:
    devices = ", ".join(f"{name}: {count}" for name, count in _devices(pod.amounts))
    product = pod.manifest["spec"]["nodeSelector"].get("nvidia.com/gpu.product", "any product")
    never = "" if any(fits(node, pod) for node in empty) else " (larger than any node)"
    return f"{devices}, {product}{never}"


def _is_idle(node: NodeInfo) -> bool:
    devices = [name for name, _ in _devices(node.allocatable)]
    return bool(devices) and not any(node.requested[name] for name in devices)


def _large_jobs(pods: Iterable[PodInfo]) -> int:
    return sum(pod.amounts.get(GPU) == _LARGE for pod in pods)


def _count_fitting(node: NodeInfo, pod: PodInfo) -> int:
    """How many more such pods fit on the node."""
    return min(node.free(name) // amount for name, amount in pod.amounts.items())
