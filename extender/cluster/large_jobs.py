"""Nodes that are reserved for large jobs (``packing.plan.backfill``), and the pods that may use them.

The leader chooses them (``evictor/large_jobs.py``), and every replica refuses them to other pods. Times are
in Unix seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
from msgspec import ValidationError, convert

from extender.cluster.end_costs import EndCosts
from extender.cluster.reservations import Reservations
from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import KUEUE_LONGEST
from extender.queues.gangs import GangTable
from extender.queues.rights import managed_by_kueue
from extender.settings import Reserve
from extender.untrusted.limits import KEY, RESERVED_NODES, shorten
from extender.untrusted.visible import clock_text, many
from packing.fleet.arrays import Flags
from packing.fleet.fleet import Fleet
from packing.plan.backfill import Reservation
from packing.plan.backfill import Reservations as Table

_LATEST = datetime.max.timestamp() - 86_400
"""Unix seconds: the last day that can be written."""


class LargeJobs:
    """The reservations. ``mode``: the setting. ``evicts_equals``: pods beyond the maximum duration of their
    queue are evicted for others. ``changes`` counts changes of the nodes and times, ``idle`` GPU-seconds for
    which this replica has held GPUs idle."""

    def __init__(
        self,
        fleet: Fleet,
        gangs: GangTable,
        end_costs: EndCosts,
        by_uid: Callable[[str], Pod | None],
        places: Reservations,
        may_evict: Callable[[Pod, Pod, float], bool],
    ) -> None:
        """``may_evict``: whether the first pod may evict the second one at a time."""
        self.mode: Reserve = "off"
        self.evicts_equals = False
        self.table, self.changes, self.idle = Table(), 0, 0.0
        self._fleet, self._gangs, self._ends, self._by_uid = fleet, gangs, end_costs, by_uid
        self._places, self._may_evict = places, may_evict
        self._rows: tuple[object, dict[str, Flags]] = None, {}

    def update(self, table: Table) -> None:
        """Adopt another table."""
        before, now = ([(held.key, held.nodes, held.at) for held in of.current] for of in (self.table, table))
        self.changes += before != now
        self.table = table

    def closed_to(self, pod: Pod) -> Iterator[Reservation]:
        """The reservations whose nodes the pod must not use now. Pods of DaemonSets belong to their node."""
        if self.table.current and not pod.scheduling_constraints.pinned_to_node:
            ends = self.latest_end(pod)
            for reservation in self.table.current:
                if not (reservation.admits(pod.priority, ends) or self._is_exempt(reservation, pod)):
                    yield reservation

    def rows(self, reservation: Reservation) -> Flags:
        """(N,) the rows of its nodes."""
        version = self.changes, self._fleet.replaced, self._fleet.arrays.capacity
        if self._rows[0] != version:
            self._rows = version, {}
        known = self._rows[1]
        if reservation.key not in known:
            rows = np.zeros(self._fleet.arrays.capacity, np.bool_)
            rows[[self._fleet.rows[node] for node in reservation.nodes if node in self._fleet.rows]] = True
            known[reservation.key] = rows
        return known[reservation.key]

    def latest_end(self, pod: Pod) -> float:
        """The time by which a pending pod has ended if it starts now: as declared or, with ``learned``, by
        the runs of its kind. Infinite if unknown. Kueue's label counts only where Kueue enforces it."""
        declared, by = self._ends.declared_end(pod)
        if by == KUEUE_LONGEST and not managed_by_kueue(pod):
            declared = math.inf
        if self.mode != "learned":
            return declared
        return min(declared, self._ends.clock() + self._ends.usual_seconds(pod))

    def starts_by(self, key: str) -> float:
        """The time of the reservation of the job with this key; infinite for none."""
        return next((held.at for held in self.table.current if held.key == key), math.inf)

    def text(self, reservation: Reservation, pod: Pod | None = None) -> str:
        """For whom the nodes are reserved, and until when. ``pod``: its author learns no names of another
        namespace."""
        first = next(iter(self.members(reservation.key)), None)
        job = f"{first.namespace}/{first.owner.name if first.owner else first.name}" if first else "a job"
        if pod and first and pod.namespace != first.namespace:
            job = "a job of another namespace"
        return f"reserved for {shorten(job, KEY)} until about {clock_text(reservation.at)}"

    def note(self, node: str) -> str:
        """For whom the node is reserved, since when, and how long its GPUs have been idle; "" for none."""
        for reservation in self.table.current:
            if node in reservation.nodes:
                nodes = many(len(reservation.nodes), "node")
                idle = f"{reservation.idle / 3600:.3g} GPU-hours idle on {nodes}"
                return f"{self.text(reservation)} (since {clock_text(reservation.since)}, {idle})"
        return ""

    def members(self, key: str) -> Collection[Pod]:
        """The pods of the job with this key."""
        pod = self._by_uid(key)
        return (pod,) if pod else self._gangs.members(key)

    def reserved_for(self, pod: Pod) -> Reservation | None:
        """The reservation of the job to which the pod belongs."""
        if not self.table.current:
            return None
        gang = self._gangs.gang_of(pod)
        return next((r for r in self.table.current if r.key in (pod.uid, gang.key if gang else "")), None)

    def _is_exempt(self, reservation: Reservation, pod: Pod) -> bool:
        """Whether the pod belongs to the job, has a place there already, or may be evicted for the job."""
        if self.reserved_for(pod) == reservation:
            return True
        if self._places.node_of(pod.uid) in reservation.nodes:
            return True
        if pod.priority == reservation.priority and not self.evicts_equals:
            return False
        first = next(iter(self.members(reservation.key)), None)
        starting = replace(pod, started=self._ends.clock(), node_name=reservation.nodes[0])
        return first is not None and self._may_evict(first, starting, reservation.at)

    def dump(self) -> dict[str, Any]:
        """All that ``load`` needs, as JSON values."""
        table = self.table
        current = [list(reservation) for reservation in table.current]
        return {"reserved": {"current": current, "missed": table.missed, "rests": table.rests}}

    def load(self, dumped: object) -> None:
        """Adopt the table of a dump. Anything that is not one is ignored."""
        stored = dumped.get("reserved") if isinstance(dumped, Mapping) else None
        with suppress(ValidationError):
            table = convert(stored, Table)
            nodes = [len(stored.nodes) for stored in table.current]
            times = [at for own in table.current for at in (own.since, own.at, own.until, own.chosen)]
            usable = all(nodes) and all(0 <= at <= _LATEST for at in times)  # not NaN either
            if usable and sum(nodes) <= RESERVED_NODES:
                self.update(table)
