"""What Prometheus scrapes: all names start with ``stowage_``, and nothing is counted per node.

One series per node would block the event loop for tens of milliseconds at each scrape of a large cluster, so
the fleet is shown as sums by GPU model; single nodes are the debug endpoint's job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# They would double the series, and nobody asks when a counter was born.
disable_created_metrics()  # type: ignore[no-untyped-call]

REFUSALS = ("bad_message", "internal_error", "not_ready", "overloaded", "too_large", "too_slow")
"""Results of a verb that alerts look for."""
POLICY_PARTS = (
    "observe", "plan", "adopt", "refresh", "cost", "choose", "terms", "forecast", "rank", "explain",
)  # fmt: skip
"""What of comparing the nodes that fit may fail."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one model over all nodes."""

    installed: int
    free: float  # compute
    whole: int  # entirely free


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is read from the state at each scrape."""

    nodes: int = 0
    pods: int = 0
    problems: int = 0
    overcommitted: int = 0  # nodes
    contradictions: int = 0  # since the start
    policy_failures: Mapping[str, int] = field(default_factory=dict)  # since the start, by what failed
    assumed_pods: int = 0  # holds that the watch has not shown yet
    tentative_seconds: float = 0.0  # the age of the oldest
    synced: Mapping[str, bool] = field(default_factory=dict)  # by resource
    age_seconds: Mapping[str, float] = field(default_factory=dict)  # by resource
    gpus: Mapping[str, Gpus] = field(default_factory=dict)  # by model
    is_leader: bool | None = None  # where replicas elect a leader


class Metrics:
    """Counters of the verbs, and gauges that ``read`` supplies when asked."""

    def __init__(self, version: str, read: Callable[[], Gauges], verbs: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="stowage", registry=self.registry)
        self.registry.register(_GaugeCollector(version, read))
        self._seconds = Histogram(
            "stowage_verb_seconds",
            "Time from the whole body to the whole reply.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._results = Counter(
            "stowage_verb_results",
            "Requests by verb and what came of them.",
            ["verb", "result"],
            registry=self.registry,
        )
        self._reasons = Counter(
            "stowage_unschedulable",
            "Filter requests where nothing fitted, once under each of their reasons.",
            ["reason"],
            registry=self.registry,
        )

        # There from the start: a rate cannot see the first failure in a series that begins with it.
        for verb, result in itertools.product(verbs, REFUSALS):
            self._results.labels(verb, result)

    def answered(self, verb: str, result: str, seconds: float | None = None) -> None:
        """Count one request; without a time where the body was not read."""
        self._results.labels(verb, result).inc()
        if seconds is not None:
            self._seconds.labels(verb).observe(seconds)

    def nothing_fitted(self, reasons: Iterable[str]) -> None:
        """Count the distinct reasons of one pod that fits nowhere."""
        for reason in set(reasons):
            self._reasons.labels(reason).inc()

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self.registry)


class _GaugeCollector(Collector):
    def __init__(self, version: str, read: Callable[[], Gauges]) -> None:
        self._version, self._read = version, read

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        yield _gauge("build", "Always 1; the label says which version runs.", "version", {self._version: 1})
        if now.is_leader is not None:
            yield _gauge("in_charge", "1 for the replica that leads and may bind.", "", {"": now.is_leader})
        yield _gauge("nodes", "Nodes known.", "", {"": now.nodes})
        yield _gauge("pods", "Pods known that have not ended.", "", {"": now.pods})
        yield _gauge(
            "problems", "Nodes and pods that cannot be read or contradict each other.", "", {"": now.problems}
        )
        yield _gauge(
            "overcommitted_nodes", "Nodes that hold more GPU than they have.", "", {"": now.overcommitted}
        )
        yield CounterMetricFamily(
            "stowage_contradictions",
            "Pods whose claims contradicted their request or node.",
            now.contradictions,
        )
        failures = CounterMetricFamily(
            "stowage_policy_failures",
            "Faults of the policy that were caught: pods were placed without what failed.",
            labels=["what"],
        )
        for what in POLICY_PARTS:
            failures.add_metric([what], now.policy_failures.get(what, 0))
        yield failures
        yield _gauge(
            "tentative_holds",
            "Bindings assumed that the watch has not shown yet.",
            "",
            {"": now.assumed_pods},
        )
        yield _gauge("tentative_age_seconds", "Age of the oldest of them.", "", {"": now.tentative_seconds})
        yield _gauge("synced", "1 once a resource has been listed in full.", "resource", now.synced)
        yield _gauge(
            "state_age_seconds", "Time since the source was last heard of.", "resource", now.age_seconds
        )
        for member, text in _GPU_GAUGES.items():
            values = {model: getattr(gpus, member) for model, gpus in now.gpus.items()}
            yield _gauge(f"gpus_{member}", text, "model", values)


_GPU_GAUGES = {
    "installed": "GPUs of all nodes.",
    "free": "Free compute of all GPUs, in GPUs.",
    "whole": "GPUs that are entirely free.",
}


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(f"stowage_{name}", text, labels=[label] if label else [])
    for value_of, value in values.items():
        gauge.add_metric([value_of] if label else [], value)
    return gauge
