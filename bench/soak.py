"""A long run with a real kube-scheduler: pods at a steady rate, the evictor, and connections of all sorts.

Memory of the service must not grow, and no answer may take long. Pods run for a few seconds on full nodes,
one in ten is urgent and evicts another, and waves of connections are idle, slow, oversized or malformed. The
control plane is that of the end-to-end tests (build it with ``make e2e``). Run alone:

    python -m bench.soak --minutes 20 --rate 1000
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.service import Running, stowage
from bench.throughput import configuration
from tests.e2e.controlplane.api import Api
from tests.e2e.controlplane.build import missing
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.rush import GPU, LABEL_SETS
from tests.e2e.workload import node, pod

_NODES, _RUNS_FOR = 12, "5s"
_SETTLES = 300.0  # seconds after which memory must not grow
_WAVE = 100  # connections
_EVICTOR = {"STOWAGE_EVICTOR": "on", "STOWAGE_EVICTOR_LEASE": "default/soak"}
_GET = b"GET /healthz HTTP/1.1\r\nHost: s\r\n"
_SORTS = (
    _GET + b"\r\n",
    _GET + b"Connection: close\r\n\r\n",
    _GET + b"X: " + b"x" * 60_000 + b"\r\n\r\n",
    _GET + b"X: ",
    b"POST /scheduler/filter HTTP/1.1\r\nHost: s\r\nContent-Length: 50000\r\n\r\n" + b" " * 40_000,
    b"nonsense\r\n\r\n",
)


@dataclass(slots=True)
class Seen:
    """Resident MiB by seconds since the start, seconds of answers, created pods and connections."""

    memory: list[tuple[float, float]] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    created: int = 0
    connections: int = 0

    def line(self) -> str:
        late = [mib for at, mib in self.memory if at >= min(_SETTLES, self.memory[-1][0] / 2)]
        ms = [seconds * 1e3 for seconds in sorted(self.answers)]
        median, high = ms[len(ms) // 2], ms[len(ms) * 99 // 100]
        sent = f"{self.created:,} pods, {self.connections:,} connections; {len(ms):,} answers"
        return (
            f"{sent}: median {median:.1f} "
            f"ms, 99 % {high:.0f} ms, longest {ms[-1]:.0f} ms; initial memory {self.memory[0][1]:.0f} MiB, "
            f"later {min(late):.0f} to {max(late):.0f}, finally {late[-1]:.0f}"
        )


def soak(minutes: float, rate: float) -> Seen:
    """Run for ``minutes`` with ``rate`` pods per minute. Needs the built control plane."""
    if missing():
        raise SystemExit("the control plane is not built: python -m tests.e2e.controlplane.build")
    seen, end = Seen(), threading.Event()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        plane = stack.enter_context(ControlPlane(Path(directory) / "plane"))
        plane.api.create_all(
            node(f"gpu-{number:02}", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"])
            for number in range(_NODES)
        )
        for name, value in (("urgent", 1000), ("usual", 0)):
            plane.api.create(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                }
            )
        running = stack.enter_context(stowage(plane.kubeconfig, _EVICTOR))
        stack.enter_context(plane.scheduler(configuration(running, "all")))
        workers = [
            threading.Thread(target=_create, args=(plane.api, rate / 60, seen, end)),
            threading.Thread(target=_ask, args=(running, seen, end)),
            threading.Thread(target=lambda: asyncio.run(_connect(running.port, seen, end))),
        ]
        for worker in workers:
            worker.start()
        started = time.monotonic()
        while (at := time.monotonic() - started) < minutes * 60:
            seen.memory.append((at, running.memory_mib()))
            print(f"{at / 60:5.1f} min: {seen.line()}" if seen.answers else "", flush=True)
            time.sleep(15)
        end.set()
        for worker in workers:
            worker.join()
    return seen


def _create(api: Api, rate: float, seen: Seen, end: threading.Event) -> None:
    begin = time.monotonic()
    while not end.wait(max(0.0, begin + seen.created / rate - time.monotonic())):
        number = seen.created
        priority = "urgent" if number % 10 == 0 else "usual"
        with suppress(httpx.HTTPError):
            api.create(pod(f"p-{number}", {GPU: 1}, runs_for=_RUNS_FOR, priority_class=priority))
        seen.created += 1
        if number % 200 == 199:
            for name in _ended(api):
                api.delete("Pod", name)


def _ended(api: Api) -> Iterator[str]:
    for item in api.list("Pod")["items"]:
        if item["status"].get("phase") == "Succeeded":
            yield item["metadata"]["name"]


def _ask(running: Running, seen: Seen, end: threading.Event) -> None:
    """Send a request every 20 ms, like kube-scheduler, on a persistent connection."""
    container = {"name": "c", "resources": {"requests": {GPU: "1"}}}
    asked = {"metadata": {"name": "a", "namespace": "d", "uid": "a"}, "spec": {"containers": [container]}}
    names = [f"gpu-{number:02}" for number in range(_NODES)]
    body = json.dumps({"Pod": asked, "Nodes": None, "NodeNames": names}).encode()
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=60) as client:
        while not end.wait(0.02):
            began = time.perf_counter()
            client.post("/scheduler/filter", content=body, headers=headers).raise_for_status()
            seen.answers.append(time.perf_counter() - began)


async def _connect(port: int, seen: Seen, end: threading.Event) -> None:
    """Wave after wave, each of a different kind and from a different address."""
    while not end.is_set():
        for number, sent in enumerate(_SORTS):
            writers = await asyncio.gather(*(_connection(port, sent, number) for _ in range(_WAVE)))
            seen.connections += _WAVE
            await asyncio.sleep(1)
            for writer in writers:
                if writer is not None:
                    writer.transport.abort()


async def _connection(port: int, sent: bytes, number: int) -> asyncio.StreamWriter | None:
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{number + 2}", 0))
        writer.write(sent)
        return writer
    return None


def main() -> None:
    """Print a line every 15 s, and a final one."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rate", type=float, default=1000, help="pods per minute")
    args = parser.parse_args()
    print(soak(args.minutes, args.rate).line())


if __name__ == "__main__":
    main()
