"""The Prometheus metrics. All names start with ``stowage_``; fleet metrics are sums by GPU model.

No metric has a series per node: each scrape of a large cluster would block the event loop for tens of
milliseconds. The debug endpoints show single nodes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial

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

# Series with creation times would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

REFUSALS = ("bad_message", "forbidden", "internal_error", "not_ready", "overloaded", "too_large", "too_slow")
"""Results of a verb on which alerts may be set."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAMILIES_AT_ONCE = 8
_WAIT_SECONDS = (1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """Counters of the verbs, and the metric families that ``collect`` returns at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], verbs: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="stowage", registry=self.registry)
        self.registry.register(_Families(collect))
        text = "Time from the end of the request to the reply."
        self._seconds = self._histogram("verb_seconds", text, "verb", _SECONDS)
        self._results = self._counter("verb_results", "Requests by verb and result.", "verb", "result")
        text = "Filter requests for which no node fits, counted once for each reason."
        self._reasons = self._counter("unschedulable", text, "reason")
        text = "Nodes that filter evaluated, by reason, or that fit."
        self._nodes = self._counter("filtered_nodes", text, "reason")
        text = "Time from the creation of a GPU pod until the watch shows its node, by queue."
        self._waits = self._histogram("pod_wait_seconds", text, "queue", _WAIT_SECONDS)
        text = "Victims that preempt proposed, by their queue and that of the pending pod."
        self._preemptions = self._counter("preemptions", text, "queue", "preemptor")
        # Created at the start: rate() misses the first failure if its series does not exist yet.
        for verb, result in itertools.product(verbs, REFUSALS):
            self._results(verb, result)

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        """The counter of each label value, cached: ``labels()`` takes longer than ``inc()``."""
        return cache(Counter(f"stowage_{name}", text, labels, registry=self.registry).labels)

    def _histogram(
        self, name: str, text: str, label: str, buckets: Sequence[float]
    ) -> Callable[[str], Histogram]:
        return cache(
            Histogram(f"stowage_{name}", text, [label], buckets=buckets, registry=self.registry).labels
        )

    def answered(self, verb: str, result: str, seconds: float | None = None) -> None:
        """Count a request. ``seconds`` is None if its body was not read."""
        self._results(verb, result).inc()
        if seconds is not None:
            self._seconds(verb).observe(seconds)

    def nothing_fitted(self, reasons: Iterable[str]) -> None:
        """Count the distinct reasons of a pod that fits nowhere."""
        for reason in set(reasons):
            self._reasons(reason).inc()

    def nodes_filtered(self, counts: Mapping[str, int]) -> None:
        """Count the nodes of a filter request by reason, and by "fits"."""
        for reason, count in counts.items():
            self._nodes(reason).inc(count)

    def pod_bound(self, queue: str, seconds: float) -> None:
        """Observe the wait of a bound pod of this queue."""
        self._waits(queue or NO_QUEUE_LABEL).observe(seconds)

    def victims_proposed(self, queues: Iterable[str], preemptor: str) -> None:
        """Count victims that preempt proposed, by their queues, for a pod of the queue ``preemptor``."""
        for queue in queues:
            self._preemptions(queue or NO_QUEUE_LABEL, preemptor or NO_QUEUE_LABEL).inc()

    async def render_in_parts(self) -> bytes:
        """All metrics in the text format. Other tasks run between its parts."""
        parts, families = [], self.registry.collect()
        while some := [*itertools.islice(families, _FAMILIES_AT_ONCE)]:
            parts.append(generate_latest(_Families(partial(iter, some))))
            await asyncio.sleep(0)
        return b"".join(parts)


class _Families(Collector):
    """The families that a function returns."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()
