"""Runs ``stowage serve`` in a child process, and calls it as kube-scheduler would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from statistics import median
from typing import Any

from urllib3 import HTTPConnectionPool
from urllib3.exceptions import HTTPError

from extender.cluster.totals import Totals
from extender.demo.pods import Manifest

_SETTINGS = {"STOWAGE_BIND": "true", "STOWAGE_LOG_LEVEL": "warning", "STOWAGE_DRAIN_SECONDS": "0"}
_JSON = {"Content-Type": "application/json"}
_START_SECONDS = 120
_STOP_SECONDS = 0.5
_CONNECT_TO = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class DemoError(Exception):
    """The demo failed for the reason in the text."""


class ChildService:
    """A running service. Calls of verbs raise ``DemoError`` if it replies with an error or does not
    answer."""

    def __init__(self, process: subprocess.Popen[bytes], host: str, port: int) -> None:
        self.host, self.port = _CONNECT_TO.get(host, host), port
        self._process = process
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)  # duration of each call, by verb
        self._pool = HTTPConnectionPool(self.host, port, timeout=30, retries=False)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def filter(self, pod: Manifest, nodes: list[str]) -> list[str]:
        """The nodes on which the pod fits."""
        reply = self._call("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        names: list[str] = reply["NodeNames"] or []
        return names

    def prioritize(self, pod: Manifest, nodes: list[str]) -> dict[str, int]:
        """A score from 0 to 10 by node."""
        reply = self._call("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        return {priority["Host"]: priority["Score"] for priority in reply}

    def bind(self, pod: Manifest, node: str) -> None:
        name, namespace, uid = (pod["metadata"][key] for key in ("name", "namespace", "uid"))
        self._call("bind", {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node})

    def totals(self) -> Totals:
        """The totals of its census."""
        return Totals(**json.loads(self._request("GET", "/debug/fragmentation"))["totals"])

    def medians(self) -> str:
        """The median duration of the calls of each verb, as text."""
        return ", ".join(f"{verb} {1000 * median(times):.1f} ms" for verb, times in self._seconds.items())

    def wait_until_ready(self) -> None:
        """Return when ``/readyz`` answers 200. Raises ``DemoError`` if it does not in time."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise DemoError(f"the service exited during its start (exit code {self._process.returncode})")
            try:
                self._request("GET", "/readyz")
                return
            except DemoError:
                time.sleep(0.1)
        raise DemoError(f"the service was not ready within {_START_SECONDS} s")

    def wait(self) -> None:
        """Wait until the service exits by itself, then raise ``DemoError``."""
        self._process.wait()
        raise DemoError(f"the service exited (exit code {self._process.returncode})")

    def stop(self) -> None:
        """Terminate the service and its processes immediately, even during the compilation of kernels."""
        self._pool.close()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        with suppress(ProcessLookupError):  # its group has no processes left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _call(self, verb: str, arguments: dict[str, object]) -> Any:  # noqa: ANN401 (a reply)
        started = time.perf_counter()
        reply = json.loads(self._request("POST", f"/scheduler/{verb}", json.dumps(arguments)))
        self._seconds[verb].append(time.perf_counter() - started)
        if isinstance(reply, dict) and reply["Error"]:
            raise DemoError(reply["Error"])
        return reply

    def _request(self, method: str, path: str, body: str | None = None) -> bytes:
        try:
            answer = self._pool.request(method, path, body=body, headers=_JSON)
        except (OSError, HTTPError) as error:
            raise DemoError(f"{path}: {error}") from None
        if answer.status != HTTPStatus.OK:
            raise DemoError(f"{path}: {answer.status} {answer.data.decode(errors='replace')}")
        return answer.data


@contextmanager
def serving(snapshot: Path, host: str, port: int) -> Iterator[ChildService]:
    """Run ``stowage serve`` on a snapshot with ``bind`` enabled, at this port, or at a free one if it is in
    use."""
    port = free_port(host, port)
    command = [sys.executable, "-m", "extender.cli.main", "serve", "--snapshot", str(snapshot)]
    process = subprocess.Popen(
        [*command, "--host", host, "--port", str(port)],
        env=os.environ | _SETTINGS,
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C reaches only the demo, which then stops the service
    )
    service = ChildService(process, host, port)
    try:
        yield service
    finally:
        service.stop()


def free_port(host: str, port: int) -> int:
    """``port``, or a free port if it is in use. Raises ``DemoError`` if listening on ``host`` fails."""
    if not 0 <= port < 1 << 16:
        raise DemoError(f"{port} is not a port (0 to 65535)")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (port, 0):
        try:
            with socket.create_server((host, candidate), family=family) as listener:
                return int(listener.getsockname()[1])
        except OSError as error:
            reason = str(error.strerror).partition(" (while")[0]
    raise DemoError(f"cannot listen on {host}: {reason}")
