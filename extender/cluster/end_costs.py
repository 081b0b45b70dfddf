"""How long pods run, learned from those that have ended, and what that says about the nodes.

The kind of a pod is its controller without the parts of the name that change from run to run:
``train-llm-28391`` and ``train-llm-28402`` run about equally long. Pods of another kind are expected to run
as long as those of their queue that ask for as many GPUs.

Pods that end together free whole nodes. So, if that is switched on, nodes cost more where a pod would run for
longer than all that is there. A pod without a controller, or of a kind of which too few have ended, costs the
same everywhere.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Hashable

import numpy as np

from extender.cluster.allocations import Allocations
from extender.cluster.demand import gpus_of, size_of
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Deleted, Event, Listed, Pod, Upserted
from extender.untrusted.bounded_cache import BoundedMap
from packing.fleet.arrays import Doubles, Floats
from packing.fleet.fleet import Fleet
from packing.model.lifetimes import LastEnds, Running

PROLONGED = 1.0
"""GPUs that it costs to prolong the time until a node is empty by the mean run time of all pods
(bench/packing/worlds.py): it decides between nodes whose slots cost about the same."""
_RUN = re.compile(r"(-[a-z0-9]*[0-9][a-z0-9]*)+$")
"""What of a controller's name changes with each run: dates, numbers and hashes."""
EVERY = "every pod"
"""The kind of all pods but those of services."""
_TURN = 300
"""Updates, every 0.1 s, in which the pods of all nodes have got older."""
_FINISHED = 10_000
"""Pods that had finished before Stowage saw them run, and that it has learned from."""


def kind_of(pod: Pod) -> tuple[str, str, str] | None:
    """Pods that may run about equally long."""
    owner = pod.owner
    return (pod.namespace, owner.kind, _RUN.sub("", owner.name)) if owner else None


class EndCosts:
    """Follows the pods that have GPUs. ``enabled``: it also says what nodes cost more."""

    def __init__(
        self,
        fleet: Fleet,
        allocations: Allocations,
        queue_of: Callable[[Pod], str] = lambda pod: "",
        longest_run: Callable[[Pod], float] = lambda pod: math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``queue_of``: the name of a pod's queue. ``longest_run``: the seconds that its job lets it run at
        most. ``clock``: Unix seconds."""
        self.enabled = False
        self.ends, self._clock, self._queue_of = LastEnds(), clock, queue_of
        self._longest_run = longest_run
        self._fleet, self._allocations = fleet, allocations
        self._finished: BoundedMap[str, bool] = BoundedMap(_FINISHED)

    def apply(self, event: Event) -> None:
        """A pod, after ``allocations`` knows of it; or the nodes that there are."""
        match event:
            case Upserted(Pod() as pod) if pod.terminated and pod.key in self.ends.running:
                self._finished.put(pod.uid, True, len(pod.uid))
                self.ends.leaves(pod.key, self._clock())
            case Upserted(Pod() as pod) if pod.terminated:
                self._learn_from_finished(pod)
            case Upserted(Pod() as pod):
                held = self._allocations.allocation_of(pod.key)
                if held and pod.started and held.has_gpus:
                    was = self.ends.running.get(pod.key)
                    if was is None or (was.node, was.started) != (pod.node_name, pod.started):
                        self.ends.starts(pod.key, Running(pod.node_name, self._kinds(pod), pod.started))
            case Deleted("Pod", key):
                self.ends.leaves(key)
            case Listed("Pod", keys):
                for key in self.ends.running.keys() - keys:
                    self.ends.leaves(key)

    def _learn_from_finished(self, pod: Pod) -> None:
        """A pod that ran before this process saw it, and is still listed."""
        known = self._finished.get(pod.uid)
        self._finished.put(pod.uid, True, len(pod.uid))
        if not known and 0 < pod.started < pod.finished and (kinds := self._kinds(pod)):
            self.ends.lifetimes.ended(kinds, pod.finished - pod.started)

    def _kinds(self, pod: Pod) -> tuple[Hashable, ...]:
        """The kinds of a pod with GPUs, the narrowest first; none of another. A service is of its own kind
        only."""
        try:
            request = request_of(pod)
        except RequestError:
            return ()
        if not request.wants_gpu:
            return ()
        if pod.is_service:
            return tuple(filter(None, (kind_of(pod),)))
        like = self._queue_of(pod), size_of(gpus_of(self._fleet, request))
        return tuple(filter(None, (kind_of(pod), like, EVERY)))

    def remaining(self, pod: Pod, outlives: Doubles) -> Doubles:
        """Seconds from now until the pod ends, infinite where nothing is known of that: (S,). ``outlives``
        (S,): the part (0 to 1) of the pods of its kind and age that end before it does. For a pending pod:
        from its start."""
        now, running = self._clock(), self.ends.running.get(pod.key)
        if pod.is_about_to_go(now):
            return np.full_like(outlives, max(pod.ends - now, 0.0))
        age = max(now - running.started, 0.0) if running else 0.0
        lifetime = self.ends.lifetimes.of(*(running.kinds if running else self._kinds(pod)))
        ends = lifetime.remaining(age, outlives) if lifetime else np.full_like(outlives, np.inf)
        return np.minimum(ends, max(min(pod.deadline, self._longest_run(pod)) - age, 0.0))

    def update(self) -> None:
        """Nodes that are gone are forgotten; for the costs, some of the pods have got older."""
        if len(self.ends.places) > 2 * len(self._fleet.rows):
            self.ends.keep(self._fleet.rows)
        if self.enabled:
            self.ends.update(self._clock(), -(-len(self.ends.places) // _TURN))

    def __call__(self, pod: Pod) -> Floats | None:
        """What each row costs more, (N,) in GPUs; None where the kind of the pod is not known."""
        prolonged = self.ends.prolonged(kind_of(pod)) if self.enabled and pod.owner else None
        if prolonged is None:
            return None
        by_place, empty = prolonged
        cost = np.full(self._fleet.arrays.capacity, PROLONGED * empty, np.float32)
        rows = np.array([self._fleet.rows.get(node, -1) for node in self.ends.places], np.int64)
        cost[rows[rows >= 0]] = PROLONGED * by_place[rows >= 0]
        return cost
