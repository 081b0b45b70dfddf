"""The census: counts of nodes and GPUs, by use (used, free, whole, stranded or closed), and of pending pods.
``stowage top``, ``plan`` and ``demo``, the page, ``/debug`` and the metrics all show its counts.

It includes every node with GPUs, even if the node accepts no pods, is unreadable, offers none of its GPUs, or
offers them to claims only. A node is *on offer* if it accepts pods now, or will in a moment because its
device plugin is busy; only GPUs of such nodes count as free.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from extender.background import with_turns
from extender.cluster.demand import gpus_of
from extender.cluster.other_resources import wants_devices
from extender.cluster.state import State
from extender.cluster.totals import Totals
from extender.cluster.unoffered import (
    Unoffered,
    closed_text,
    in_slices,
    missing_gpus,
    of_virtual_node,
    unoffered,
)
from extender.dialects import gpushare
from extender.dialects.pod_request import request_or_none
from extender.dra.node_devices import NodeDevices
from extender.k8s.objects import Pod
from packing.fleet.mig_slices import MigStock, ProfileSlices
from packing.fleet.stranded import (
    NOTHING,
    Beside,
    Fragmentation,
    fragmentation,
    free_compute,
    on_offer,
    whole_gpus,
)
from packing.model.gpu_catalog import named_model
from packing.model.request import WHOLE

UNKNOWN = "unknown"
"""Model name of GPUs that are not in the catalog."""
CALL_NO_EXTENDER = frozenset({"slurm-bridge-scheduler", "yunikorn", "kai-scheduler", "runai-scheduler"})
"""Names of schedulers with an engine of their own (the defaults of their charts: SlinkyProject/slurm-bridge,
apache/yunikorn-k8shim, NVIDIA/KAI-Scheduler, Run:ai)."""
_OFFERS_NONE = "node offers none of its GPUs"
_MIG_NODES, _NODES, _PODS = 25, 100, 100
"""Objects counted before other tasks run: about a millisecond."""


class NodeCount(NamedTuple):
    """A node with GPUs. ``gpus``: all GPUs of the node, 0 if unknown; of them, ``not_offered`` cannot be
    allocated. ``used`` and ``free``: compute in GPUs. ``whole``: GPUs that are entirely free and can be
    allocated whole. Free GPUs of a node that is not ``on_offer`` count in no sum."""

    gpus: int
    not_offered: int
    used: float
    free: float
    whole: int
    on_offer: bool


@dataclass(frozen=True, slots=True)
class Installed:
    """Number of GPUs, whether nodes offer them or not; their used compute, in GPUs; number of their nodes."""

    gpus: int
    used: float
    nodes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pending pods of one queue, and the GPUs that they request. ``oldest``: creation time of the oldest, in
    Unix seconds; None if no pod is pending."""

    pods: int = 0
    gpus: float = 0.0
    oldest: float | None = None


@dataclass(frozen=True, slots=True)
class MigSlices:
    """GPUs of one model in MIG mode: free memory slices, and by profile the instances that can be allocated
    now and the free slices that cannot become an instance."""

    free_slices: int
    profiles: dict[str, ProfileSlices]


@dataclass(frozen=True, slots=True)
class Census:
    """A fleet at one moment: the sums; nodes on offer, in the ``fleet`` and by GPU model; GPUs ``installed``
    by model and on ``spot`` nodes, on offer or not; MIG slices by model; number of closed nodes, by reason;
    pending pods, by queue ("" for none). ``beside_one_gpu``: average requests of pods, which determine the
    GPUs that are stranded for lack of CPU or host memory."""

    totals: Totals
    fleet: Fragmentation
    models: dict[str, Fragmentation]
    installed: dict[str, Installed]
    spot: Installed = Installed(0, 0.0, 0)
    mig: dict[str, MigSlices] = field(default_factory=dict)
    closed_nodes: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    beside_one_gpu: Beside = field(default_factory=Beside)


def _pends_for_devices(state: State, pod: Pod) -> bool:
    """Whether the pod is pending, with or without scheduling gates, and requests a GPU or DRA devices or its
    request is unreadable. Pods of a scheduler that calls no extender are not Stowage's."""
    if pod.scheduler_name in CALL_NO_EXTENDER or pod.deleting or state.pods.is_bound(pod.uid):
        return False
    request = request_or_none(pod)
    return request is None or wants_devices(state, pod, request)


def pods_waiting_for_devices(state: State, *, gated: bool = False) -> list[Pod]:
    """The pending pods, the highest priority first; or instead those with scheduling gates."""
    waiting = (state.pods[key] for key in state.pods.waiting)
    found = [pod for pod in waiting if bool(pod.gates) is gated and _pends_for_devices(state, pod)]
    return sorted(found, key=lambda pod: (-pod.priority, pod.created, pod.key))


class _Columns(NamedTuple):
    """The fields of ``NodeCount`` as (N,) arrays, and ``counted``: whether the node has GPUs."""

    gpus: npt.NDArray[np.int64]
    not_offered: npt.NDArray[np.int64]
    used: npt.NDArray[np.float64]
    free: npt.NDArray[np.float64]
    whole: npt.NDArray[np.int64]
    on_offer: npt.NDArray[np.bool_]
    counted: npt.NDArray[np.bool_]

    def installed(self, rows: npt.NDArray[np.bool_]) -> Installed:
        """Sums over these nodes (N,)."""
        gpus, used, counted = (column[rows].sum().item() for column in (self.gpus, self.used, self.counted))
        return Installed(gpus, used, counted)


class CensusTaker:
    """Takes the census of one state. Values of single nodes are recomputed only after a change."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._mig = MigStock(state.fleet)
        self._in_slices: dict[str, tuple[NodeDevices, tuple[bool, int], Unoffered | None]] = {}
        self._rows: dict[str, int] = {}
        self._columns: _Columns | None = None

    async def take(self) -> Census:
        """Count everything; other tasks run in between."""
        state, hidden = self._state, dict[str, Unoffered]()
        while not self._mig.update(on_offer(state.fleet, closed_rows(state)), _MIG_NODES):
            await asyncio.sleep(0)
        async for name in with_turns(list(state.fleet.rows), _NODES):
            if found := self._unoffered(name):
                hidden[name] = found
        waiting: dict[str, Waiting] = dict.fromkeys((*state.rights.queues.by_name, ""), Waiting())
        gated = 0
        async for key in with_turns(list(state.pods.waiting), _PODS):
            if (pod := state.pods.get(key)) and _pends_for_devices(state, pod):
                if pod.gates:
                    gated += 1
                    continue
                queue = state.rights.queues.name_of(pod)
                waiting[queue] = self._with_pod(waiting.get(queue, Waiting()), pod)
        self._in_slices = {name: seen for name, seen in self._in_slices.items() if name in state.fleet.rows}
        return self._count(
            {name: n for name, n in hidden.items() if name in state.fleet.rows}, waiting, gated
        )

    def node(self, name: str) -> NodeCount | None:
        """A node in the last census, None if it has no GPUs."""
        row, columns = self._rows.get(name), self._columns
        if row is None or columns is None:
            return None
        gpus, not_offered, used, free, whole, on_offer, _ = (column[row].item() for column in columns)
        return NodeCount(gpus, not_offered, round(used, 3), round(free, 3), whole, on_offer)

    def mig_on(self, name: str) -> dict[str, int]:
        """Number of instances of each profile that can be allocated now, for a node that was on offer."""
        return self._mig.instances_on(self._rows.get(name, -1))

    def _unoffered(self, name: str) -> Unoffered | None:
        """As ``unoffered``; the devices of a node are examined again only after a change."""
        state = self._state
        devices = state.devices.on_node(name, state.nodes.labels_of(name))
        spec = state.fleet.spec_of(name)
        beside = spec is None or bool(spec.gpus)
        if beside and (not devices.has_pools or name in state.devices.two_ways):
            return of_virtual_node(state, name)
        if not devices.has_pools:
            return unoffered(state, name) if name in state.nodes.unoffered else None
        rules = state.devices.any_device_may_be_held, state.devices.rules_version
        seen = self._in_slices.get(name)
        if seen is None or seen[0] is not devices or seen[1] != rules:
            found = in_slices(state, name, devices)
            seen = self._in_slices[name] = devices, rules, found and replace(found, beside=beside)
        return seen[2] or unoffered(state, name)

    def _with_pod(self, waiting: Waiting, pod: Pod) -> Waiting:
        gpus = gpus_of(self._state.fleet, request) if (request := request_or_none(pod)) else 0.0
        oldest = pod.created if waiting.oldest is None else min(waiting.oldest, pod.created)
        return Waiting(waiting.pods + 1, waiting.gpus + gpus, oldest)

    def _count(self, hidden: Mapping[str, Unoffered], waiting: dict[str, Waiting], gated: int) -> Census:
        """``hidden``: GPUs of nodes without GPUs in the arrays of the fleet."""
        state, beside = self._state, self._state.learner.monitor.beside()
        self._columns = columns = _columns(state, hidden)
        self._rows = {name: row for name, row in state.fleet.rows.items() if columns.counted[row]}
        in_arrays = columns.on_offer.copy()
        in_arrays[[self._rows[name] for name, node in hidden.items() if not node.beside]] = False
        fleet, by_model = fragmentation(state.fleet, in_arrays, beside, _rows_in_units(state))
        models = {name or UNKNOWN: sums for name, sums in by_model.items()}
        for name, node in hidden.items():
            if columns.on_offer[self._rows[name]]:
                model = _label(node)
                fleet, models[model] = with_node(fleet, node), with_node(models.get(model, NOTHING), node)
        objectives = {name: queue.wait_objective for name, queue in state.rights.queues.by_name.items()}
        closed, spot = columns.counted & ~columns.on_offer, state.fleet.arrays.spot > 0
        closed_specs = (state.fleet.specs[row] for row in np.flatnonzero(closed).tolist())
        return Census(
            Totals(
                nodes=int(columns.counted.sum()),
                gpus=int(columns.gpus.sum()),
                used=round(float(columns.used.sum()), 3),
                free=round(float(columns.free[columns.on_offer].sum()), 3),
                whole=fleet.whole,
                whole_nodes=fleet.whole_nodes,
                closed_nodes=int(closed.sum()),
                closed_gpus=int(columns.gpus[closed].sum()),
                not_offered=int(columns.not_offered.sum()),
                missing=int(columns.not_offered[columns.on_offer].sum()),
                uncounted=int((columns.counted & (columns.gpus == 0)).sum()),
                waiting=sum(of_queue.pods for of_queue in waiting.values()),
                gated=gated,
                objectives={
                    name: (of_queue.oldest, objective)
                    for name, of_queue in waiting.items()
                    if of_queue.oldest and (objective := objectives.get(name))
                },
            ),
            fleet,
            models,
            _installed(state, columns, hidden),
            columns.installed(spot),
            self._mig_slices(),
            dict(Counter(closed_text(state, spec.name) or _OFFERS_NONE for spec in closed_specs if spec)),
            waiting,
            beside,
        )

    def _mig_slices(self) -> dict[str, MigSlices]:
        profiles: defaultdict[str, dict[str, ProfileSlices]] = defaultdict(dict)
        for (model, profile), slices in self._mig.profiles().items():
            profiles[model][profile] = slices
        free = self._mig.free_slices().items()
        return {model or UNKNOWN: MigSlices(count, profiles[model]) for model, count in free}


def closed_rows(state: State) -> list[int]:
    """Rows of the nodes that are closed in the cluster."""
    return [state.fleet.rows[name] for name in state.nodes.closed if name in state.fleet.rows]


def _rows_in_units(state: State) -> list[int]:
    return [row for name, row in state.fleet.rows.items() if counts_units(state, name)]


def counts_units(state: State, name: str) -> bool:
    """Whether pods request memory of the node's GPUs in units of gpushare's plugin, and no compute."""
    spec = state.fleet.spec_of(name)
    return spec is not None and spec.sharing_resource == gpushare.RESOURCE


def _columns(state: State, hidden: Mapping[str, Unoffered]) -> _Columns:
    rows, arrays = state.fleet.rows, state.fleet.arrays
    left = free_compute(arrays, _rows_in_units(state))
    gpus = (arrays.compute_capacity > 0).sum(axis=0)
    used = (arrays.compute_capacity - left).sum(axis=0, dtype=np.float64) / WHOLE
    free = np.where(arrays.offered > 0, left, 0).sum(axis=0, dtype=np.float64) / WHOLE
    whole, not_offered = whole_gpus(arrays).sum(axis=0), np.zeros_like(gpus)
    open, counted = on_offer(state.fleet, closed_rows(state)), gpus > 0
    for name in state.nodes.unoffered:
        if name in rows and counted[rows[name]]:
            not_offered[rows[name]] = missing_gpus(state, name)
            gpus[rows[name]] += not_offered[rows[name]]
    for name, node in hidden.items():
        row = rows[name]
        for column, amount in ((gpus, node.gpus), (used, node.used), (free, node.free), (whole, node.whole)):
            column[row] = amount + (column[row] if node.beside else 0)
        not_offered[row] = 0 if node.claims else node.gpus
        counted[row], open[row] = True, open[row] and node.claims
    return _Columns(gpus, not_offered, used, free, whole, open, counted)


def with_node(sums: Fragmentation, node: Unoffered) -> Fragmentation:
    """The sums with a node on offer whose GPUs are devices of DRA. Whether they are peers is unknown."""
    return replace(
        sums,
        nodes=sums.nodes + bool(node.gpus and not node.beside),
        gpus=sums.gpus + node.gpus,
        free=sums.free + node.free,
        whole=sums.whole + node.whole,
        whole_nodes=sums.whole_nodes + (0 < node.gpus == node.whole and not node.beside),
        largest_request=max(sums.largest_request, node.whole),
        largest_island=max(sums.largest_island, min(node.whole, 1)),
        largest_node=max(sums.largest_node, node.gpus),
    )


def _installed(state: State, columns: _Columns, hidden: Mapping[str, Unoffered]) -> dict[str, Installed]:
    """GPUs by model, with those that nodes do not offer."""
    labels = [*(kind.model or UNKNOWN for kind in state.fleet.names.kinds), UNKNOWN]
    numbers = {label: number for number, label in enumerate(sorted({*labels, *map(_label, hidden.values())}))}
    of_nodes = np.array([numbers[label] for label in labels])[state.fleet.arrays.model]  # (N,)
    for name, node in hidden.items():
        of_nodes[state.fleet.rows[name]] = numbers[_label(node)]
    weights = columns.gpus, columns.used, columns.counted
    gpus, used, nodes = (np.bincount(of_nodes, column, len(numbers)).tolist() for column in weights)
    sums = (Installed(int(g), u, int(n)) for g, u, n in zip(gpus, used, nodes, strict=True))
    return {label: found for label, found in zip(numbers, sums, strict=True) if found.nodes}


def _label(node: Unoffered) -> str:
    return node.model if named_model(node.model) else UNKNOWN
