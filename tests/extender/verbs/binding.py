"""A Stowage that binds, and an API server with scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from extender.cluster.state import State
from extender.k8s.objects import Node, Pod, Upserted
from extender.protocol.messages import ExtenderBindingArgs
from extender.settings import Settings
from extender.source.errors import BindError, Unreachable
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.verbs.bind import Binder
from packing.policies.registry import POLICIES
from tests.extender.builders import make_pod
from tests.extender.dialects.test_dialect_manifests import pod as pod_of

MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"


class Api(SnapshotSource):
    """What is true, and the errors of the next bindings, raised before or (``made``) after they happen."""

    def __init__(self) -> None:
        super().__init__(Snapshot(), "api")
        self.pods: dict[str, Pod] = {}
        self.errors: list[BindError] = []
        self.made = self.hangs = False
        self.answers = True
        self.current = True
        self.silent = False  # a list of a node's pods never ends
        self.read: list[str] = []
        self.sent: list[tuple[str, dict[str, str]]] = []

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        self.sent.append((node, dict(annotations or {})))
        await asyncio.sleep(3600 if self.hangs else 0)
        error = self.errors.pop(0) if self.errors else None
        if error is None or self.made:
            placed = {**pod.annotations, **(annotations or {})}
            self.pods[pod.key] = replace(pod, node_name=node, annotations=placed)
        if error:
            raise error

    async def look_up(self, pod: Pod) -> Pod | None:
        if not self.answers:
            raise Unreachable("no answer")
        return self.pods.get(pod.key)

    async def pods_on(self, node: str) -> list[Pod]:
        self.read.append(node)
        await asyncio.sleep(3600 if self.silent else 0)
        if not self.answers:
            raise Unreachable("no answer")
        return [pod for pod in self.pods.values() if pod.node_name == node]

    async def caught_up(self, recent: float = 0.0) -> bool:
        return self.current


class Cluster:
    """A state, the API server, and a Stowage that binds. The watch shows only what ``tell`` is called for."""

    def __init__(self, *objects: Node | Pod) -> None:
        self.state = State(POLICIES["best-fit"]())
        self.state.binds = True
        self.state.apply([Upserted(one) for one in objects])
        self.api = Api()
        self.api.pods = {one.key: one for one in objects if isinstance(one, Pod)}
        self.binder = Binder(self.state, self.api, Settings(bind=True))

    async def bind(self, pod: Pod, node: str) -> str:
        return await self.binder.bind(pod, ExtenderBindingArgs(pod.name, pod.namespace, pod.uid, node))

    def tell(self, *keys: str) -> None:
        """The watch shows these pods as they are."""
        self.state.apply([Upserted(self.api.pods[key]) for key in keys])

    def free(self, node: str) -> list[int]:
        row = self.state.fleet.rows[node]
        shape = self.state.fleet.specs[row]
        assert shape is not None
        return [int(n) for n in self.state.fleet.arrays.compute[: len(shape.gpus), row]]


def own(name: str, compute: str = "600m", **more: str) -> Pod:
    """A pod that asks for a share by Stowage's own annotation."""
    return make_pod(name, 0, annotations={"stowage.dev/gpu-compute": compute, **more})


def hami(name: str, mib: int = 3000, cores: int = 30, **annotations: str) -> Pod:
    pod = pod_of("hami-memory-and-cores")
    (container,) = pod.spec.containers
    asks = (("nvidia.com/gpu", "1"), (CORES, str(cores)), (MEMORY, str(mib)))
    spec = replace(pod.spec, containers=(replace(container, requests=asks, limits=asks),))
    return Pod("default", name, f"uid-{name}", spec, annotations=annotations)
