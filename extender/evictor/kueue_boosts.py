"""Keeps the priority boosts of Kueue's Workloads, on the leader only: Kueue evicts first what loses least.

Kueue evicts by priority and then by age, and adds the number in an annotation to the priority
(kubernetes-sigs/kueue, keps/7990-preemption-cost; feature gate PriorityBoost). It is never negative, and the
sum stays below the next priority: a pending Workload may evict the same ones as without it, or fewer. The sum
orders the queue, too, so a Workload that is evicted loses its boost before it is queued again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from itertools import count
from operator import mul

from prometheus_client import CollectorRegistry, Counter

from extender.background import with_turns
from extender.cluster.state import State
from extender.evictor.actions import Leadership
from extender.k8s.objects import Admission, Pod, PodGroup
from extender.queues.gang_words import KUEUE_WORKLOAD
from extender.source.errors import WriteError
from extender.source.evictor_api import EvictorApi
from extender.verbs.eviction.node_pods import Prices, bound_of, gpus_held, work_of
from packing.victims.rights import RESTART

_HIGHEST = 3
"""The largest boost. After each change Kueue tries its pending Workloads again, so there are few classes."""
_SIMILAR, _WHOLE_NODE = 1.5, 2
"""Prices with a smaller ratio count as equal. A GPU of a node that comes free as a whole counts twice: large
jobs can start there."""
_SETTLED, _POLL, _POLLS = 600.0, 0.1, 300
"""Seconds between two changes of a boost, and two searches for evicted Workloads; searches in a round."""
_log = logging.getLogger(__name__)


def boosts_of(
    prices: Sequence[float], settling: Sequence[int | None], priority: int, in_use: Sequence[int]
) -> list[int]:
    """The boosts of the admitted Workloads of a ClusterQueue with this priority: 0 for the cheapest, and not
    less than for a cheaper one. ``prices``: seconds of work, above 0, that each loses for each GPU that comes
    free. ``settling``: the boosts of those that keep theirs. With its boost the priority stays below the next
    of the sorted priorities ``in_use``. The widest class of prices is halved until all are similar."""
    above = bisect_right(in_use, priority)
    highest = min([_HIGHEST, *(value - priority - 1 for value in in_use[above : above + 1])])
    classes = [sorted(prices)]
    while len(classes) <= highest:
        widest = max(classes, key=lambda alike: alike[-1] / alike[0])
        if widest[-1] / widest[0] < _SIMILAR:
            break
        at = bisect_right(widest, math.sqrt(widest[0] * widest[-1]))
        classes.remove(widest)
        classes += widest[:at], widest[at:]
    starts = sorted(alike[0] for alike in classes)[1:]
    return [
        bisect_right(starts, price) if kept is None else min(kept, highest)
        for price, kept in zip(prices, settling, strict=True)
    ]


class KueueBooster:
    """Writes the boosts. Workloads with a boost of another writer are left alone."""

    def __init__(
        self, state: State, api: EvictorApi, leadership: Leadership, registry: CollectorRegistry
    ) -> None:
        self._state, self._api, self._leadership = state, api, leadership
        text = "Writes of priority boosts to Workloads of Kueue, by result."
        self._writes = Counter("stowage_kueue_boosts", text, ["result"], registry=registry)
        for result in ("set", "removed", "failed"):
            self._writes.labels(result)

    async def run(self) -> None:
        """Renew the boosts, and remove those of evicted Workloads, until cancelled."""
        polls = count()
        while True:
            await asyncio.sleep(_POLL)
            if self._leadership.is_leader and "KueueWorkload" in self._state.synced:
                await (self.take_away() if next(polls) % _POLLS else self.renew())

    async def take_away(self) -> None:
        """Remove the boosts of Workloads that Kueue is evicting or has evicted."""
        for workload, admission in self._workloads():
            if admission.boost and not admission.runs:
                await self._write(workload, 0)

    async def renew(self) -> None:
        """Give each admitted Workload with GPUs the boost of its class."""
        try:
            declared = await self._api.workload_priorities()
        except WriteError as error:
            _log.warning("WorkloadPriorityClasses cannot be read: %s (status %d)", error, error.status)
            return
        of_pods = (known.value for known in self._state.rights.queues.classes.by_name.values())
        in_use = sorted({*declared, *of_pods, *(admission.priority for _, admission in self._workloads())})
        now = self._state.end_costs.clock()
        for (_, priority), peers in (await self._peers(now)).items():
            prices, workloads, admissions = zip(*peers, strict=True)
            settling = [had.boost if 0 <= now - had.boosted < _SETTLED else None for had in admissions]
            boosts = boosts_of(prices, settling, priority, in_use)
            for workload, admission, boost in zip(workloads, admissions, boosts, strict=True):
                if boost != admission.boost:
                    await self.take_away()
                    await self._write(workload, boost, admission.version)

    def _workloads(self) -> Iterator[tuple[PodGroup, Admission]]:
        return ((group, group.admission) for group in self._state.gangs.pod_groups() if group.admission)

    async def _peers(self, now: float) -> dict[tuple[str, int], list[tuple[float, PodGroup, Admission]]]:
        """The admitted Workloads whose pods hold GPUs, with their prices, by ClusterQueue and priority."""
        pods, peers = defaultdict[str, list[Pod]](list), defaultdict(list)
        for pod in self._state.pods.values():
            if pod.node_name and not pod.deleting and (name := pod.annotations.get(KUEUE_WORKLOAD)):
                pods[f"{pod.namespace}/{name}"].append(pod)
        async for workload, admission in with_turns(self._workloads(), 4):
            price = self._price(pods.get(workload.key, ()), admission.preempted, now)
            if admission.runs and admission.boost is not None and math.isfinite(price):
                peers[admission.cluster_queue, admission.priority].append((price, workload, admission))
        return peers

    def _price(self, pods: Sequence[Pod], preempted: int, now: float) -> float:
        """Seconds of work lost for each GPU that comes free; infinite if none does."""
        state, keys = self._state, {pod.key for pod in pods}
        bounds = [bound_of(state, pod) for pod in pods]
        on_nodes = (pod for node in {pod.node_name for pod in pods} for pod in state.pods.on_node(node))
        others = (bound_of(state, pod) for pod in on_nodes if pod.key not in keys)
        shared = {pod.node_name for pod, held in others if gpus_held(state.fleet, held)}
        gpus = [gpus_held(state.fleet, held) for _, held in bounds]
        counts = [1 if pod.node_name in shared else _WHOLE_NODE for pod in pods]
        free = sum(map(mul, counts, gpus))
        lost = Prices(state.disruptions, now, ()).costs(work_of(state, bounds)).sum()
        return float(lost + preempted * RESTART * sum(gpus)) / free if free else math.inf

    async def _write(self, workload: PodGroup, boost: int, version: str = "") -> None:
        """Write a boost, 0 for none. ``version``: unless the Workload has changed since."""
        if not self._leadership.is_leader:
            return
        result = "set" if boost else "removed"
        try:
            with self._leadership.hold_during_write():
                await self._api.boost(workload, boost, version)
        except WriteError as error:
            if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                return  # the watch will show the change
            result = "failed"
            _log.warning("%s: its priority boost: %s (status %d)", workload.key, error, error.status)
            await asyncio.sleep(1)
        self._writes.labels(result).inc()
