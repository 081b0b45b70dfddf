"""The cluster of a plan (a snapshot or live), from which any number of independent states can be created."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from extender.cluster.census import Census, CensusTaker
from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.k8s.objects import Event, Node, Upserted
from extender.settings import Settings
from extender.trial.cluster_pods import trial_of
from extender.trial.trial import Trial


class ClusterSource:
    """The events of a cluster, and the settings of the service. ``bare_pods``: pods without a controller may
    move, too. ``changes`` are applied after the events of the cluster."""

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
        self._events, self.settings, self._allow_downgrade = events, settings, allow_downgrade

    def state(self, changes: Iterable[Event] = ()) -> State:
        """A new state, whose policy has not planned yet."""
        state = state_of(self.settings)
        state.binds = self.settings.bind
        state.apply(self._events)
        state.apply([*changes])
        return state

    def trial(self, changes: Iterable[Event] = ()) -> Trial:
        return trial_of(
            self.state(changes),
            real_moves=True,
            bare_pods=self.bare_pods,
            allow_downgrade=self._allow_downgrade,
        )

    def census(self) -> Census:
        return asyncio.run(CensusTaker(self.state()).take())

    def nodes(self) -> Mapping[str, Node]:
        objects = (event.obj for event in self._events if isinstance(event, Upserted))
        return {obj.name: obj for obj in objects if isinstance(obj, Node)}
