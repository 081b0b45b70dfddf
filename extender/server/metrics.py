"""The Prometheus metrics. All names start with ``stowage_``; the fleet is shown as sums by GPU model.

No metric has a series per node: each scrape of a large cluster would block the event loop for tens of
milliseconds. The debug endpoint shows single nodes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extender.queues.disruptions import NO_QUEUE_LABEL
from extender.server.gauge_families import GaugeCollector
from extender.server.gauges import Gauges

# Series with creation times would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

REFUSALS = ("bad_message", "forbidden", "internal_error", "not_ready", "overloaded", "too_large", "too_slow")
"""Results of a verb on which alerts may be set."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAMILIES_AT_ONCE = 8
_WAIT_SECONDS = (1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """Counters of the verbs, and gauges whose values ``read`` returns at each scrape."""

    def __init__(self, version: str, read: Callable[[], Gauges], verbs: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="stowage", registry=self.registry)
        self.registry.register(GaugeCollector(version, read))
        text = "Time from the received body to the reply."
        self._seconds = Histogram(
            "stowage_verb_seconds", text, ["verb"], buckets=_SECONDS, registry=self.registry
        )
        text = "Requests by verb and result."
        self._results = Counter("stowage_verb_results", text, ["verb", "result"], registry=self.registry)
        text = "Filter requests for which no node fits, counted once for each reason."
        self._reasons = Counter("stowage_unschedulable", text, ["reason"], registry=self.registry)
        text = "Nodes that filter evaluated, by reason, or that fit."
        self._nodes = Counter("stowage_filtered_nodes", text, ["reason"], registry=self.registry)
        text = "Time from the creation of a GPU pod until the watch shows its node, by queue."
        self._waits = Histogram(
            "stowage_pod_wait_seconds", text, ["queue"], buckets=_WAIT_SECONDS, registry=self.registry
        )
        text = "Victims that preempt proposed, by their queue and that of the pod that waits."
        self._preemptions = Counter(
            "stowage_preemptions", text, ["queue", "preemptor"], registry=self.registry
        )
        # labels() would take longer than inc().
        self._result = cache(self._results.labels)
        self._verb_seconds, self._node_count = cache(self._seconds.labels), cache(self._nodes.labels)
        self._wait = cache(self._waits.labels)
        # Created at the start: rate() does not see the first failure of a series that begins with it.
        for verb, result in itertools.product(verbs, REFUSALS):
            self._result(verb, result)

    def answered(self, verb: str, result: str, seconds: float | None = None) -> None:
        """Count a request. ``seconds`` is None if its body was not read."""
        self._result(verb, result).inc()
        if seconds is not None:
            self._verb_seconds(verb).observe(seconds)

    def nothing_fitted(self, reasons: Iterable[str]) -> None:
        """Count the distinct reasons of a pod that fits nowhere."""
        for reason in set(reasons):
            self._reasons.labels(reason).inc()

    def nodes_filtered(self, counts: Mapping[str, int]) -> None:
        """Count how many nodes a filter request found for each reason, and "fits"."""
        for reason, count in counts.items():
            self._node_count(reason).inc(count)

    def pod_bound(self, queue: str, seconds: float) -> None:
        """A pod of this queue that waited so long has a node."""
        self._wait(queue or NO_QUEUE_LABEL).observe(seconds)

    def victims_proposed(self, queues: Iterable[str], preemptor: str) -> None:
        """Count the victims of an answer of preempt by their queues, for a pod of the queue ``preemptor``."""
        for queue in queues:
            self._preemptions.labels(queue or NO_QUEUE_LABEL, preemptor or NO_QUEUE_LABEL).inc()

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self.registry)

    async def render_in_parts(self) -> bytes:
        """The same, while other tasks run in between: the text takes longer than the values."""
        some: list[Metric] = []
        parts: list[bytes] = []
        for family in self.registry.collect():
            some.append(family)
            if len(some) == _FAMILIES_AT_ONCE:
                parts.append(generate_latest(_Families(some)))
                some = []
                await asyncio.sleep(0)
        return b"".join((*parts, generate_latest(_Families(some))))


class _Families(Collector):
    """Families that have been collected."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
