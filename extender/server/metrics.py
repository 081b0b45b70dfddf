"""The Prometheus metrics. All names start with ``stowage_``; the fleet is shown as sums by GPU model.

No metric has a series per node: each scrape of a large cluster would block the event loop for tens of
milliseconds. The debug endpoint shows single nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

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

from extender.cluster.failures import Part
from extender.queues.disruptions import NO_QUEUE_LABEL, REASONS

# Series with creation times would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

REFUSALS = ("bad_message", "internal_error", "not_ready", "overloaded", "too_large", "too_slow")
"""Results of a verb on which alerts may be set."""
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
    """The values that are read from the state at each scrape."""

    nodes: int = 0
    pods: int = 0
    problems: int = 0
    overcommitted: int = 0  # nodes
    contradictions: int = 0  # since the start
    policy_failures: Mapping[Part, int] = field(default_factory=dict)  # since the start, by what failed
    assumed_pods: int = 0  # that the watch has not confirmed yet
    assumed_seconds: float = 0.0  # the age of the oldest
    synced: Mapping[str, bool] = field(default_factory=dict)  # by resource
    age_seconds: Mapping[str, float] = field(default_factory=dict)  # by resource
    gpus: Mapping[str, Gpus] = field(default_factory=dict)  # by model
    disrupted_pods: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Since the start, by queue, reason and kind of owner."""
    gpu_seconds_lost: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by queue and reason
    queues: tuple[str, ...] = ()
    spot_gpus: Mapping[str, float] = field(default_factory=dict)  # installed and used
    is_leader: bool | None = None  # None without leader election


class Metrics:
    """Counters of the verbs, and gauges whose values ``read`` returns at each scrape."""

    def __init__(self, version: str, read: Callable[[], Gauges], verbs: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="stowage", registry=self.registry)
        self.registry.register(_GaugeCollector(version, read))
        text = "Time from the received body to the reply."
        self._seconds = Histogram(
            "stowage_verb_seconds", text, ["verb"], buckets=_SECONDS, registry=self.registry
        )
        text = "Requests by verb and result."
        self._results = Counter("stowage_verb_results", text, ["verb", "result"], registry=self.registry)
        text = "Filter requests for which no node fits, counted once for each reason."
        self._reasons = Counter("stowage_unschedulable", text, ["reason"], registry=self.registry)
        text = "Victims that preempt proposed, by their queue and that of the pod that waits."
        self._preemptions = Counter(
            "stowage_preemptions", text, ["queue", "preemptor"], registry=self.registry
        )
        # Created at the start: rate() does not see the first failure of a series that begins with it.
        for verb, result in itertools.product(verbs, REFUSALS):
            self._results.labels(verb, result)

    def answered(self, verb: str, result: str, seconds: float | None = None) -> None:
        """Count a request. ``seconds`` is None if its body was not read."""
        self._results.labels(verb, result).inc()
        if seconds is not None:
            self._seconds.labels(verb).observe(seconds)

    def nothing_fitted(self, reasons: Iterable[str]) -> None:
        """Count the distinct reasons of a pod that fits nowhere."""
        for reason in set(reasons):
            self._reasons.labels(reason).inc()

    def victims_proposed(self, queues: Iterable[str], preemptor: str) -> None:
        """Count the victims of an answer of preempt by their queues, for a pod of the queue ``preemptor``."""
        for queue in queues:
            self._preemptions.labels(queue or NO_QUEUE_LABEL, preemptor or NO_QUEUE_LABEL).inc()

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self.registry)


class _GaugeCollector(Collector):
    def __init__(self, version: str, read: Callable[[], Gauges]) -> None:
        self._version, self._read = version, read

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        yield _gauge("build", "Always 1; the label is the running version.", "version", {self._version: 1})
        if now.is_leader is not None:
            yield _single("leader", "1 for the replica that is the leader and may bind.", now.is_leader)
        yield _single("nodes", "Known nodes.", now.nodes)
        yield _single("pods", "Known pods that have not terminated.", now.pods)
        yield _single("problems", "Nodes and pods that cannot be read or are contradictory.", now.problems)
        yield _single("overcommitted_nodes", "Nodes whose pods hold more GPU than exists.", now.overcommitted)
        text = "Pods whose claims contradicted their request or node."
        yield CounterMetricFamily("stowage_contradictions", text, now.contradictions)
        text = "Errors of the policy that were caught: pods were placed without the part that failed."
        failures = CounterMetricFamily("stowage_policy_failures", text, labels=["what"])
        for what in get_args(Part):
            failures.add_metric([what], now.policy_failures.get(what, 0))
        yield failures
        yield _single("assumed_pods", "Bound pods that the watch has not confirmed yet.", now.assumed_pods)
        yield _single("assumed_pod_age_seconds", "Age of the oldest assumed pod.", now.assumed_seconds)
        yield _gauge("synced", "1 after the first complete list of the resource.", "resource", now.synced)
        text = "Time since the last bytes from the API server."
        yield _gauge("state_age_seconds", text, "resource", now.age_seconds)
        yield from _disruptions(now)
        text = "GPUs of spot nodes: all of them, and those in use."
        yield _gauge("spot_gpus", text, "state", now.spot_gpus)
        for member, text in _GPU_GAUGES.items():
            values = {model: getattr(gpus, member) for model, gpus in now.gpus.items()}
            yield _gauge(f"gpus_{member}", text, "model", values)


_GPU_GAUGES = {
    "installed": "GPUs of all nodes.",
    "free": "Free compute of all GPUs, in GPUs.",
    "whole": "GPUs that are entirely free.",
}


def _disruptions(now: Gauges) -> Iterable[Metric]:
    text = "Bound pods that were preempted or interrupted."
    pods = CounterMetricFamily("stowage_preempted_pods", text, labels=["queue", "reason", "owner"])
    for labels, count in now.disrupted_pods.items():
        pods.add_metric(labels, count)
    yield pods
    text = "Estimated work that such pods lost since their start or last checkpoint, in GPU-hours."
    lost = CounterMetricFamily("stowage_preempted_gpu_hours_lost", text, labels=["queue", "reason"])
    # All from the start: rate() does not see the first value of a series that begins with it.
    for queue, reason in itertools.product((*now.queues, NO_QUEUE_LABEL), REASONS):
        lost.add_metric([queue, reason], now.gpu_seconds_lost.get((queue, reason), 0.0) / 3600)
    yield lost


def _single(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"stowage_{name}", text, value)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(f"stowage_{name}", text, labels=[label])
    for label_value, value in values.items():
        gauge.add_metric([label_value], value)
    return gauge
