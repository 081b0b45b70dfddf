"""Runs of pods on GPUs, with times and nodes: the data of a job over the last hours on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from time import time

from pydantic import TypeAdapter

from extender.background import with_turns
from extender.cluster.demand import gpus_of
from extender.cluster.state import State
from extender.dialects.pod_request import bound_request
from extender.explain.answers import Run
from extender.explain.history import History
from extender.k8s.objects import Pod
from extender.untrusted.limits import HISTORY_QUEUED, HISTORY_RUNS, JOB_RUNS, KEY, shorten

RUN = TypeAdapter(Run)
_PODS = 100
"""Pods examined before other tasks run."""
_LINE = 256
"""Bytes of the line of a run, more than most have."""


def controller_text(pod: Pod) -> str:
    """Its controller, such as ``Job train``, "" for none."""
    return shorten(f"{pod.owner.kind} {pod.owner.name}", KEY) if pod.owner else ""


class JobRuns:
    """The runs of pods on GPUs, as ``look`` saw them: all that go on, and the last that ended. ``kept``
    records when one begins and ends, and in each new file those that go on: the oldest files may be removed.
    """

    def __init__(self, state: State, kept: History | None = None) -> None:
        self._state, self._kept, self._file = state, kept, -1
        # by UID of the pod; what ended last is the last
        self._running: dict[str, Run] = {}
        self._ended: dict[str, Run] = {}
        self._unwritten: dict[str, None] = {}  # UIDs

    def restore(self, runs: Sequence[Run]) -> None:
        """Earlier runs, the newest first. Several replicas write them: one that has ended does not go on."""
        ended = {run.uid: run for run in reversed(runs) if run.end is not None}
        running = {run.uid: run for run in reversed(runs) if run.uid not in ended}
        self._ended, self._running = ended | self._ended, running | self._running

    async def look(self, now: float, past: float) -> None:
        """Look at all pods, and forget what ended before the ``past`` seconds. Other tasks run in between."""
        running = set()
        async for pod in with_turns(list(self._state.pods.values()), _PODS):
            if pod.node_name and (request := bound_request(pod).request).wants_gpu:
                running.add(pod.uid)
                if pod.uid not in self._running:
                    gpus, start = round(gpus_of(self._state.fleet, request), 3), pod.started or now
                    node = shorten(pod.node_name, KEY)
                    run = Run(shorten(pod.key, KEY), controller_text(pod), node, gpus, start, uid=pod.uid)
                    self._running[pod.uid] = run
                    self._ended.pop(pod.uid, None)
                    self._unwritten[pod.uid] = None
        async for uid in with_turns(self._running.keys() - running, _PODS):
            self._ended[uid] = replace(self._running.pop(uid), end=now)
            self._unwritten[uid] = None
        old = [uid for uid, run in self._ended.items() if (run.end or 0.0) < now - past]
        for uid in [*old, *islice(self._ended, max(0, len(self._ended) - HISTORY_RUNS))]:
            self._ended.pop(uid, None)
        if self._kept:
            self._write(self._kept)

    def of_job(self, key: str, pod: Pod | None) -> tuple[Run, ...]:
        """The last runs of the pods of the job of this one (``namespace/name``), or of this one alone."""
        runs, space = [*self._ended.values(), *self._running.values()], f"{key.partition('/')[0]}/"
        job = controller_text(pod) if pod else next((run.job for run in runs if run.pod == key), "")
        found = (r for r in runs if r.pod == key or (job and r.job == job and r.pod.startswith(space)))
        return tuple(sorted(found, key=lambda run: run.start))[-JOB_RUNS:]

    def _write(self, kept: History) -> None:
        """Write what changed, and what goes on if a new file began: of this as much as half a file holds."""
        if kept.files_begun != self._file:
            self._file = kept.files_begun
            self._unwritten |= dict.fromkeys(list(self._running)[-kept.half_file // _LINE :])
        for uid in list(self._unwritten)[: HISTORY_QUEUED // 2]:
            del self._unwritten[uid]
            if run := self._running.get(uid) or self._ended.get(uid):
                kept.add("run" if run.end is None else "ended", run, time())
