"""Runs of pods on GPUs, with times and nodes: the data of a job over the last hours on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import time

from pydantic import TypeAdapter

from extender.background import with_turns
from extender.cluster.demand import gpus_of
from extender.cluster.state import State
from extender.dialects.pod_request import bound_request
from extender.explain.answers import Run
from extender.explain.history import History
from extender.k8s.objects import Pod
from extender.untrusted.limits import HISTORY_RUNS, JOB_RUNS, KEY, shorten

RUN = TypeAdapter(Run)
_PODS = 100
"""Pods examined before other tasks run."""


def controller_text(pod: Pod) -> str:
    """Its controller, such as ``Job train``, "" for none."""
    return shorten(f"{pod.owner.kind} {pod.owner.name}", KEY) if pod.owner else ""


class JobRuns:
    """The runs of pods on GPUs, as ``look`` saw them; ``kept`` records when one begins and ends."""

    def __init__(self, state: State, kept: History | None = None) -> None:
        self._state, self._kept = state, kept
        self._runs: dict[str, Run] = {}  # by UID of the pod, what changed last is the last

    def restore(self, runs: Sequence[Run]) -> None:
        """Earlier runs, the newest first."""
        self._runs = {run.uid: run for run in reversed(runs)} | self._runs

    async def look(self, now: float, past: float) -> None:
        """Look at all pods, and forget what ended before the ``past`` seconds. Other tasks run in between."""
        running = set()
        async for pod in with_turns(list(self._state.pods.values()), _PODS):
            if pod.node_name and (request := bound_request(pod).request).wants_gpu:
                running.add(pod.uid)
                if pod.uid not in self._runs:
                    gpus, start = round(gpus_of(self._state.fleet, request), 3), pod.started or now
                    node = shorten(pod.node_name, KEY)
                    self._change(
                        Run(shorten(pod.key, KEY), controller_text(pod), node, gpus, start, uid=pod.uid)
                    )
        for uid, run in list(self._runs.items()):
            if run.end is None and uid not in running:
                self._change(replace(run, end=now))
            elif run.end is not None and run.end < now - past:
                del self._runs[uid]

    def of_job(self, key: str, pod: Pod | None) -> tuple[Run, ...]:
        """The last runs of the pods of the job of this one (``namespace/name``), or of this one alone."""
        runs, space = list(self._runs.values()), f"{key.partition('/')[0]}/"
        job = controller_text(pod) if pod else next((run.job for run in runs if run.pod == key), "")
        found = (r for r in runs if r.pod == key or (job and r.job == job and r.pod.startswith(space)))
        return tuple(sorted(found, key=lambda run: run.start))[-JOB_RUNS:]

    def _change(self, run: Run) -> None:
        self._runs.pop(run.uid, None)
        self._runs[run.uid] = run
        if len(self._runs) > HISTORY_RUNS:
            del self._runs[next(iter(self._runs))]
        if self._kept:
            self._kept.add("run", run, time())
