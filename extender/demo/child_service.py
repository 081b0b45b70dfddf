"""Runs ``stowage serve`` in a child process, and calls it as kube-scheduler would."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from extender.cluster.totals import Totals
from extender.demo.pods import Manifest

_SETTINGS = {"STOWAGE_BIND": "true", "STOWAGE_LOG_LEVEL": "warning", "STOWAGE_DRAIN_SECONDS": "0"}
_START_SECONDS = 120
_STOP_SECONDS = 10
_CONNECT_TO = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class DemoError(Exception):
    """The demo failed; the text says why."""


class ChildService:
    """A running service as an ``Extender``. ``seconds``: the duration of each call, by verb."""

    weight = 200  # as in the files of scheduler-config/

    def __init__(self, process: subprocess.Popen[bytes], host: str, port: int) -> None:
        self.host, self.port = _CONNECT_TO.get(host, host), port
        self.seconds: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}
        self._process = process
        self._connection = http.client.HTTPConnection(self.host, port, timeout=30)

    @property
    def url(self) -> str:
        """The URL for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def filter(self, pod: Manifest, nodes: list[str]) -> list[str]:
        """The nodes on which the pod fits."""
        reply = json.loads(self._call("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes}))
        _raise_for(reply["Error"])
        return reply["NodeNames"] or []

    def prioritize(self, pod: Manifest, nodes: list[str]) -> dict[str, int]:
        """A score from 0 to 10 by node."""
        reply = json.loads(self._call("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": nodes}))
        return {priority["Host"]: priority["Score"] for priority in reply}

    def bind(self, pod: Manifest, node: str) -> None:
        """Bind the pod. Raises ``DemoError`` if the service refuses."""
        name, namespace, uid = (pod["metadata"][key] for key in ("name", "namespace", "uid"))
        binding = {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node}
        _raise_for(json.loads(self._call("bind", binding))["Error"])

    def totals(self) -> Totals:
        """The sums of its census. Raises ``DemoError``."""
        status, body = self._request("GET", "/debug/fragmentation")
        if status != http.client.OK:
            raise DemoError(f"/debug/fragmentation: {status}")
        return Totals(**json.loads(body)["totals"])

    def medians(self) -> str:
        """The median duration of the calls of each verb, as text."""
        calls = ((verb, seconds) for verb, seconds in self.seconds.items() if seconds)
        return ", ".join(f"{verb} {1000 * median(seconds):.1f} ms" for verb, seconds in calls)

    def wait_until_ready(self) -> None:
        """Return when ``/readyz`` answers 200. Raises ``DemoError`` if it does not."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise DemoError(f"the service exited during its start (exit code {self._process.returncode})")
            try:
                if self._request("GET", "/readyz")[0] == http.client.OK:
                    return
            except (OSError, http.client.HTTPException):
                self._connection.close()
            time.sleep(0.1)
        raise DemoError(f"the service was not ready within {_START_SECONDS} s")

    def wait(self) -> None:
        """Wait until the service exits by itself, then raise ``DemoError``."""
        self._process.wait()
        raise DemoError(f"the service exited (exit code {self._process.returncode})")

    def stop(self) -> None:
        """End the service."""
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, verb: str, arguments: dict[str, object]) -> bytes:
        started = time.perf_counter()
        try:
            status, body = self._request("POST", f"/scheduler/{verb}", json.dumps(arguments))
        except (OSError, http.client.HTTPException) as error:
            raise DemoError(f"{verb}: {error or type(error).__name__}") from None
        self.seconds[verb].append(time.perf_counter() - started)
        if status != http.client.OK:
            raise DemoError(f"{verb}: {status} {body.decode(errors='replace')}")
        return body

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if body else {}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


@contextmanager
def serving(snapshot: Path, host: str, port: int) -> Iterator[ChildService]:
    """Run ``stowage serve`` on a snapshot with ``bind`` on, at this port, or at a free one if it is busy."""
    port = free_port(host, port)
    command = [sys.executable, "-m", "extender.cli.main", "serve", "--snapshot", str(snapshot)]
    process = subprocess.Popen(
        [*command, "--host", host, "--port", str(port)],
        env=os.environ | _SETTINGS,
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C goes to the demo only, which then stops the service
    )
    service = ChildService(process, host, port)
    try:
        yield service
    finally:
        service.stop()


def free_port(host: str, port: int) -> int:
    """``port``, or a free port if it is in use. Raises ``DemoError`` if ``host`` cannot be listened on."""
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


def _raise_for(error: str) -> None:
    if error:
        raise DemoError(error)
