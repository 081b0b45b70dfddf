"""The complete service over HTTP without sockets, on a snapshot of a few nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from extender.k8s.objects import Node, Pod
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource

GPU = "nvidia.com/gpu"


def manifest(name: str = "train", gpus: object = 1, *, resource: str = GPU, **members: Any) -> dict[str, Any]:
    """A pod as kube-scheduler sends it."""
    requests = {"cpu": "1", "memory": "1Gi"} | ({resource: str(gpus)} if gpus else {})
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "managedFields": [{"x": 1}]},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"phase": "Pending"},
    } | members


@dataclass(frozen=True, slots=True)
class Stowage:
    """A running service, and a client that calls it like kube-scheduler."""

    service: Service
    http: httpx.AsyncClient

    async def post(self, verb: str, message: object) -> httpx.Response:
        return await self.http.post(f"/scheduler/{verb}", json=message)

    async def filter(self, pod: dict[str, Any], names: Sequence[str]) -> bytes:
        return await self._answer("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})

    async def prioritize(self, pod: dict[str, Any], names: Sequence[str]) -> bytes:
        return await self._answer("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})

    async def preempt(self, pod: dict[str, Any], meta_victims: dict[str, Any]) -> bytes:
        message = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta_victims}
        return await self._answer("preempt", message)

    async def bind(self, pod: dict[str, Any], node: str) -> bytes:
        name, namespace, uid = (pod["metadata"][key] for key in ("name", "namespace", "uid"))
        message = {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node}
        return await self._answer("bind", message)

    async def metric(self, sample: str) -> float:
        """The value of a sample of ``/metrics``, 0 if there is none."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample + " ")), 0.0)

    async def _answer(self, verb: str, message: object) -> bytes:
        response = await self.post(verb, message)
        await asyncio.sleep(0)  # a socket, too, would let other tasks run after a reply
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        assert int(response.headers["content-length"]) == len(response.content)
        return response.content


Start = Callable[..., Awaitable[Stowage]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start a service with these nodes, pods and settings."""
    async with AsyncExitStack() as stack:

        async def starting(*objects: Node | Pod, ready: bool = True, **settings: Any) -> Stowage:
            nodes = {node.key: node for node in objects if isinstance(node, Node)}
            pods = {pod.key: pod for pod in objects if isinstance(pod, Pod)}
            service = Service(Settings(**settings), SnapshotSource(Snapshot(nodes, pods), "test"), "1.2.3")
            if ready:
                await service.start()
            transport = httpx.ASGITransport(create_app(service))
            client = httpx.AsyncClient(transport=transport, base_url="http://stowage")
            return Stowage(service, await stack.enter_async_context(client))

        yield starting
