"""Use of GPUs over time: runs of the pods of a job with times and nodes, and GPU time of teams since this
process started, for the page and the metrics."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from pydantic import TypeAdapter

from extender.background import with_turns
from extender.cluster.census import UNKNOWN
from extender.cluster.demand import gpus_of
from extender.cluster.state import State
from extender.dialects.pod_request import bound_request
from extender.explain.answers import Run
from extender.explain.history import History
from extender.k8s.objects import Pod
from extender.untrusted.limits import HISTORY_QUEUED, HISTORY_RUNS, JOB_RUNS, KEY, TEAMS, shorten

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
                kept.add("run" if run.end is None else "ended", run, time.time())


_HOUR = 3600
_GONE = 24 * _HOUR
"""Seconds without pods after which a namespace is forgotten."""
_SHOWN = 100
"""Maximum number of namespaces, and of queues, in ``hours``: those with the most."""


_TEAMS = 1000
"""Counted separately. Users choose namespaces, so the number of series is bounded."""


class Team(NamedTuple):
    """Pods of one namespace and queue ("" for none), on GPUs of one model."""

    namespace: str
    queue: str
    model: str


async def gpus_by_team(state: State) -> dict[Team, float]:
    """Number of GPUs of the bound pods. Namespaces beyond ``_TEAMS`` count as one. Other tasks run in
    between."""
    found: dict[Team, float] = {}
    async for pod in with_turns(list(state.pods.values()), _PODS):
        if pod.node_name and (request := bound_request(pod).request).wants_gpu:
            row = state.fleet.rows.get(pod.node_name)
            model = None if row is None else state.fleet.names.kinds[state.fleet.arrays.model[row]].model
            team = Team(pod.namespace, state.rights.queues.name_of(pod), model or UNKNOWN)
            if team not in found and len(found) >= _TEAMS:
                team = team._replace(namespace="")
            found[team] = found.get(team, 0.0) + gpus_of(state.fleet, request)
    return found


class TeamUse:
    """``gpus`` that each team holds, and ``gpu_seconds`` that it has held: between two counts, their mean."""

    def __init__(self, state: State) -> None:
        self._state, self._counted = state, time.monotonic()
        self.gpus: dict[Team, float] = {}
        self.gpu_seconds: defaultdict[Team, float] = defaultdict(float)
        self._seen: dict[str, float] = {}  # when a namespace last had pods

    async def count(self) -> None:
        """Update the counts. Other tasks run in between."""
        gpus = await gpus_by_team(self._state)
        now = time.monotonic()
        for team in self.gpus.keys() | gpus.keys():
            mean = (self.gpus.get(team, 0.0) + gpus.get(team, 0.0)) / 2
            if team not in self.gpu_seconds and len(self.gpu_seconds) >= TEAMS:
                team = team._replace(namespace="")
            self.gpu_seconds[team] += mean * (now - self._counted)
        self.gpus, self._counted = gpus, now
        seen = self._seen | dict.fromkeys((pod.namespace for pod in self._state.pods.values()), now)
        known = {team.namespace for team in self.gpu_seconds}
        self._seen = {name: at for name, at in seen.items() if now - at < _GONE and name in known}
        for team in [t for t in self.gpu_seconds if t.namespace and t.namespace not in self._seen]:
            del self.gpu_seconds[team]

    def hours(self) -> dict[str, dict[str, tuple[float, float]]]:
        """For ``namespace`` and ``queue``, by name ("" for no queue): GPU-hours, and their value in hours of
        an A100 with 80 GB."""
        found: dict[str, dict[str, tuple[float, float]]] = {"namespace": {}, "queue": {}}
        for team, seconds in sorted(self.gpu_seconds.items(), key=lambda entry: -entry[1]):
            worth = seconds * self._state.fleet.values.of(team.model, "")
            for by, name in (("namespace", team.namespace), ("queue", team.queue)):
                before = found[by].get(shorten(name, KEY), (0.0, 0.0))
                if any(before) or len(found[by]) < _SHOWN:
                    found[by][shorten(name, KEY)] = before[0] + seconds / _HOUR, before[1] + worth / _HOUR
        return found
