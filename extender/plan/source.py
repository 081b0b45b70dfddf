"""The cluster of a plan (a snapshot or live), from which any number of independent states can be created."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from extender.cluster.census import Census, CensusTaker
from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError
from extender.k8s.job_kinds import SUSPENDED, USED_UP
from extender.k8s.objects import (
    Event,
    Job,
    JobTemplate,
    KubernetesObject,
    Node,
    Owner,
    Pod,
    PodGroup,
    Upserted,
)
from extender.settings import Settings
from extender.trial.cluster_pods import trial_of
from extender.trial.trial import Trial

_UNMADE = 2_000
"""Maximum number of pods that are not created."""


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

    def add_unmade_pods(self, state: State) -> None:
        """Add the pods that are not created, because their Job is suspended or a ResourceQuota is used up, to
        the events and to the state: as pending pods with that as their gate."""
        made = list[Event]()
        for template in self._templates():
            pod = template.pod
            with suppress(RequestError):
                if not pod.gates and (quota := state.admission.exceeded(pod)):
                    pod = replace(pod, gates=(USED_UP, f"{quota[0].name}: {quota[1]}"))
            if pod.gates and len(made) < _UNMADE:
                pods = (replace(pod, name=f"{pod.name}-{n}") for n in range(template.copies))
                made += [Upserted(replace(pod, uid=pod.key)) for pod in pods]
        self._events = [*self._events, *made]
        state.apply(made)

    def _templates(self) -> Iterator[JobTemplate]:
        """The pods that jobs have not created, named after them."""
        for obj in (obj for obj in self._objects() if isinstance(obj, Job | PodGroup)):
            templates = [obj.unmade] if isinstance(obj, Job) and obj.unmade else list[JobTemplate]()
            if isinstance(obj, PodGroup) and obj.is_suspended and obj.kind != "JobSet":  # it makes Jobs
                gates = (SUSPENDED,)
                templates = [t._replace(pod=replace(t.pod, gates=gates)) for t in obj.templates]
            for number, template in enumerate(templates):
                owner = Owner(obj.kind, obj.name)
                name = f"{obj.name}-{template.role or number}"
                yield template._replace(pod=replace(template.pod, name=name, owner=owner))

    def census(self) -> Census:
        return asyncio.run(CensusTaker(self.state()).take())

    def nodes(self) -> Mapping[str, Node]:
        return {obj.name: obj for obj in self._objects() if isinstance(obj, Node)}

    def pods(self) -> Iterator[Pod]:
        """All pods, also those that have ended."""
        return (obj for obj in self._objects() if isinstance(obj, Pod))

    def _objects(self) -> Iterator[KubernetesObject]:
        return (event.obj for event in self._events if isinstance(event, Upserted))
