"""A stream of pods: Jobs of one pod each at a steady rate, half on whole GPUs and half on parts of one.

It shows what an interruption costs: pods per second and the longest pause in each phase.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from . import sharing
from .audit import Audit
from .background import InThread
from .controlplane.api import Api, Object
from .rush import GPU, LABEL_SETS
from .workload import job, node, pod

LASTS = "15s"  # each pod
WHOLE, PARTS = 12, 4  # nodes of each kind, with eight GPUs


@dataclass
class Phase:
    name: str
    begin: float
    end: float = 0.0


class Pace(Audit):
    """An audit that also counts the parts of GPUs, and notes when each pod was bound."""

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self.times: list[float] = []
        self.waits: list[float] = []  # of each of them, in seconds
        self._seen: dict[str, float] = {}
        self.phases: list[Phase] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(Phase(name, time.monotonic()))
        yield
        self.phases[-1].end = time.monotonic()

    def pause(self, phase: Phase) -> float:
        """The longest time without a pod in this phase, in seconds."""
        inside = [one for one in self.times if phase.begin <= one <= phase.end]
        marks = [phase.begin, *inside, phase.end]
        return max(after - before for before, after in itertools.pairwise(marks))

    def report(self) -> str:
        lines = []
        for one in self.phases:
            waits = [
                wait for at, wait in zip(self.times, self.waits, strict=True) if one.begin <= at <= one.end
            ]
            lasted = one.end - one.begin
            lines.append(
                f"{one.name:32} {lasted:5.1f} s {len(waits) / lasted:5.2f} pods/s, "
                f"longest pause {self.pause(one):4.1f} s, longest wait {max(waits, default=0.0):4.1f} s"
            )
        return "\n".join(lines)

    def _see(self, pod: Object) -> bool:
        now, new = time.monotonic(), super()._see(pod)
        first_seen = self._seen.setdefault(pod["metadata"]["uid"], now)
        if new:
            self.times.append(now)
            self.waits.append(now - first_seen)
            parts = [
                one for one in self.pods.values() if sharing.COMPUTE in one["metadata"].get("annotations", {})
            ]
            self.findings += [f"{gpu} has {held}" for gpu, held in sharing.overcommitted(parts).items()]
        return new


class Stream(InThread):
    """Creates `rate` Jobs a second while its `with` block runs."""

    def __init__(self, api: Api, rate: float) -> None:
        super().__init__("stream")
        self._api, self._rate = api, rate
        self.created = 0

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._over.wait(max(0.0, begin + self.created / self._rate - time.monotonic())):
            name = f"job-{self.created:04}"
            self._api.create(
                job(name, part(name) if self.created % 2 else pod(name, {GPU: 1}, runs_for=LASTS))
            )
            self.created += 1


def part(name: str) -> Object:
    """A pod on a part of a GPU, which only Stowage can bind."""
    amounts = {sharing.COMPUTE: "400m", sharing.MEMORY: "30Gi"}
    return pod(name, {}, cpu="100m", annotations=amounts, runs_for=LASTS)


def nodes() -> list[Object]:
    shared = {"stowage.dev/gpu-sharing": "true", f"{GPU}.count": "8"} | sharing.PRODUCT
    return [
        *(node(f"gpu-{n:02}", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]) for n in range(WHOLE)),
        *(node(f"own-{n:02}", {}, labels=shared) for n in range(PARTS)),
    ]


def unfinished(api: Api, created: int) -> list[str]:
    """Jobs that have not completed, or are lost."""
    found = {one["metadata"]["name"]: one.get("status", {}) for one in api.list("Job")["items"]}
    wanted = [f"job-{number:04}" for number in range(created)]
    return [name for name in wanted if found.get(name, {}).get("succeeded") != 1]
