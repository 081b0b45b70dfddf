"""GPU time of teams since this process started, for the metrics and the page."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import NamedTuple

from extender.background import with_turns
from extender.cluster.census import UNKNOWN
from extender.cluster.demand import gpus_of
from extender.cluster.state import State
from extender.dialects.pod_request import bound_request
from extender.untrusted.limits import KEY, TEAMS, shorten

_HOUR = 3600
_GONE = 24 * _HOUR
"""Seconds without pods after which a namespace is forgotten."""
_SHOWN = 100
"""Maximum number of namespaces, and of queues, in ``hours``: those with the most."""


_TEAMS = 1000
"""Counted separately. Users choose namespaces, so the number of series is bounded."""
_PODS = 100
"""Pods counted before other tasks run: about a millisecond."""


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
