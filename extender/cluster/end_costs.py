"""What nodes cost more because a pod would run for longer than all that is there, by what has ended before.

Pods that end together free whole nodes. The kind of a pod is its controller without the parts of the name
that change from run to run: ``train-llm-28391`` and ``train-llm-28402`` run about equally long. A pod without
a controller, or of a kind of which too few have ended, costs the same everywhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np

from extender.cluster.allocations import Allocations
from extender.k8s.objects import Deleted, Event, Listed, Pod, Upserted
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.lifetimes import LastEnds, Running

PROLONGED = 1.0
"""GPUs that it costs to prolong the time until a node is empty by the mean run time of all pods
(bench/packing/worlds.py): it decides between nodes whose slots cost about the same."""
_RUN = re.compile(r"(-[a-z0-9]*[0-9][a-z0-9]*)+$")
"""What of a controller's name changes with each run: dates, numbers and hashes."""
_TURN = 300
"""Updates, every 0.1 s, in which the pods of all nodes have got older."""


def kind_of(pod: Pod) -> tuple[str, str, str] | None:
    """Pods that may run about equally long."""
    owner = pod.owner
    return (pod.namespace, owner.kind, _RUN.sub("", owner.name)) if owner else None


class EndCosts:
    """Follows the pods that have GPUs, if it is ``enabled``."""

    def __init__(
        self, fleet: Fleet, allocations: Allocations, clock: Callable[[], float] = time.time
    ) -> None:
        self.enabled = False
        self.ends, self._clock = LastEnds(), clock
        self._fleet, self._allocations = fleet, allocations

    def apply(self, event: Event) -> None:
        """A pod, after ``allocations`` knows of it; or the nodes that there are."""
        if not self.enabled:
            return
        match event:
            case Upserted(Pod() as pod) if pod.terminated:
                self.ends.leaves(pod.key, self._clock())
            case Upserted(Pod() as pod):
                held = self._allocations.allocation_of(pod.key)
                if held and pod.started and (held.devices or held.shares or held.slices):
                    self.ends.starts(pod.key, Running(pod.node_name, kind_of(pod), pod.started))
            case Deleted("Pod", key):
                self.ends.leaves(key)
            case Listed("Pod", keys):
                for key in self.ends.running.keys() - keys:
                    self.ends.leaves(key)

    def update(self) -> None:
        """Some of the pods have got older."""
        if self.enabled:
            if len(self.ends.places) > 2 * len(self._fleet.rows):
                self.ends.keep(self._fleet.rows)
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
