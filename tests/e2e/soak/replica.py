"""One Stowage of the soak: behind its own network, restarted when it dies, and asked whether it is ready."""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from tests.certificates import Authority, Secret

from ..background import InThread
from ..controlplane.cluster import ControlPlane
from ..controlplane.process import ProcessError
from ..tls import TlsStowage
from .proxy import Proxy

LEASE_S = 5
SETTINGS = {
    "BIND": "true",
    "EVICTOR": "on",
    "EVICTOR_LEASE": "stowage-system/stowage-evictor",
    "EVICTOR_SCHEDULERS": '["stowage"]',
    "EVICTIONS_PER_MINUTE": "600",
    "SHIELD_CONFIGMAP": "stowage-system/stowage-shield",
    "SHIELD_SECONDS": "5",
    "SCALE_UP_WAIT_SECONDS": "0",
    "CONSOLIDATION": "on",
    "CONSOLIDATION_AFTER_SECONDS": "5",
    "CONSOLIDATION_PRICE": "1000",  # so that seconds are enough
    "CONSOLIDATION_LOST_PERCENT": "100",
    "LEADER_ELECTION": "stowage-system/stowage",
    "LEASE_SECONDS": str(LEASE_S),
}
CLOCK = Path(__file__).parent / "clock"


class Replica(TlsStowage):
    """A Stowage with TLS that reaches kube-apiserver through ``proxy``."""

    def __init__(
        self, plane: ControlPlane, kubeconfig: Path, secret: Secret, ca: Authority, proxy: Proxy, name: str
    ) -> None:
        changed = yaml.safe_load(kubeconfig.read_text())
        changed["clusters"][0]["cluster"] = {"server": proxy.url}
        own = plane.directory / f"{name}.kubeconfig"
        own.write_text(yaml.safe_dump(changed))
        super().__init__(plane, own, secret, ca, name=name, awaits="/healthz", **SETTINGS)
        self.name, self.proxy = name, proxy
        self.lock = threading.Lock()  # held by a fault of this process
        self.network = threading.Lock()  # held by a fault of its network
        self._clock = plane.directory / f"{name}.clock"
        self._client = httpx.Client(trust_env=False, timeout=2, verify=self.verify)
        environment = dict(self.process.environment)
        if "NUMBA_CACHE_DIR" not in os.environ:
            del environment["NUMBA_CACHE_DIR"]  # kernels are kept where Stowage keeps them by default
        self.process.environment = environment | self._movable_clock()

    def status(self, path: str) -> int:
        """The status of a GET, 0 if nothing answers."""
        try:
            return self._client.get(self.url + path).status_code
        except (httpx.TransportError, RuntimeError):
            return 0

    def end(self) -> None:
        """Stop the program and close the connections to it."""
        self.process.stop()
        self._client.close()

    def set_clock(self, offset_s: int) -> None:
        """Moves the wall clock of this process; its monotonic clock goes on."""
        self._clock.write_text(str(offset_s))

    def _movable_clock(self) -> dict[str, str]:
        self.set_clock(0)
        return {"PYTHONPATH": str(CLOCK), "SOAK_CLOCK": str(self._clock)}


class Keeper(InThread):
    """Restarts a replica that has died, as kubelet does. ``crashes`` are those that no fault explains."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(f"keeper-{replica.name}")
        self._replica = replica
        self.excuse = 0  # faults that may make it die now
        self.restarts = 0
        self.crashes: list[str] = []

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, problem, trace)
        self._replica.end()

    def __enter__(self) -> Self:
        self._replica.process.start(within_s=400)
        return super().__enter__()

    def _run(self) -> None:
        while not self._over.wait(0.3):
            if self._replica.process.running:
                continue
            if not self.excuse:
                code = self._replica.process.stop()
                self.crashes.append(f"{self._replica.name} ended by itself with {code} at {time.ctime()}")
            self._restart()

    def _restart(self) -> None:
        try:
            self._replica.process.start(within_s=120)
            self.restarts += 1
        except (ProcessError, OSError) as problem:
            if not self.excuse:
                self.crashes.append(f"{self._replica.name} did not start: {str(problem)[:300]}")
            self._over.wait(1)


def memory_of(pid: int) -> int:
    """Bytes of address space of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
