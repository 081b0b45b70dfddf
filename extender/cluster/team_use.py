"""GPU time of teams since this process started, for the metrics and the page."""

from __future__ import annotations

import time
from collections import defaultdict

from extender.cluster.census import Team, gpus_by_team
from extender.cluster.state import State
from extender.untrusted.limits import KEY, TEAMS, shorten

_HOUR = 3600
_GONE = 24 * _HOUR
"""Seconds without pods after which a namespace is forgotten."""
_SHOWN = 100
"""Maximum number of namespaces, and of queues, in ``hours``: those with the most."""


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
