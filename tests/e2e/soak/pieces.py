"""Small Jobs that end here and there, and pods of 8 GPUs that then wait beside GPUs that are free in pieces.

All have one priority and nodes of their own: nobody is evicted there but to move.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

import httpx

from ..background import InThread
from ..controlplane.api import COLLECTIONS, Api, Object
from ..queue_cases import BATCH, HOUR, ago
from ..sharing import GPU
from ..workload import job, pod
from . import fleet
from .cluster_faults import persist
from .ledger import WAY
from .watch import FILLER, Watch

SMALL_GPUS, LARGE_PODS = 2, 2
JOBS = fleet.PIECES * 8 // SMALL_GPUS
HOLES, HOLES_ON_A_NODE = 10, 2
"""Small Jobs that end before the large pods come: none of these fits then."""
WITHIN_S = 90.0
NOTES = {"stowage.dev/checkpoint-interval": "60s"}


class Pieces(InThread):
    """Round after round: fills the nodes with small Jobs, ends some, and lets large pods wait."""

    def __init__(self, api: Api, watch: Watch, seed: int) -> None:
        super().__init__("pieces")
        self._api, self._watch, self._draw = api, watch, random.Random(f"pieces {seed}")
        self._jobs: list[str] = []
        self._made = 0
        self._aged: set[str] = set()
        self.paused = False

    def without_a_pod(self) -> list[str]:
        """The Jobs of which no pod runs."""
        running = self._running()
        return [name for name in list(self._jobs) if name not in running]

    def _run(self) -> None:
        while not self._over.wait(0.5):
            for step in (self._fill, self._leave_holes, self._let_large_pods_wait):
                if not self._ends():
                    step()

    def _fill(self) -> None:
        while len(self._jobs) < JOBS:
            made = job(self._name("small"), _pod("", SMALL_GPUS, notes=NOTES))
            made["spec"]["backoffLimit"] = 1_000  # faults end its pods, too
            persist(partial(self._api.create, made))
            self._jobs.append(made["metadata"]["name"])
        self._wait(lambda: not self.without_a_pod())
        for one in self._running().values():
            if (name := one["metadata"]["name"]) not in self._aged:
                self._aged.add(name)
                started = {"status": {"startTime": ago(HOUR)}}
                with suppress(httpx.HTTPError):
                    self._api.patch("Pod", name, started, subresource="status")

    def _leave_holes(self) -> None:
        """Jobs that have moved end first: they do not move again within the hour."""
        running, holes = self._running(), Counter[str]()
        moved = self._watch.moved_jobs()
        names = self._draw.sample(sorted(running), len(running))
        for name in sorted(names, key=lambda name: name not in moved):
            node = running[name]["spec"]["nodeName"]
            if holes.total() < HOLES and holes[node] < HOLES_ON_A_NODE:
                holes[node] += 1
                self._jobs.remove(name)
                persist(partial(self._delete, "Job", name))
                persist(partial(self._delete, "Pod", running[name]["metadata"]["name"]))

    def _let_large_pods_wait(self) -> None:
        names = {self._name("large") for _ in range(LARGE_PODS)}
        for name in names:
            persist(partial(self._api.create, _pod(name, 8, runs_for="5s")))
        self._watch.checks["pods that waited for moves"] += LARGE_PODS
        self._wait(lambda: not names & {one["metadata"]["name"] for one in self._watch.pending()})
        for name in names & {one["metadata"]["name"] for one in self._watch.pending()}:
            persist(partial(self._delete, "Pod", name))
        with suppress(httpx.HTTPError):
            events = self._api.list("Event", fieldSelector="reason=Moved")["items"]
            self._watch.evictions.told |= {one["involvedObject"]["uid"] for one in events}

    def _running(self) -> dict[str, Object]:
        """The pods of the small Jobs that run, by the name of the Job."""
        return {pod["metadata"]["labels"]["job-name"]: pod for pod in self._watch.running_of_jobs()}

    def _wait(self, until: Callable[[], bool]) -> None:
        end = monotonic() + WITHIN_S
        while not until() and not self._ends() and monotonic() < end:
            self._over.wait(0.3)

    def _ends(self) -> bool:
        return self.paused or self._over.is_set()

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._made:05}"

    def _delete(self, kind: str, name: str) -> Object:
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        return self._api.request("DELETE", f"{COLLECTIONS[kind]}/{name}", options)


def _pod(name: str, gpus: int, *, runs_for: str | None = None, notes: dict[str, str] | None = None) -> Object:
    labels = {WAY: "pieces", FILLER: ""}
    made = pod(
        name,
        {GPU: gpus},
        cpu="100m",
        runs_for=runs_for,
        priority_class=BATCH,
        annotations=notes,
        labels=labels,
    )
    made["spec"]["nodeSelector"] = {fleet.POOL: "pieces"}
    return made
