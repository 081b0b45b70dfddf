"""Starts ``stowage serve`` and the scripted API server as separate processes."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

_PATIENCE = 1200.0
"""Seconds: enough for 20,000 nodes on a machine that is busy with other work."""


@dataclass(frozen=True, slots=True)
class Running:
    """A Stowage that was ready ``ready_seconds`` after its process was started."""

    port: int
    pid: int
    ready_seconds: float

    def memory_mib(self, which: str = "VmRSS") -> float:
        """Resident memory now (``VmRSS``) or at its peak (``VmHWM``), in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{which}:\s+(\d+) kB", status, re.M)
        assert found is not None
        return int(found[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def api_server(
    nodes: int,
    *,
    rate: float = 0,
    burst: int = 0,
    hostile: int = 0,
    waiting: int = 0,
    dialect: str = "nvidia",
    port: int = 0,
    **more: int,
) -> Iterator[Path]:
    """A scripted API server; yields a kubeconfig for it. ``more``: other arguments of ``bench.apiserver``."""
    port = port or free_port()
    arguments: dict[str, object] = {"port": port, "nodes": nodes, "rate": rate, "burst": burst}
    arguments |= {"hostile": hostile, "waiting": waiting, "dialect": dialect, **more}
    command = [sys.executable, "-m", "bench.apiserver", *(f"--{k}={v}" for k, v in arguments.items())]
    with running_process(command, {}) as process:
        until_ok(process, f"http://127.0.0.1:{port}/version", _PATIENCE)
        yield kubeconfig_of(port)


@contextmanager
def stowage(
    kubeconfig: Path,
    settings: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    tls: ssl.SSLContext | None = None,
) -> Iterator[Running]:
    """``stowage serve`` on a free port, once it is ready; ``settings`` are environment variables.

    ``tls`` is for clients if it serves TLS.
    """
    port = free_port()
    program = str(Path(sys.executable).with_name("stowage"))
    command = [program, "serve", f"--kubeconfig={kubeconfig}", f"--port={port}", *arguments]
    started = time.perf_counter()
    with running_process(command, settings or {}) as process:
        until_ok(process, f"{'https' if tls else 'http'}://127.0.0.1:{port}/readyz", _PATIENCE, tls)
        yield Running(port, process.pid, time.perf_counter() - started)


def free_port() -> int:
    """A port that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running_process(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=os.environ | dict(environment))
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until_ok(
    process: subprocess.Popen[bytes], url: str, seconds: float = 300, tls: ssl.SSLContext | None = None
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=1, context=tls):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise TimeoutError(f"{url} did not answer 200 within {seconds:g} s")


def kubeconfig_of(port: int) -> Path:
    """A kubeconfig, in a new directory, for an API server on this port."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
    path = Path(tempfile.mkdtemp(prefix="stowage-bench-")) / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path
