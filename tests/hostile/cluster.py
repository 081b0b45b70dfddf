"""A Stowage that gets watch lines and requests as bytes, and the cost of each.

Costs are counted in steps: bytecode instructions and calls of C functions. They do not depend on the machine,
and a loop in one line still counts. Decoding happens in C and counts nothing, so an object may cost some
steps for each byte, and beyond that a multiple of a normal object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import FrameType
from typing import Any, TypeAlias

import httpx
import numpy as np

from extender.k8s.objects import Kind
from extender.protocol.messages import Reply, Verb
from extender.server.app import create_app
from extender.server.engine import Engine
from extender.server.service import Service
from extender.settings import Settings
from extender.source.list_watch import ListWatch
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.source.watched_kinds import WATCHED_KINDS, mig_layouts

Manifest: TypeAlias = dict[str, Any]
GPU = "nvidia.com/gpu"
ANNOTATIONS = 256 << 10
"""Characters that the API server accepts in all annotations of an object."""
EVENT, VERB = 20, 5
"""The most that an event and a request may cost, in multiples of a normal one."""
STEPS_A_BYTE = 4.5
"""The steps that each byte of an object may cost in addition, for one pass through its lists. This is up to
four times what pydantic needs to decode it."""
STEPS_A_BYTE_READ = 3.0
"""The same for kinds that Python code parses; the API server accepts no large objects of these kinds."""
READ_IN_PYTHON = {"ResourceSlice", "ResourceClaim", "DeviceClass"}
SAID = 700
"""The most characters of one error or log line: twice the limit of 300, and the text around it."""
SHOWN = 20_000
"""The most characters that a debug route shows of a pod."""
WATCHED = {**WATCHED_KINDS, "ConfigMap": mig_layouts("d", "mig")}
PLAIN, OWN, HAMI, MIG = NAMES = ["plain", "own", "hami", "mig"]


class TooManySteps(BaseException):
    """Raised inside the measured code. It is no ``Exception``, because that code may catch all of them."""


def steps(run: Callable[[], object], most: float = float("inf")) -> int:
    """The cost of a call. Raises ``TooManySteps`` in it beyond ``most``."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count > most:
            raise TooManySteps

    def trace(frame: FrameType, event: str, _: object) -> object:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            step()
        return trace

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "c_call":
            step()

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count


def line(kind: str, manifest: object) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": manifest}).encode() + b"\n"


class Cluster:
    """A service with four nodes: plain, shared by Stowage, shared by HAMi, and in MIG mode."""

    def __init__(self, runner: asyncio.Runner, nodes: Sequence[Manifest] = (), **settings: Any) -> None:
        self._runner = runner
        self.service = Service(Settings(**settings), SnapshotSource(Snapshot(), "hostile"), "0")
        self.engine: Engine = runner.run(self.service.start())
        self._watches: dict[Kind, ListWatch] = {}
        for node in nodes or usual_nodes():
            self.hear("Node", "ADDED", node)

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(create_app(self.service))
        return httpx.AsyncClient(transport=transport, base_url="http://stowage")

    def hear(self, kind: Kind, change: str, manifest: Manifest) -> None:
        """Deliver an event as a watch would."""
        self.hear_line(kind, line(change, manifest))

    def hear_line(self, kind: Kind, data: bytes) -> None:
        watch = self._watches.get(kind)
        if watch is None or not watch.watching:
            watch = self._watches[kind] = ListWatch(WATCHED[kind])
            watch.next_request()
            watch.page(b'{"metadata": {"resourceVersion": "1"}, "items": []}')
            watch.next_request()
        self.engine.apply(watch.chunk(data))

    def put(self, *pods: Manifest) -> None:
        for pod in pods:
            self.hear("Pod", "ADDED", pod)

    def remove(self, *pods: Manifest) -> None:
        for pod in pods:
            self.hear("Pod", "DELETED", pod)

    def send(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """Send a request. Whatever it is, the answer must not be an internal error."""
        sent = {"content-type": "application/json", **headers}
        answer = self._client.request(method, path, content=content, headers=sent)
        response = self._runner.run(answer)
        assert response.status_code != 500, response.text[:SAID]
        assert b"internal error" not in response.content
        return response

    def ask(self, verb: str, message: object) -> Any:
        """The answer of a verb, or its text if the status is not 200."""
        response = self.send("POST", f"/scheduler/{verb}", json.dumps(message).encode())
        return response.json() if response.status_code == 200 else response.text

    def filter(self, pod: Manifest, names: Sequence[str] = NAMES) -> Any:
        return self.ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})

    def prioritize(self, pod: Manifest, names: Sequence[str] = NAMES) -> Any:
        return self.ask("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})

    def ask_all(self, pod: Manifest) -> list[Any]:
        """The answers of all verbs to a pod."""
        replies = self.answer_all([(verb, json.dumps(asked).encode()) for verb, asked in every_verb(pod)])
        return [json.loads(one.body) if one.status == 200 else one.body.decode() for one in replies]

    def answer_all(self, messages: Sequence[tuple[Verb, bytes]]) -> list[Reply]:
        """Answers without HTTP, because the HTTP client would cost more than the answers."""
        replies = [self._runner.run(self.service.answer(verb, body)) for verb, body in messages]
        self._runner.run(asyncio.sleep(0))  # in which the rest of the work is done
        assert not any(one.status == 500 or b"internal error" in one.body for one in replies)
        return replies

    def plan(self) -> None:
        """Run what the service does between requests: learn, plan, price."""
        self._runner.run(self.engine.refresher.refresh_if_due())

    def alive(self) -> None:
        """Check that it answers probes, and that a normal pod still fits."""
        assert self.send("GET", "/healthz").text == "ok"
        assert self.send("GET", "/metrics").status_code == 200
        assert set(self.filter(usual_pod("after-all"))["NodeNames"]) >= {PLAIN}

    def books(self) -> dict[str, dict[str, object]]:
        """The arrays for each node, without those that depend on the order of events."""
        fleet = self.engine.state.fleet
        named = {index: name for name, index in fleet.names.resources.items()}
        arrays = {
            name: array
            for name, array in vars(fleet.arrays).items()
            if isinstance(array, np.ndarray)
            and array.shape[-1] == fleet.arrays.capacity
            and name not in _BY_ORDER
        }

        def column(name: str, array: Any, row: int) -> object:
            values = array[..., row].tolist()
            if name in _PER_RESOURCE:
                return {named[index]: value for index, value in enumerate(values) if value}
            return np.trim_zeros(values, "b") if isinstance(values, list) else values

        return {
            node: {name: column(name, array, row) for name, array in arrays.items()}
            for node, row in fleet.rows.items()
        }


_BY_ORDER = {"generation", "model", "sharing", "order"}
_PER_RESOURCE = {"free_devices", "total_devices", "device_gpu", "max_per_container", "divisible_pool"}


def usual_nodes() -> list[Manifest]:
    """One node of each kind."""
    register = [
        {
            "id": f"GPU-{index}",
            "index": index,
            "count": 10,
            "devmem": 40960,
            "devcore": 100,
            "type": "NVIDIA-NVIDIA A100-SXM4-40GB",
            "mode": "hami-core",
            "health": True,
        }
        for index in range(4)
    ]
    h100 = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": "8",
    }
    return [
        usual_node(PLAIN, {GPU: "8"}, h100),
        usual_node(OWN, {GPU: "8"}, h100 | {"stowage.dev/gpu-sharing": "true"}),
        usual_node(HAMI, {GPU: "40"}, {}, {"hami.io/node-nvidia-register": json.dumps(register)}),
        usual_node(MIG, {"nvidia.com/mig-1g.10gb": "7"}, h100),
    ]


def usual_node(
    name: str,
    resources: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110"} | dict(resources)
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"node-{name}",
            "labels": dict(labels),
            "annotations": annotations or {},
        },
        "spec": {},
        "status": {"allocatable": allocatable},
    }


def usual_pod(
    name: str,
    resources: Mapping[str, object] | None = None,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    node: str = "",
    **spec: Any,
) -> Manifest:
    """A pod of one container that requests a GPU, or ``resources``; bound if ``node`` is given."""
    requests = {"cpu": "1", "memory": "1Gi"} | dict({GPU: "1"} if resources is None else resources)
    meta = {"name": name, "namespace": "d", "uid": f"uid-{name}", "annotations": annotations or {}}
    return {
        "kind": "Pod",
        "metadata": meta | {"labels": labels or {}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": requests}}], "nodeName": node}
        | spec,
        "status": {"phase": "Running" if node else "Pending"},
    }


def every_verb(pod: Manifest) -> list[tuple[Verb, object]]:
    """The messages that kube-scheduler sends about a pod, one for each verb."""
    meta, victims = pod["metadata"], {PLAIN: {"Pods": [{"UID": "x"}], "NumPDBViolations": 0}}
    bind = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": PLAIN}
    asked = {"Pod": pod, "Nodes": None, "NodeNames": NAMES}
    candidates = {"NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    return [
        ("filter", asked),
        ("prioritize", asked),
        ("preempt", {"Pod": pod} | candidates),
        ("bind", bind),
    ]


class Budget:
    """The cost of normal events and requests in this cluster, to check others against."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        annotations = [
            {},
            {"stowage.dev/gpu-models": "H100,A100", "stowage.dev/min-cuda": "12.4"},
            {"nvidia.com/use-gputype": "A100", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4000,10:"},
        ]
        for cpu in ("1", "2", "3"):  # the first pods fill caches
            asks = {GPU: "1", "cpu": cpu}
            pods = [usual_pod(f"usual-{n}", asks, annotations=one) for n, one in enumerate(annotations)]
            self.event = max(steps(partial(cluster.put, pod)) for pod in pods)
            self.verbs = max(steps(partial(cluster.answer_all, _messages(pod))) for pod in pods)
            cluster.plan()
            cluster.remove(*pods)

    def of_event(self, kind: Kind, change: str, manifest: Manifest, usual: Manifest | None = None) -> str:
        """Deliver an event: the problem with its cost, "" for none. ``usual`` is a normal object of its kind,
        if that is not a pod."""
        data, cost = line(change, manifest), self.event
        if usual is not None:
            cost = max(cost, steps(lambda: self._cluster.hear(kind, "ADDED", usual)))
            self._cluster.hear(kind, "DELETED", usual)
        rate = STEPS_A_BYTE_READ if kind in READ_IN_PYTHON else STEPS_A_BYTE
        return self._over(lambda: self._cluster.hear_line(kind, data), EVENT * cost, rate * len(data))

    def of_verbs(self, pod: Manifest) -> str:
        """Call every verb: the problem with the cost or the answers, "" for none."""
        messages, replies = _messages(pod), list[Reply]()
        size = sum(len(body) for _, body in messages)
        problem = self._over(
            lambda: replies.extend(self._cluster.answer_all(messages)), VERB * self.verbs, size * STEPS_A_BYTE
        )
        longest = max((len(reply.body) for reply in replies), default=0)
        if any(reply.status == 500 or b"internal error" in reply.body for reply in replies):
            return f"an internal error: {[reply.body[:SAID] for reply in replies]}"
        return problem or (f"an answer of {longest} characters" if longest > SAID else "")

    def _over(self, run: Callable[[], object], usual: float, decoding: float) -> str:
        try:
            steps(run, usual + decoding)
        except TooManySteps:
            return f"more than {usual:.0f} steps, and {decoding:.0f} for decoding"
        return ""


def _messages(pod: Manifest) -> list[tuple[Verb, bytes]]:
    return [(verb, json.dumps(message).encode()) for verb, message in every_verb(pod)]
