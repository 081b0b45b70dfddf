"""Whether a replica that says it is ready can be: it is connected, alone, and knows the nodes."""

import time

import httpx

from ..background import InThread
from .replica import LEASE_S
from .stack import Stack
from .watch import Watch

LIMIT_S = LEASE_S + 2.0  # a leader that cannot renew its Lease stops after two thirds of that time
EVERY_S = 0.5


class Readiness(InThread):
    """Probes both replicas while its ``with`` block runs."""

    def __init__(self, stack: Stack, watch: Watch) -> None:
        super().__init__("readiness")
        self._stack, self._watch = stack, watch
        self._was_ready = [False, False]

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            for index, one in enumerate(self._stack.replicas):
                since = one.proxy.cut_off_since
                ready = one.status("/readyz") == 200
                self._watch.checks["readiness probes"] += 1
                still = one.proxy.cut_off_since
                if ready and since is not None and since == still and time.monotonic() - since > LIMIT_S:
                    self._watch.found(f"readiness: {one.name} is ready {LIMIT_S:.1f} s after it was cut off")
                if ready and not self._was_ready[index]:
                    self._check_nodes(index)
                self._was_ready[index] = ready

    def _check_nodes(self, index: int) -> None:
        """A replica that has just become ready knows nodes. (Which ones is checked when it is calm.)"""
        try:
            nodes = self._stack.replicas[index].json("/debug/nodes")["nodes"]
        except httpx.HTTPError:
            return  # a fault hit it
        self._watch.checks["replicas that became ready"] += 1
        if not nodes:
            self._watch.found(f"readiness: {self._stack.replicas[index].name} is ready without nodes")
