#!/usr/bin/env python3
"""Publishes which GPUs of this node are NVLink peers, as labels that Node Feature Discovery (NFD) writes.

Reads ``nvidia-smi topo -m``, finds the islands (groups of GPUs that are all connected with each other), and
writes a feature file for nfd-worker's local source. Whatever it does not understand means no labels: it
removes its file and exits with an error. Needs Python 3.11 and its standard library.

The file: one ``key=value`` on a line, and a directive ``# +expiry-time=`` after which NFD ignores it; files
whose names start with a dot are ignored (kubernetes-sigs/node-feature-discovery,
docs/usage/customization-guide.md "Local feature source", source/local/local.go).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvlink_topology import MOST_GPUS, MOST_LINKS, Devices, Unknown, labels_of, parse_topology

PREFIX = "nvlink.feature.node.kubernetes.io/"
FEATURES = Path("/etc/kubernetes/node-feature-discovery/features.d")
FILE = "stowage-nvlink"
_LONGEST_OUTPUT = 1 << 20
_TIMEOUT = 60.0


def read_devices(smi: str, nvml: str) -> Devices:
    """What NVML says, or, without its library, ``nvidia-smi --query-gpu``. Raises Unknown."""
    try:
        library = ctypes.CDLL(nvml)
    except OSError:
        return parse_query(run(smi, "--query-gpu=index,mig.mode.current", "--format=csv,noheader"))
    return _Nvml(library).devices()


def parse_query(text: str) -> Devices:
    """Parse lines such as ``0, Disabled``. Raises Unknown."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if [row[0] for row in rows] != [str(i) for i in range(len(rows))] or not rows:
        raise Unknown("nvidia-smi --query-gpu does not list the GPUs by index")
    modes = [row[1] if len(row) == 2 else "" for row in rows]
    if not {*modes} <= {"Enabled", "Disabled", "[N/A]", "N/A", "[Not Supported]"}:
        raise Unknown("nvidia-smi --query-gpu does not say which GPUs are in MIG mode")
    return Devices(tuple(mode == "Enabled" for mode in modes), (None,) * len(modes))


class _Nvml:
    """NVML (nvml.h): MIG modes, and which NVLinks are active. ``topo -m`` may show links that are down."""

    _ABSENT = (2, 3)  # NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def devices(self) -> Devices:
        self._call("nvmlInit_v2")
        try:
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
            handles = [self._handle(index) for index in range(min(count.value, MOST_GPUS + 1))]
            return Devices(tuple(map(self._in_mig_mode, handles)), tuple(map(self._active_links, handles)))
        finally:
            self._library.nvmlShutdown()

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _in_mig_mode(self, handle: ctypes.c_void_p) -> bool:
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        there = self._call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        return there and bool(current.value)

    def _active_links(self, handle: ctypes.c_void_p) -> int | None:
        """How many links are active; None for a GPU that has none."""
        states = []
        for link in range(MOST_LINKS):
            active = ctypes.c_uint()
            if self._call("nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(link), ctypes.byref(active)):
                states.append(active.value)
        return sum(map(bool, states)) if states else None

    def _call(self, name: str, *arguments: object) -> bool:
        """Whether the GPU has what is asked for. Raises Unknown for any other error."""
        code = getattr(self._library, name)(*arguments)
        if code and (code not in self._ABSENT or name in ("nvmlInit_v2", "nvmlDeviceGetCount_v2")):
            raise Unknown(f"NVML: {name} returned {code}")
        return not code


def run(smi: str, *arguments: str) -> str:
    """The output of nvidia-smi. Raises Unknown."""
    command = " ".join([smi, *arguments])
    try:
        done = subprocess.run([smi, *arguments], capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unknown(f"{command}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout)[:200].decode(errors="replace").strip()
        raise Unknown(f"{command} exited with {done.returncode}: {said}")
    return done.stdout[:_LONGEST_OUTPUT].decode(errors="replace")


def publish(path: Path, labels: dict[str, str], expires: float) -> None:
    """Write the feature file: under a hidden name first, then renamed, so that NFD never reads half of it."""
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))
    lines = [f"# +expiry-time={until}", *(f"{PREFIX}{key}={value}" for key, value in sorted(labels.items()))]
    unfinished = path.with_name(f".{path.name}.tmp")
    with unfinished.open("w") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.chmod(0o644)
    unfinished.replace(path)


def label_node(path: Path, smi: str, nvml: str, keep_s: float) -> dict[str, str]:
    """Read the topology and publish it for ``keep_s`` seconds. Raises Unknown, and the old file is gone."""
    try:
        labels = labels_of(parse_topology(run(smi, "topo", "-m")), read_devices(smi, nvml))
        publish(path, labels, time.time() + keep_s)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return labels


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    path = Path(options.features) / FILE
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    before: dict[str, str] = {}
    for _ in _turns(stop, options.interval, options.once):
        try:
            labels = label_node(path, options.nvidia_smi, options.nvml, 3 * options.interval)
        except (Unknown, OSError) as error:
            print(f"nvlink-labeller: no labels: {error}", file=sys.stderr)
            return 1
        if labels != before:
            print("nvlink-labeller:", " ".join(f"{key}={value}" for key, value in labels.items()), flush=True)
            before = labels
    return 0


def _turns(stop: threading.Event, interval: float, once: bool) -> Iterator[None]:
    while not stop.is_set():
        yield
        if once or stop.wait(interval):
            return


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Publishes NVLink islands as NFD labels.")
    parser.add_argument("--features", default=str(FEATURES), help="directory of nfd-worker's feature files")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two readings")
    parser.add_argument("--once", action="store_true", help="read once and exit")
    parser.add_argument("--nvidia-smi", default="nvidia-smi", help="the program to ask")
    parser.add_argument("--nvml", default="libnvidia-ml.so.1", help="the library to ask, if it is there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
