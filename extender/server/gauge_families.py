"""The gauges in Prometheus' data model, by topic. ``docs/metrics.md`` says what each of them tells."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.cluster.failures import Part
from extender.queues.disruptions import NO_QUEUE_LABEL, REASONS
from extender.server.fleet_families import fleet
from extender.server.gauges import Gauges
from extender.source.interface import WATCH_ENDS
from extender.verbs.recheck import OUTCOMES


class GaugeCollector(Collector):
    """What ``read`` returns at each scrape."""

    def __init__(self, version: str, read: Callable[[], Gauges]) -> None:
        self._version, self._read = version, read

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        info = GaugeMetricFamily(
            "stowage_build_info", "Always 1; the labels say what runs.", labels=["version", "python"]
        )
        info.add_metric([self._version, platform.python_version()], 1)
        yield info
        yield from _state(now)
        yield from _decisions(now)
        yield from _disruptions(now)
        yield from _queues(now)
        yield from _demand(now)
        yield from fleet(now)


def gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with one label."""
    family = GaugeMetricFamily(f"stowage_{name}", text, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family


def _single(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"stowage_{name}", text, value)


def _state(now: Gauges) -> Iterator[Metric]:
    if now.is_leader is not None:
        yield _single("leader", "1 for the replica that is the leader and may bind.", now.is_leader)
    yield _single("nodes", "Known nodes.", now.nodes)
    yield _single("pods", "Known pods that have not terminated.", now.pods)
    yield _single("problems", "Nodes and pods that cannot be read or are contradictory.", now.problems)
    yield _single("overcommitted_nodes", "Nodes whose pods hold more GPU than exists.", now.overcommitted)
    text = "Pods whose claims contradicted their request or node."
    yield CounterMetricFamily("stowage_contradictions", text, now.contradictions)
    yield _single("assumed_pods", "Bound pods that the watch has not confirmed yet.", now.assumed_pods)
    yield _single("assumed_pod_age_seconds", "Age of the oldest assumed pod.", now.assumed_seconds)
    yield gauge("synced", "1 after the first complete list of the resource.", "resource", now.synced)
    text = "Time since the last bytes from the API server."
    yield gauge("state_age_seconds", text, "resource", now.age_seconds)
    text = "Time since the watch was last open, 0 while it is."
    yield gauge("watch_closed_seconds", text, "resource", now.closed_seconds)
    text = "Watches and attempts to open one that ended, by how."
    ends = CounterMetricFamily("stowage_watch_restarts", text, labels=["resource", "reason"])
    for resource, how in itertools.product(now.age_seconds, WATCH_ENDS):
        ends.add_metric([resource, how], now.watch_ends.get((resource, how), 0))
    yield ends


def _decisions(now: Gauges) -> Iterator[Metric]:
    text = "Errors of a part of the service that were caught: pods were placed without it."
    failures = CounterMetricFamily("stowage_policy_failures", text, labels=["what"])
    for what in get_args(Part):
        failures.add_metric([what], now.policy_failures.get(what, 0))
    yield failures
    text = "Errors in tasks and threads of the service, which have started again."
    yield CounterMetricFamily("stowage_background_failures", text, now.background_failures)
    text = "Refusals of filter and preempt, by what came of evaluating them again."
    rechecks = CounterMetricFamily("stowage_refusal_rechecks", text, labels=["result"])
    for outcome in OUTCOMES:
        rechecks.add_metric([outcome], now.rechecks.get(outcome, 0))
    yield rechecks


def _disruptions(now: Gauges) -> Iterator[Metric]:
    text = "Bound pods that were preempted or interrupted."
    pods = CounterMetricFamily("stowage_preempted_pods", text, labels=["queue", "reason", "owner"])
    for labels, count in now.disrupted_pods.items():
        pods.add_metric(labels, count)
    yield pods
    text = "Estimated work that such pods lost since their start or last checkpoint, in GPU-hours."
    lost = CounterMetricFamily("stowage_preempted_gpu_hours_lost", text, labels=["queue", "reason"])
    # All from the start: rate() does not see the first value of a series that begins with it.
    for queue, reason in itertools.product(_queue_names(now), REASONS):
        lost.add_metric([queue, reason], now.gpu_seconds_lost.get((queue, reason), 0.0) / 3600)
    yield lost


def _queue_names(now: Gauges) -> list[str]:
    return [*filter(None, now.gpus_by_queue), NO_QUEUE_LABEL]


def _queues(now: Gauges) -> Iterator[Metric]:
    waiting = now.census.waiting if now.census else {}
    queues = {name or NO_QUEUE_LABEL: queue for name, queue in waiting.items()}
    pods = {name: queue.pods for name, queue in queues.items()}
    yield gauge("waiting_pods", "GPU pods without a node and without scheduling gates.", "queue", pods)
    gpus = {name: round(queue.gpus, 6) for name, queue in queues.items()}
    yield gauge("waiting_gpus", "GPUs that such pods ask for.", "queue", gpus)
    ages = {name: max(0.0, now.now - queue.oldest) if queue.oldest else 0.0 for name, queue in queues.items()}
    yield gauge("waiting_oldest_seconds", "Age of the oldest of them, 0 if none waits.", "queue", ages)
    used = {name or NO_QUEUE_LABEL: round(gpus, 6) for name, gpus in now.gpus_by_queue.items()}
    yield gauge("queue_gpus", "GPUs that pods with a node have.", "queue", used)


def _demand(now: Gauges) -> Iterator[Metric]:
    demand = now.demand
    yield CounterMetricFamily(
        "stowage_demand_pods", "GPU pods that the demand mix was learnt from.", demand.learnt
    )
    text = "Part of the demand mix, by the GPUs that a pod asks for."
    yield gauge("demand_ratio", text, "gpus", demand.by_size)
    text = "How far the mix has moved since the last plan, or from the demand of the settings: 0 to 1."
    yield gauge("demand_drift_ratio", text, "since", demand.moved)
    yield _single("demand_cpus_per_gpu", "CPUs that pods ask for beside one GPU.", demand.cpu_milli / 1000)
    text = "Host memory that pods ask for beside one GPU."
    yield _single("demand_memory_bytes_per_gpu", text, demand.memory_mib * (1 << 20))
