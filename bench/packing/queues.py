"""One timeline under stock kube-scheduler, and with the queues of Stowage."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np

from bench.packing.eviction_rules import SHIELD, CheapestVictims, EvictionRule, KubeScheduler, QueueRules
from bench.packing.filling import build_fleet, gpus_of
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.queue_figures import NodePrices, queue_figures
from bench.packing.queued_timeline import QueuedPod, QueuedTimeline, SpotMarket, SpotRows
from bench.packing.report import Progress, Row
from bench.packing.timeline import Run
from bench.packing.timeline_figures import Figures
from bench.packing.traces import Arrival, BadInput, read_nodes, read_pods
from extender.settings import Queue
from extender.untrusted.limits import quoted
from packing.fleet.arrays import Doubles
from packing.fleet.feasibility import could_host
from packing.model.node_spec import NodeSpec
from packing.model.request import Request, whole_gpus
from packing.policies.registry import POLICIES

QUEUE_OF_QOS: Mapping[str, str] = {
    "LS": "interactive",
    "BE": "backfill",
    "Burstable": "batch",
    "Guaranteed": "batch",
}
"""The queue of a pod by the column ``qos`` of openb (latency sensitive, best effort, and two others)."""
LEGEND = (
    "allocated, held by pods, and useful (without work that is lost later): GPU, mean over time.\n"
    "wait: median / 95th percentile of the pods that started."
)
"""The meanings of the table's columns."""
_QUIET = 1.0
"""Percentage of the pods that arrive before the averaging window: openb starts with four quiet months."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of a replay with queues.

    ``queue_of``: queue by ``qos``; ``queues``: the rules by name. ``load``: requested GPUs per GPU of the
    nodes, mean over the window (None: all nodes). ``checkpoint``: seconds between checkpoints of restartable
    pods (None: those of their queue). ``shield``: seconds for which a disrupted pod is not evicted. ``spot``:
    the nodes of the system with spot nodes.
    """

    queue_of: Mapping[str, str]
    queues: Mapping[str, Queue]
    policy: str = "inventory"
    stock_policy: str = "least-allocated"
    sample: int = 0
    load: float | None = None
    checkpoint: float | None = None
    shield: float = SHIELD
    spot: SpotMarket | None = None


@dataclass(frozen=True, slots=True)
class _System:
    """A scheduler: ``whole`` if it supports only whole GPUs, and its rule of eviction if it has queues."""

    name: str
    policy: str
    whole: bool = False
    rule: EvictionRule | None = None
    spot: SpotMarket | None = None


@dataclass(frozen=True, slots=True)
class _Timeline:
    """The pods of a trace, the nodes that are kept, and the averaging window in seconds."""

    pods: Sequence[QueuedPod]
    nodes: Sequence[NodeSpec]
    window: tuple[float, float]

    @property
    def gpus(self) -> Doubles:
        """(P,) the requested GPUs of each pod."""
        return np.array([gpus_of(pod.request) for pod in self.pods])


def replay_queues(
    nodes: Path, traces: Sequence[Path], seeds: Sequence[int], options: QueueOptions, progress: Progress
) -> Iterator[Row]:
    """Rows, one per trace, system and seed: allocated GPUs, waiting times per queue, cost of evictions.

    The seed determines the nodes that are kept for a load, the spot nodes and their interruptions, and how
    stock kube-scheduler breaks ties. Raises ``BadInput``.
    """
    specs, rules = read_nodes(nodes), queue_rules(options.queues, options.checkpoint)
    read = [(trace, list(_timed_pods(trace, specs, rules, options.queue_of))) for trace in traces]
    for trace, pods in read:
        for seed in seeds:
            timeline = _timeline(specs, pods, options.load, seed)
            for system in _systems(options, rules):
                started = time.perf_counter()
                report = partial(progress, f"{trace.stem} {system.name} {seed}")
                figures = _replay(timeline, system, options.sample, seed, report)
                gpus = sum(len(node.gpus) for node in timeline.nodes)
                head = {"trace": trace.stem, "system": system.name, "seed": seed, "gpus": gpus}
                seconds = round(time.perf_counter() - started, 1)
                yield head | figures | {"seconds": seconds}


def queue_rules(queues: Mapping[str, Queue], checkpoint: float | None = None) -> dict[str, QueueRules]:
    """The rules of the settings' queues by name. A queue has a higher priority than the queues that it
    preempts. Raises ``BadInput`` if queues preempt each other in a cycle."""
    known = {name: queue.preempts & queues.keys() - {name} for name, queue in queues.items()}
    priority: dict[str, int] = {}
    try:
        for name in TopologicalSorter(known).static_order():
            priority[name] = 1 + max((priority[lower] for lower in known[name]), default=-1)
    except CycleError as error:
        raise BadInput(f"queues preempt each other in a cycle: {', '.join(error.args[1])}") from None
    return {name: _rules(name, queue, priority[name], checkpoint) for name, queue in queues.items()}


def _rules(name: str, queue: Queue, priority: int, checkpoint: float | None) -> QueueRules:
    interval = checkpoint if queue.restartable and checkpoint else queue.checkpoint_interval
    return QueueRules(
        name,
        priority,
        queue.preempts,
        queue.min_runtime,
        math.inf if queue.max_duration is None else queue.max_duration,
        math.inf if interval is None else interval,
        queue.restartable,
    )


def _timed_pods(
    trace: Path, specs: Sequence[NodeSpec], rules: Mapping[str, QueueRules], queue_of: Mapping[str, str]
) -> Iterator[QueuedPod]:
    for pod in read_pods(trace, specs, timed=True):
        yield QueuedPod(pod.request, pod.created or 0.0, pod.duration, _queue(trace, pod, rules, queue_of))


def _queue(
    trace: Path, pod: Arrival, rules: Mapping[str, QueueRules], queue_of: Mapping[str, str]
) -> QueueRules:
    if (name := queue_of.get(pod.qos)) is None:
        qos = f"qos {quoted(pod.qos)}" if pod.qos else "an empty qos"
        known = ", ".join(queue_of)
        raise BadInput(f"{trace}, line {pod.line}: no queue is named for {qos}, only for {known}")
    if name not in rules:
        raise BadInput(f"no queue {name!r}; expected {', '.join(rules)}")
    return rules[name]


def _timeline(
    specs: Sequence[NodeSpec], pods: Sequence[QueuedPod], load: float | None, seed: int
) -> _Timeline:
    created = np.array([pod.created for pod in pods])
    window = float(np.percentile(created, _QUIET)), float(created.max())
    if load is None:
        return _Timeline(pods, specs, window)
    gpus = _mean_demand(pods, window) / load
    requests = list(dict.fromkeys(pod.request for pod in pods))  # a set has no fixed order
    return _Timeline(pods, thinned(specs, requests, gpus, seed), window)


def _mean_demand(pods: Sequence[QueuedPod], window: tuple[float, float]) -> float:
    """Requested GPUs of the pods, mean over the window, if none of them has to wait."""
    first, last = window
    seconds = (
        gpus_of(pod.request) * max(0.0, min(pod.created + pod.duration, last) - max(pod.created, first))
        for pod in pods
    )
    return sum(seconds) / max(last - first, 1.0)


def thinned(
    specs: Sequence[NodeSpec], requests: Sequence[Request], gpus: float, seed: int
) -> Sequence[NodeSpec]:
    """Random nodes with this many GPUs or slightly more, on which every request fits that fits on any node.

    Nodes are added in random order until there are enough GPUs; those that are needed for a request are added
    first.
    """
    shuffled = [specs[i] for i in np.random.default_rng([seed, 2]).permutation(len(specs))]
    fleets = {shape: build_fleet([node]) for node in shuffled if (shape := replace(node, name=""))}
    kept: dict[str, NodeSpec] = {}
    for request in sorted(requests, key=gpus_of, reverse=True):
        hosts = [node for node in shuffled if could_host(fleets[replace(node, name="")], request)]
        if hosts and not any(node.name in kept for node in hosts):
            kept[hosts[0].name] = hosts[0]
    for node in shuffled:
        if sum(len(node.gpus) for node in kept.values()) >= gpus:
            break
        kept[node.name] = node
    return list(kept.values())


def _systems(options: QueueOptions, rules: Mapping[str, QueueRules]) -> list[_System]:
    cheapest = CheapestVictims([rule.priority for rule in rules.values()], options.shield)
    systems = [
        _System("stock-fifo", options.stock_policy, whole=True),
        _System("stock-priority", options.stock_policy, whole=True, rule=KubeScheduler()),
        _System("packing", options.policy),
        _System("queues", options.policy, rule=cheapest),
    ]
    if options.spot:
        systems.append(_System("queues-spot", options.policy, rule=cheapest, spot=options.spot))
    return systems


def _replay(timeline: _Timeline, system: _System, sample: int, seed: int, report: partial[None]) -> Figures:
    """One system on one timeline."""
    nodes, rng = timeline.nodes, np.random.default_rng([seed, 3])
    pods = [_as_seen(pod, system) for pod in timeline.pods]
    picker = NodePicker(np.arange(len(nodes)), sample=sample, ties=rng if system.whole else None)
    placer = Placer(build_fleet(nodes), POLICIES[system.policy](), picker)
    spot, prices = _spot(timeline, system, seed)
    runs: Sequence[Run] = QueuedTimeline(placer, pods, system.rule, spot).replay(report)
    held = np.array([gpus_of(pod.request) for pod in pods])
    queues = [pod.queue.name for pod in timeline.pods]
    return queue_figures(runs, queues, timeline.gpus, held, timeline.window, prices)


def _as_seen(pod: QueuedPod, system: _System) -> QueuedPod:
    """The pod as seen by the system: the device plugin allocates only whole GPUs, and without a rule of
    eviction all queues are one."""
    request, queue = pod.request, pod.queue
    if system.whole and request.shares:
        request = replace(request, shares=whole_gpus(request.shares.count))
    if system.rule is None:
        queue = replace(queue, name="", priority=0)
    return replace(pod, request=request, queue=queue)


def _spot(timeline: _Timeline, system: _System, seed: int) -> tuple[SpotRows | None, NodePrices]:
    """The spot nodes, which are the same for every system of a seed, and the prices."""
    nodes = timeline.nodes
    gpus, price = np.array([float(len(node.gpus)) for node in nodes]), np.ones(len(nodes))
    if (market := system.spot) is None:
        return None, NodePrices(gpus, price)
    rng = np.random.default_rng([seed, 4])
    rows = market.draw(nodes, rng)
    end = max(pod.created + pod.duration for pod in timeline.pods if math.isfinite(pod.duration))
    first = min(pod.created for pod in timeline.pods)
    interruptions = list(market.interruptions(np.flatnonzero(rows).tolist(), first, end, rng))
    prices = NodePrices(gpus, np.where(rows, 1 - market.discount, price))
    return SpotRows(rows, interruptions, market.outage), prices
