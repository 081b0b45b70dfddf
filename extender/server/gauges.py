"""The gauges and counters of the state, read at each scrape. ``docs/metrics.md`` describes each.

Metrics with known label values have all series from the start: rate() misses the first value of a new series.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from extender.background import Part
from extender.k8s.objects import REQUIRED_KINDS
from extender.queues.disruptions import NO_QUEUE_LABEL, REASONS
from extender.source.interface import WATCH_ENDS, Source
from extender.source.watched_kinds import WATCHED_KINDS
from extender.verbs.recheck import OUTCOMES, RefusalRecheck

if TYPE_CHECKING:  # they load kernels
    from extender.cluster.census import Census
    from extender.cluster.state import State
    from extender.explain.gpu_use import Step
    from extender.explain.inspector import Inspector

Values: TypeAlias = float | Mapping[Any, float]
"""Values of a metric: one, or one per value of its label, or one per tuple of values of its labels."""
_ON_OFFER = {
    "gpus_on_offer": ("gpus", "GPUs of nodes that accept pods."),
    "gpus_free": ("free", "Free compute of GPUs on offer, in GPUs."),
    "gpus_whole": ("whole", "Free GPUs on offer that can be allocated whole."),
    "nodes_on_offer": ("nodes", "Nodes with GPUs that accept pods."),
    "nodes_whole": ("whole_nodes", "Nodes that accept pods and whose GPUs are all entirely free."),
    "largest_request_gpus": ("largest_request", "The most whole GPUs for one pod."),
    "largest_island_gpus": ("largest_island", "The most of them that are NVLink peers."),
    "largest_node_gpus": ("largest_node", "The most whole GPUs that an empty node has."),
}
"""By GPU model: fields of ``Fragmentation``, and texts."""
_LACKING = {
    "gpu_memory": "stranded_compute",
    "cpu": "stranded_by_cpu",
    "host_memory": "stranded_by_host_memory",
}
"""The same of GPUs that lack a resource."""


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, values: Values, *labels: str
) -> Metric:
    """A metric ``stowage_``... with these labels."""
    family = kind(f"stowage_{name}", text, labels=labels)
    for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family


gauge = partial(_family, GaugeMetricFamily)
counter = partial(_family, CounterMetricFamily)


class Gauges:
    """Metrics of one state and its source. ``update``, before ``collect``, yields to other tasks."""

    def __init__(self, state: State, source: Source, recheck: RefusalRecheck, inspector: Inspector) -> None:
        self._state, self._source, self._recheck = state, source, recheck
        self._census, self._teams, self._starts = inspector.census, inspector.teams, inspector.starts
        self._found: Census | None = None
        self._gpu_use = inspector.gpu_use
        self._by_step: Mapping[Step, float] = {}

    async def update(self) -> None:
        """Update the figures that are computed node by node or pod by pod. Other tasks run in between."""
        self._found = await self._census.take()
        await self._teams.count()
        self._by_step = (await self._gpu_use()).by_step()

    def collect(self) -> Iterator[Metric]:
        yield from self._of_state()
        yield from self._of_watches()
        yield from self._of_disruptions()
        yield from self._of_teams()
        yield from self._of_demand()
        yield from self._of_forecasts()

        if self._found is not None:
            yield from _waiting(self._found)
            yield from _fleet(self._found)
        text = "GPUs by what they are used for, each in one step of stowage audit."
        yield gauge("gpus_by_use", text, self._by_step, "step")

    def _of_forecasts(self) -> Iterator[Metric]:
        starts, ends = self._starts.results, self._state.end_costs.results
        text = "First forecasts of starts, by result: whether the pod started in time."
        results = {(queue or NO_QUEUE_LABEL, str(p), result): n for (queue, p, result), n in starts.items()}
        yield counter("start_forecasts", text, results, "queue", "quantile", "result")
        text = "Forecasts of ends, made when the pod started, by result: whether it ended in time."
        results = {(basis, str(p), result): n for (basis, p, result), n in ends.items()}
        yield counter("end_forecasts", text, results, "basis", "quantile", "result")
        judged = defaultdict[str, Counter[tuple[float, str]]](Counter)
        for (_, part, result), count in starts.items():
            judged["start"][part, result] += count
        for (basis, part, result), count in ends.items():
            judged[f"{basis}_end"][part, result] += count
        text = "Mean distance between the probability of a forecast time and the fraction that came in time."
        from packing.model.lifetimes import calibration_error  # it loads kernels, which a start does later

        errors = {forecast: calibration_error(counts) for forecast, counts in judged.items()}
        known = {forecast: error for forecast, error in errors.items() if error is not None}
        yield gauge("forecast_calibration_error_ratio", text, known, "forecast")

    def _of_state(self) -> Iterator[Metric]:
        state = self._state
        yield gauge("nodes", "Known nodes.", len(state.nodes))
        yield gauge("pods", "Known pods that have not terminated.", len(state.pods))
        yield gauge(
            "problems", "Nodes and pods that cannot be read or are contradictory.", len(state.problems)
        )
        text = "Nodes whose pods hold more GPU than exists."
        yield gauge("overcommitted_nodes", text, len(state.overcommitted))
        text = "Pods whose claims contradicted their request or node."
        yield counter("contradictions", text, state.allocations.contradictions)
        text = "Bound pods that the watch has not confirmed yet."
        yield gauge("assumed_pods", text, len(state.assumed_pods))
        age = state.assumed_pods.oldest(time.monotonic())
        yield gauge("assumed_pod_age_seconds", "Age of the oldest assumed pod.", age)
        text = "Caught errors, by the component without which pods were placed."
        failures = {what: state.failures.counts.get(what, 0) for what in get_args(Part)}
        yield counter("policy_failures", text, failures, "what")
        text = "Refusals of filter and preempt, by the result of the second evaluation."
        rechecks = {outcome: self._recheck.outcomes.get(outcome, 0) for outcome in OUTCOMES}
        yield counter("refusal_rechecks", text, rechecks, "result")
        text = "Nodes that are reserved for large jobs."
        reserved = sum(len(held.nodes) for held in state.large_jobs.table.current)
        yield gauge("reserved_nodes", text, reserved)
        text = "GPU-seconds for which GPUs of reserved nodes were free, counted by the leader."
        yield counter("reserved_idle_gpu_seconds", text, state.large_jobs.idle)

    def _of_watches(self) -> Iterator[Metric]:
        text = "1 after the first complete list of the resource, 0 also while it counts as unknown."
        synced = {row.full_resource: row.kind in self._state.synced for row in WATCHED_KINDS.values()}
        synced |= {unknown.resource: False for unknown in self._state.unlisted.values()}
        yield gauge("synced", text, synced, "resource")
        watches = {
            watch.resource: watch for kind, watch in self._source.watches().items() if kind in REQUIRED_KINDS
        }
        text = "Time since the last bytes from the API server."
        yield gauge(
            "state_age_seconds", text, {name: watch.silent for name, watch in watches.items()}, "resource"
        )
        text = "Time since the watch was last open, 0 while it is."
        closed = {name: watch.closed for name, watch in watches.items()}
        yield gauge("watch_closed_seconds", text, closed, "resource")
        text = "Ended watches and failed attempts to open one, by reason."
        ends = {(name, how): watch.ends.get(how, 0) for name, watch in watches.items() for how in WATCH_ENDS}
        yield counter("watch_restarts", text, ends, "resource", "reason")

    def _of_disruptions(self) -> Iterator[Metric]:
        disruptions = self._state.disruptions
        used = dict.fromkeys((*self._state.rights.queues.by_name, ""), 0.0)
        for team, gpus in self._teams.gpus.items():
            used[team.queue] += gpus
        text = "Bound pods that were preempted or interrupted."
        yield counter("preempted_pods", text, disruptions.pods, "queue", "reason", "owner")
        text = "Estimated work that these pods lost since their start or last checkpoint, in GPU-hours."
        queues = [*filter(None, used), NO_QUEUE_LABEL]
        lost = {
            key: disruptions.gpu_seconds.get(key, 0.0) / 3600 for key in itertools.product(queues, REASONS)
        }
        yield counter("preempted_gpu_hours_lost", text, lost, "queue", "reason")
        objectives = {
            name: queue.wait_objective or 0 for name, queue in self._state.rights.queues.by_name.items()
        }
        text = "Objective for the longest wait of pods of the queue, 0 for none."
        yield gauge("queue_wait_objective_seconds", text, objectives, "queue")
        in_use = {name or NO_QUEUE_LABEL: round(gpus, 6) for name, gpus in used.items()}
        yield gauge("queue_gpus", "GPUs allocated to pods with a node.", in_use, "queue")

    def _of_teams(self) -> Iterator[Metric]:
        text = "GPU-seconds allocated to pods with a node."
        teams = self._teams.gpu_seconds.items()
        had = {(team.namespace, team.queue or NO_QUEUE_LABEL, team.model): seconds for team, seconds in teams}
        yield counter("namespace_gpu_seconds", text, had, "workload_namespace", "queue", "model")
        models = self._found.installed if self._found else ()
        values = {model: self._state.fleet.values.of(model, "") for model in models}
        yield gauge("gpu_value", "Value of a GPU, relative to an A100 with 80 GB.", values, "model")

    def _of_demand(self) -> Iterator[Metric]:
        learner = self._state.learner
        monitor, beside = learner.monitor, learner.monitor.beside()
        yield counter("demand_pods", "GPU pods that the demand mix was learned from.", learner.learned)
        text = "Fraction of the demand mix, by the GPUs that a pod requests."
        yield gauge("demand_ratio", text, monitor.by_size(), "gpus")
        moved = {"plan": monitor.moved_since_plan}
        if monitor.moved_since_settings is not None:
            moved["settings"] = monitor.moved_since_settings
        text = "Drift of the mix since the last plan, or from the demand in the settings: 0 to 1."
        yield gauge("demand_drift_ratio", text, moved, "since")
        text = "CPUs that pods request per GPU."
        yield gauge("demand_cpus_per_gpu", text, beside.cpu_milli / 1000)
        text = "Host memory that pods request per GPU."
        yield gauge("demand_memory_bytes_per_gpu", text, beside.memory_mib * (1 << 20))


def _waiting(found: Census) -> Iterator[Metric]:
    queues, now = {name or NO_QUEUE_LABEL: queue for name, queue in found.waiting.items()}, time.time()
    text = "GPU pods without a node and without scheduling gates."
    yield gauge("waiting_pods", text, {name: queue.pods for name, queue in queues.items()}, "queue")
    gpus = {name: round(queue.gpus, 6) for name, queue in queues.items()}
    yield gauge("waiting_gpus", "GPUs that these pods request.", gpus, "queue")
    ages = {name: max(0.0, now - queue.oldest) if queue.oldest else 0.0 for name, queue in queues.items()}
    yield gauge("waiting_oldest_seconds", "Age of the oldest of these pods, 0 for none.", ages, "queue")


def _fleet(found: Census) -> Iterator[Metric]:
    """GPUs by model: installed, on offer and stranded."""
    installed, models = found.installed, found.models
    gpus = {model: usage.gpus for model, usage in installed.items()}
    yield gauge("gpus_installed", "GPUs of all nodes, on offer or not.", gpus, "model")
    used = {model: usage.used for model, usage in installed.items()}
    yield gauge("gpus_used", "Compute in use of all GPUs, in GPUs.", used, "model")
    spot = {"installed": found.spot.gpus, "used": found.spot.used}
    yield gauge("spot_gpus", "GPUs of spot nodes: all of them, and those in use.", spot, "state")
    text = "GPUs that nodes do not offer: no device plugin, unhealthy, or unreadable."
    yield gauge("gpus_not_offered", text, found.totals.not_offered)
    text = "Nodes whose number of GPUs is unknown."
    yield gauge("nodes_uncounted", text, found.totals.uncounted)
    for name, (field, text) in _ON_OFFER.items():
        yield gauge(
            name, text, {model: getattr(figures, field) for model, figures in models.items()}, "model"
        )
    text = "Free memory of shared GPUs that have no compute left."
    memory = {model: figures.stranded_memory_mib * (1 << 20) for model, figures in models.items()}
    yield gauge("stranded_gpu_memory_bytes", text, memory, "model")
    text = "Free compute of GPUs on offer, in GPUs, that lacks another resource."
    stranded = {(m, lack): getattr(models[m], field) for m in models for lack, field in _LACKING.items()}
    yield gauge("stranded_gpus", text, stranded, "model", "lack")
    text = "Nodes with GPUs that accept no pods at present, by reason."
    yield gauge("closed_nodes", text, found.closed_nodes, "reason")
    free = {model: mig.free_slices for model, mig in found.mig.items()}
    yield gauge("mig_free_slices", "Free memory slices of GPUs in MIG mode.", free, "model")
    profiles = {(m, name): profile for m, mig in found.mig.items() for name, profile in mig.profiles.items()}
    instances = {key: profile.instances for key, profile in profiles.items()}
    yield gauge("mig_free_instances", "MIG instances that can be allocated.", instances, "model", "profile")
    text = "Free memory slices that cannot become an instance of the profile, but could on an empty GPU."
    stranded = {key: profile.stranded for key, profile in profiles.items()}
    yield gauge("mig_stranded_slices", text, stranded, "model", "profile")
