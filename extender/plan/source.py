"""What a plan is made for: a cluster (a snapshot or live) or a trace, as often from the start as needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from extender.cluster.census import Census, CensusTaker
from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.k8s.objects import Event, Node, Upserted
from extender.replay.cluster_pods import cluster_simulation
from extender.replay.simulation import Simulation
from extender.settings import Settings


class PlanSource(Protocol):
    """A cluster or a trace."""

    name: str

    def simulation(self) -> Simulation:
        """The pods as they are, on a fleet of their own."""

    def census(self) -> Census:
        """What there is."""

    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name; none in a trace."""


class ClusterSource:
    """The events of a cluster, and the settings that the service would have. ``bare_pods``: pods without a
    controller may move, too. ``changes`` are events after those of the cluster."""

    def __init__(
        self,
        name: str,
        events: Sequence[Event],
        settings: Settings,
        *,
        bare_pods: bool = False,
        allow_downgrade: bool = False,
    ) -> None:
        self.name, self.bare_pods = name, bare_pods
        self._events, self._settings, self._allow_downgrade = events, settings, allow_downgrade

    def state(self, changes: Iterable[Event] = ()) -> State:
        """A state of its own, whose policy has not planned yet."""
        state = state_of(self._settings)
        state.binds = self._settings.bind
        state.apply(self._events)
        state.apply([*changes])
        return state

    def simulation(self, changes: Iterable[Event] = ()) -> Simulation:
        return cluster_simulation(
            self.state(changes),
            real_moves=True,
            bare_pods=self.bare_pods,
            allow_downgrade=self._allow_downgrade,
        )

    def census(self) -> Census:
        return asyncio.run(CensusTaker(self.state()).take())

    def nodes(self) -> Mapping[str, Node]:
        objects = (event.obj for event in self._events if isinstance(event, Upserted))
        return {one.name: one for one in objects if isinstance(one, Node)}
