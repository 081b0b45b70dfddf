"""Watches all pods during the soak, and checks what must hold whenever one is bound or evicted."""

import threading
import time
from collections import Counter, deque

import httpx

from ..background import PodWatch
from ..controlplane.api import Api, Object
from .evictions import Evictions
from .ledger import WAY, Ledger, shared_devices

FILLER = "soak/filler"  # the label of pods that fill the cluster, and do not count as load
KEPT = 40  # findings that are printed at once


class Watch(PodWatch):
    """``checks`` counts what was checked, ``findings`` says what must not happen."""

    def __init__(self, api: Api, nodes: list[Object]) -> None:
        super().__init__(api, "soak-watch")
        self.lock = threading.RLock()
        self.ledger = Ledger()
        self.evictions = Evictions()
        self.pods: dict[str, Object] = {}
        self.bound_at: list[float] = []
        self.checks: Counter[str] = Counter()
        self.findings: list[str] = []
        self._bound: dict[str, str] = {}  # node by UID
        self._unseen: dict[str, Object] = {}  # pods by name that were created and not seen yet
        self._claims: deque[str] = deque()
        for node in nodes:
            self.ledger.put_node(node)

    def found(self, what: str) -> None:
        """Something that must not happen."""
        with self.lock:
            self.findings.append(f"{time.strftime('%H:%M:%S')} {what}")
            if len(self.findings) <= KEPT:
                print(self.findings[-1][:600], flush=True)

    def expect(self, objects: list[Object]) -> None:
        """These have been created."""
        with self.lock:
            known = {pod["metadata"]["name"] for pod in self.pods.values()}
            for one in objects:
                if one["kind"] == "Pod" and one["metadata"]["name"] not in known:
                    self._unseen[one["metadata"]["name"]] = one

    def waiting(self) -> int:
        """How many pods of the load wait for a node."""
        with self.lock:
            return sum(not is_filler(one) for one in [*self.pending(), *self._unseen.values()])

    def fillers(self) -> Counter[str]:
        """How many there are by way."""
        with self.lock:
            present = [*self.pods.values(), *self._unseen.values()]
            return Counter(one["metadata"]["labels"][WAY] for one in present if is_filler(one))

    def pending(self) -> list[Object]:
        """The pods of the load that have no node."""
        with self.lock:
            return [
                one
                for uid, one in self.pods.items()
                if uid not in self._bound and WAY in one["metadata"].get("labels", {}) and not is_leaving(one)
            ]

    def running_of_jobs(self) -> list[Object]:
        """The pods of Jobs that run."""
        with self.lock:
            found = [one for one in self.pods.values() if "job-name" in one["metadata"].get("labels", {})]
        return [one for one in found if one["status"]["phase"] == "Running" and not is_leaving(one)]

    def moved_jobs(self) -> set[str]:
        """The Jobs of which a pod has moved."""
        with self.lock:
            return {one.job for one in self.evictions.moved.values()}

    def gone_with_claim(self) -> list[str]:
        """The names of claims whose pods are gone since the last call."""
        with self.lock:
            names, self._claims = list(self._claims), deque()
        return names

    def check_claims(self) -> None:
        """No device is in two claims. Does nothing while the API server is away."""
        try:
            claims = self._api.list("ResourceClaim")["items"]
        except httpx.HTTPError:
            return
        self.checks["claims with a device"] += sum(bool(one.get("status")) for one in claims)
        for device, names in shared_devices(claims).items():
            self.found(f"over-commit: the device {device} is allocated to the claims {names}")

    def _take_list(self, pods: list[Object]) -> None:
        with self.lock:
            listed = {pod["metadata"]["uid"] for pod in pods}
            for uid in [uid for uid in self.pods if uid not in listed]:
                self._forget(self.pods[uid])
            for pod in pods:
                self._see(pod)

    def _take(self, kind: str, pod: Object) -> None:
        with self.lock:
            if kind == "DELETED":
                self._see(pod)
                self._forget(pod)
            else:
                self._see(pod)

    def _see(self, pod: Object) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        node, now = pod["spec"].get("nodeName"), time.monotonic()
        self.pods[uid] = pod
        self._unseen.pop(name, None)
        self.evictions.see(pod, now)
        wrong = self.ledger.put(pod)
        for one in wrong:
            self.found(f"over-commit: {one}")
        if node is None or self._bound.get(uid) == node:
            return
        self.checks["bindings"] += 1
        if uid in self._bound:
            self.found(f"moved: {name} from {self._bound[uid]} to {node}")
        self._bound[uid] = node
        self.evictions.bound(pod, now)
        if WAY in pod["metadata"].get("labels", {}) and not is_filler(pod):
            self.checks[f"pods placed, {pod['metadata']['labels'][WAY]}"] += 1
            self.bound_at.append(now)

    def _forget(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self.pods.pop(uid, None)
        self._bound.pop(uid, None)
        self.ledger.remove(uid)
        if pod["spec"].get("resourceClaims"):
            self._claims.append(pod["metadata"]["name"])


def is_leaving(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_filler(pod: Object) -> bool:
    return FILLER in pod["metadata"].get("labels", {})
