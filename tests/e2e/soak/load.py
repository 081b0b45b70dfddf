"""The pods that come and go: every way to ask for a GPU, in every queue, drawn from a seed."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx

from ..background import InThread
from ..controlplane.api import COLLECTIONS, Api, Object
from ..queue_cases import BACKFILL, BATCH, INTERACTIVE
from ..rush import LARGE, MEDIUM, SHARED, SMALL
from ..sharing import COMPUTE, GPU, MEMORY
from ..workload import pod
from . import fleet
from .watch import FILLER, Watch

GROUP = 4  # pods with consecutive numbers, which may be a gang
LOAD = "soak/load"  # the label of these pods, with the way in which they ask for a GPU
WAITING = 32  # the most pods that wait at once: more would only be tried again and again
WAYS = {
    "whole": 24, "mixed": 12, "single": 6, "replicas": 6, "renamed": 4, "own": 16, "hami": 16,
    "himig": 6, "gpushare": 6, "claims": 4,
}  # fmt: skip
"""How often each is drawn."""
QUEUES = {INTERACTIVE: 2, BATCH: 3, BACKFILL: 5}
IMPOSSIBLE = 1_000  # one pod in so many fits nowhere
FILLERS: tuple[tuple[str, dict[str, int], int], ...] = (("whole", {GPU: 4}, 40), ("own", {}, 20))
"""Backfill that runs until it is evicted, and comes again: how it asks, for what, and how many of them."""


def group(seed: int, number: int) -> list[Object]:
    """Four pods, and the claims that they need before them: a gang, or four of different kinds."""
    draw = fleet.draw_for(seed, number)
    queue = draw.choices(list(QUEUES), list(QUEUES.values()))[0]
    if draw.random() < 0.05:
        labels = {"stowage.dev/gang": f"gang-{number}", "stowage.dev/gang-min": str(GROUP)}
        size, seconds = draw.choice((1, 2)), draw.uniform(3, 8)
        return [
            _pod(number * GROUP + n, "whole", {GPU: size}, queue, seconds, labels=labels)
            for n in range(GROUP)
        ]
    made: list[Object] = []
    for n in range(GROUP):
        queue = draw.choices(list(QUEUES), list(QUEUES.values()))[0]
        made += single(number * GROUP + n, draw.choices(list(WAYS), list(WAYS.values()))[0], queue, draw)
    return made


def single(number: int, way: str, queue: str, draw: random.Random) -> list[Object]:
    """A pod that asks in this way, with its claim if it needs one."""
    seconds = draw.uniform(2, 9)
    if draw.randrange(IMPOSSIBLE) == 0:
        return [_pod(number, "whole", {GPU: 64}, queue, seconds)]
    if way == "own":
        milli, gib = draw.choice(((100, 4), (250, 20), (400, 30), (600, 40), (1000, 79)))
        notes = {COMPUTE: f"{milli}m", MEMORY: f"{gib}Gi"}
        return [_pod(number, way, {}, queue, seconds, notes=notes)]
    if way == "claims":
        return _with_claim(_pod(number, way, {}, queue, seconds))
    return [_pod(number, way, _amounts(way, draw), queue, seconds)]


def _amounts(way: str, draw: random.Random) -> dict[str, int]:
    if way == "hami":
        cores, mib = draw.choice(((5, 2048), (10, 12288), (30, 4096), (0, 30720), (60, 40960)))
        return {GPU: 1, "nvidia.com/gpumem": mib} | ({"nvidia.com/gpucores": cores} if cores else {})
    if way == "himig":
        return {GPU: 1, "nvidia.com/gpumem": draw.choice((4096, 4096, 9216, 15360))}
    return draw.choice(
        {
            "whole": ({GPU: 1}, {GPU: 1}, {GPU: 2}, {GPU: 4}, {GPU: 8}),
            "mixed": ({SMALL: 1}, {SMALL: 1}, {MEDIUM: 1}, {LARGE: 1}, {SMALL: 1, MEDIUM: 1}),
            "single": ({GPU: 1}, {GPU: 2}),
            "replicas": ({GPU: 1}, {GPU: 1}, {GPU: 2}),
            "renamed": ({SHARED: 1},),
            "gpushare": ({fleet.MEMORY: 10}, {fleet.MEMORY: 35}, {fleet.MEMORY: 80}),
        }[way]
    )


def _pod(
    number: int,
    way: str,
    amounts: dict[str, int],
    queue: str,
    seconds: float,
    *,
    labels: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
) -> Object:
    made = pod(
        f"p{number:06}",
        amounts,
        cpu="100m",
        runs_for=f"{seconds:.1f}s",
        priority_class=queue,
        annotations=notes,
        labels={LOAD: way} | (labels or {}),
    )
    made["spec"]["nodeSelector"] = {fleet.POOL: way}
    return made


def _with_claim(made: Object) -> list[Object]:
    name = made["metadata"]["name"]
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    return [claim, made]


def filler(name: str, way: str, amounts: dict[str, int]) -> Object:
    """A pod of backfill that does not end by itself."""
    notes = {COMPUTE: "600m", MEMORY: "40Gi"} if way == "own" else {}
    labels = {LOAD: way, FILLER: ""}
    made = pod(name, amounts, cpu="100m", priority_class=BACKFILL, annotations=notes, labels=labels)
    made["spec"]["nodeSelector"] = {fleet.POOL: way}
    return made


class Load(InThread):
    """Creates ``pods`` pods while fewer than ``WAITING`` wait, and deletes those that have ended."""

    def __init__(self, api: Api, watch: Watch, seed: int, pods: int) -> None:
        super().__init__("load")
        self._api, self._watch, self._seed, self._pods = api, watch, seed, pods
        self._swept_at = 0.0
        self._fillers = 0
        self.created = 0
        self.paused = False

    @property
    def finished(self) -> bool:
        return self.created >= self._pods

    def _run(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            while not self._over.is_set():
                if time.monotonic() - self._swept_at > 1:
                    self._swept_at = time.monotonic()
                    self.sweep()
                    self._fill()
                if self.finished or self.paused or self._watch.waiting() >= WAITING:
                    self._over.wait(0.1)
                    continue
                objects = group(self._seed, self.created // GROUP)
                for wanted in ("ResourceClaim", "Pod"):
                    list(pool.map(self._create, [one for one in objects if one["kind"] == wanted]))
                self.created += GROUP
                self._watch.expect(objects)

    def _fill(self) -> None:
        present = self._watch.fillers()
        for way, amounts, count in FILLERS:
            for _ in range(0 if self.paused else count - present[way]):
                self._fillers += 1
                one = filler(f"f{self._fillers:06}", way, amounts)
                self._create(one)
                self._watch.expect([one])

    def _create(self, one: Object) -> None:
        while not self._over.is_set():
            try:
                self._api.create(one)
                return
            except httpx.HTTPStatusError as problem:
                if problem.response.status_code == httpx.codes.CONFLICT:  # an answer was lost
                    return
            except httpx.TransportError:
                pass
            self._over.wait(0.3)

    def withdraw(self) -> None:
        """Deletes the pods that wait: a check found that they fit nowhere, and others could not come."""
        for one in self._watch.pending():
            with suppress(httpx.HTTPError):
                self._api.delete("Pod", one["metadata"]["name"])

    def sweep(self) -> None:
        """Deletes pods that have ended, and claims without a pod."""
        with suppress(httpx.HTTPError):
            for phase in ("Succeeded", "Failed"):
                selector = {"fieldSelector": f"status.phase={phase}", "gracePeriodSeconds": "0"}
                self._api.request("DELETE", f"{COLLECTIONS['Pod']}?{httpx.QueryParams(selector)}")
        for name in self._watch.gone_with_claim():
            with suppress(httpx.HTTPError):
                self._api.delete("ResourceClaim", name)
