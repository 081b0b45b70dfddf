"""An API server without HTTP: what is true, the events that tell of it, and the bindings in flight."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from extender.k8s.objects import Event, Listed, Node, Pod, Upserted
from extender.source.errors import BindConflict, PodNotFound, Unreachable
from extender.source.snapshot import Snapshot, SnapshotSource

NODES = ("n1", "n2")
GPUS, MIB = 2, 1000


def make_node(name: str) -> Node:
    labels = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.product": "NVIDIA-L40S"}
    labels |= {"nvidia.com/gpu.memory": str(MIB), "nvidia.com/gpu.count": str(GPUS)}
    return Node(
        name,
        labels=labels,
        annotations={"stowage.dev/gpu-uuids": ",".join(f"{name}-{gpu}" for gpu in range(GPUS))},
        allocatable={"cpu": "64", "memory": "512Gi"},
        conditions=(("gpu-fractioning.nvidia.com/Ready", "True"),),
    )


@dataclass
class Binding:
    """A Binding that was sent: the pod as it will be, and where its answer goes (None: nobody waits)."""

    pod: Pod
    answer: asyncio.Future[None] | None


class Truth(SnapshotSource):
    """The API server: what is true, the events that the watch has not shown, and the bindings in flight."""

    def __init__(self) -> None:
        super().__init__(Snapshot(), "truth")
        self.nodes: dict[str, Node] = {name: make_node(name) for name in NODES}
        self.pods: dict[str, Pod] = {}
        self.events: deque[Event] = deque()
        self.sent: list[Binding] = []
        self.answers = True  # whether a look-up is answered

    def put(self, pod: Pod) -> None:
        self.pods[pod.key] = pod
        self.events.append(Upserted(pod))

    def everything(self, began: float = -math.inf) -> list[Event]:
        listed = [*map(Upserted, self.nodes.values()), Listed("Node", frozenset(self.nodes))]
        return [*listed, *map(Upserted, self.pods.values()), Listed("Pod", frozenset(self.pods), began=began)]

    def make(self, pod: Pod) -> None:
        """Make a binding, as the API server does. Raises BindError."""
        now = self.pods.get(pod.key)
        if now is None:
            raise PodNotFound("no such pod")
        if now.uid != pod.uid or now.node_name or now.terminated:
            raise BindConflict("not this one, or not any more")
        self.put(replace(now, node_name=pod.node_name, nominated_node="", annotations=pod.annotations))

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        placed = replace(pod, node_name=node, annotations={**pod.annotations, **(annotations or {})})
        self.sent.append(Binding(placed, answer))
        await answer

    async def look_up(self, pod: Pod) -> Pod | None:
        if not self.answers:
            raise Unreachable("no answer")
        return self.pods.get(pod.key)

    async def pods_on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node_name == node]
