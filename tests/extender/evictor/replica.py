"""Replicas of the evictor that follow an API server on loopback, round by round."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry

from extender.cluster.state import State
from extender.evictor.book import Schedulers
from extender.evictor.loop import Evictor
from extender.evictor.metrics import EvictorMetrics
from extender.evictor.planner import Asked
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Event
from extender.k8s.pod_manifest import PodManifest
from extender.queues.queue import Queues
from extender.queues.rights import Rights
from extender.settings import Queue, Settings
from extender.source.evictor_api import EvictorApi
from packing.policies.registry import POLICIES
from tests.extender.apiserver import PATIENT, ApiServer, source_of
from tests.extender.apistore import Manifest
from tests.extender.builders import GPU, H100

UNHURRIED = replace(PATIENT, connect=60, bind=60, page=60, catch_up=10.0)
"""On a busy machine an answer may take seconds. Faults of the API server need no timeout: it hangs up."""
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def node(name: str, gpus: int = 1) -> Manifest:
    allocatable = {"cpu": "64", "memory": "512Gi", GPU: str(gpus)}
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "labels": H100},
        "status": {"allocatable": allocatable},
    }


def pod(name: str, node_name: str = "", *, gpus: int = 1, **spec: Any) -> Manifest:
    """A pod in namespace ml: running on its node, or waiting without one."""
    requests = {"cpu": "1", "memory": "1Gi", GPU: str(gpus)}
    status = {"phase": "Running"} if node_name else {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": f"u-{name}", "labels": {"app": name}},
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            "priority": 0 if node_name else 100,
            **spec,
        },
        "status": status,
    }


class Leader:
    """Who may write. ``lose_after``: how many writes may still begin."""

    def __init__(self) -> None:
        self.is_leader = True
        self.lose_after: int | None = None

    @contextmanager
    def hold_during_write(self) -> Iterator[None]:
        if self.lose_after is not None:
            self.is_leader = self.lose_after > 0
            self.lose_after -= 1
        yield

    def write_deadline(self) -> float:
        return 60.0 if self.is_leader else 0.0


class Replica:
    """One replica. ``now`` is its clock, which only the tests move."""

    def __init__(self, api: ApiServer, directory: Path, queue: Queue, **settings: Any) -> None:
        self.api, self.leader, self.now, self.asked = api, Leader(), 1000.0, [""][:0]
        self._shown = 0, 0
        queues = Queues({"low": replace_queue(queue)})
        self.state = State(POLICIES["best-fit"](), Rights(queues))
        self.source = source_of(api, directory, timeouts=UNHURRIED)
        writes = EvictorApi(self.source.rest, self.leader.write_deadline)
        self.registry = CollectorRegistry()
        given = Settings(
            **{"evictor_lease": "gpu/stowage", "evictor": "on", "scale_up_wait_seconds": 0} | settings
        )
        asked = Asked(Schedulers(["default-scheduler"]), lambda uid: self.asked)
        metrics = EvictorMetrics(self.registry)
        clocks: dict[str, Any] = {"clock": lambda: self.now, "wall": lambda: self.now}
        self.evictor = Evictor(self.state, self.source, writes, self.leader, given, asked, metrics, **clocks)
        loop = asyncio.get_running_loop()

        def apply(events: Sequence[Event]) -> None:
            loop.call_soon_threadsafe(self.state.apply, events)

        self.source.start(apply)

    async def synced(self) -> None:
        await until(lambda: {"Node", "Pod"} <= self.state.synced)

    async def rounds(self, count: int = 1, seconds: float = 10.0) -> None:
        """Rounds, each some seconds after the one before. Each sees all that has happened."""
        for _ in range(count):
            self.now += seconds
            await self._caught_up()
            await self.evictor.round()
        await self._caught_up()

    async def _caught_up(self) -> None:
        """Wait until the state shows every pod and node exactly as the API server has them."""
        await self.synced()

        def same() -> bool:
            pods = [PodManifest.from_value(one).record() for one in [*self.api.pods.objects.values()]]
            nodes = [NodeManifest.from_value(one).record() for one in [*self.api.nodes.objects.values()]]
            return self.state.pods == {one.key: one for one in pods if not one.terminated} and (
                self.state.nodes == {one.name: one for one in nodes}
            )

        versions = self.api.pods.version, self.api.nodes.version
        if self.api.running and versions != self._shown:
            await until(same)
            self._shown = versions

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"stowage_evictor_{name}", labels) or 0.0


Start: TypeAlias = Callable[..., Replica]
"""Starts a replica; the arguments are optional."""


def log(api: ApiServer, *actions: str) -> list[tuple[str, str, object]]:
    """What was done to which pods, or only these actions."""
    return [one for one in api.evictions.log if not actions or one[0] in actions]


def nominated(api: ApiServer, name: str = "p") -> object:
    """The node that the pod is nominated to."""
    return api.pods.objects[f"ml/{name}"]["status"].get("nominatedNodeName")


def bind(api: ApiServer, name: str, node_name: str) -> None:
    """Bind a pod that has waited."""
    api.put(pod(name, node_name, priority=100))


def replace_queue(queue: Queue) -> Queue:
    return queue.model_copy(update={"priority_classes": frozenset({"low"})})


async def until(condition: Callable[[], bool], within: float = 120.0) -> None:
    """Wait for what happens in any case; ``within`` only ends a test that has failed."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
