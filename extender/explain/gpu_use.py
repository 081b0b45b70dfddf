"""What each GPU is used for, from installed to useful: every GPU, or fraction of one, is in exactly one step.

GPUs that pods hold are in the last steps. A free GPU is idle because of the pending pod that would use it but
for one obstacle, which is the reason that ``explain`` has for that pod on that node. Pending pods claim GPUs
in kube-scheduler's order: first those that fit now, then those with an obstacle. A pod claims no more GPUs
than it requests, so GPUs that no pending pod would use are idle because nothing is pending for them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt

from extender.background import with_turns
from extender.cluster.census import CensusTaker, NodeCount, pods_waiting_for_devices
from extender.cluster.demand import gpus_of
from extender.cluster.state import State
from extender.cluster.unoffered import closed_text, unoffered, unoffered_note
from extender.dialects.shared_gpus import MIG_PREFIX
from extender.explain.candidates import Candidates
from extender.explain.hints import gates_said
from extender.inventory.node_state import NodeLayout, is_down
from extender.k8s.node_filter import Rule
from extender.k8s.objects import Node, Pod
from extender.k8s.resource_slices import DeviceId
from extender.protocol.node_names import NodeNames
from extender.trial.cluster_pods import reserves_only
from extender.trial.mig_search import candidate, gpus_asked, possible_layouts
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import many
from extender.verbs.evaluate import evaluate, hosts_when_empty, search_devices
from extender.verbs.eviction.node_pods import gpus_held
from packing.fleet.stranded import closed_reason
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from packing.model.request import Request

_KINDS = 128
"""Kinds of pending pods that are evaluated, those of the highest priority: each costs a filter request."""
_NO_NUMBER = "without a known number of GPUs, which may need idle ones"
_LEAST = 1e-6
"""GPUs below which a fraction is a rounding error."""
_AT_ONCE = 20
Amounts = npt.NDArray[np.float64]


class Step(StrEnum):
    """The steps from installed to useful. The names are the keys in JSON and the label of the metric."""

    CLOSED = "closed"
    BROKEN = "broken"
    NOT_READABLE = "notReadable"
    IDLE = "idle"
    TOO_FEW = "tooFew"
    STARTING = "starting"
    FRAGMENTED = "fragmented"
    CPU_OR_MEMORY = "cpuOrMemory"
    MIG_LAYOUT = "migLayout"
    RULE = "rule"
    GATED = "gated"
    RESERVED = "reserved"
    UNDERUSED = "underused"
    CHEAPER = "cheaper"
    NOT_MEASURED = "notMeasured"
    IN_USE = "inUse"


HELD = Step.UNDERUSED, Step.CHEAPER, Step.NOT_MEASURED, Step.IN_USE
"""Steps of GPUs that pods hold."""
TITLES: Mapping[Step, str] = {
    Step.CLOSED: "on closed nodes",
    Step.BROKEN: "broken or not offered",
    Step.NOT_READABLE: "not readable",
    Step.IDLE: "idle: no pending pod needs them",
    Step.TOO_FEW: "idle: too few for any pending pod",
    Step.STARTING: "free: pending pods fit and should start",
    Step.FRAGMENTED: "idle: too fragmented for pending pods",
    Step.CPU_OR_MEMORY: "idle: CPU, memory or the like is used up",
    Step.MIG_LAYOUT: "idle: wrong MIG layout for pending pods",
    Step.RULE: "idle: taint, selector or other rule of pods",
    Step.GATED: "idle: gates or quotas hold pending pods",
    Step.RESERVED: "reserved, not used yet",
    Step.UNDERUSED: "held by pods, but not used",
    Step.CHEAPER: "held, but cheaper GPUs suffice",
    Step.NOT_MEASURED: "held by pods, use not measured",
    Step.IN_USE: "in good use",
}
"""A short phrase for each step."""
NO_WASTE = Step.NOT_READABLE, Step.STARTING, Step.NOT_MEASURED, Step.IN_USE
"""Steps that are no waste, as far as is known."""


@dataclass(frozen=True, slots=True)
class Part:
    """GPUs of a node in one step: held by the ``pod``, or idle because of this pending pod; "" for neither.
    ``why``: a clause."""

    step: Step
    gpus: float
    node: str
    pod: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """``parts`` add up to the ``installed`` GPUs. ``notes``: what is not counted."""

    parts: tuple[Part, ...]
    installed: int
    notes: tuple[str, ...] = ()

    def by_step(self) -> dict[Step, float]:
        return gpus_by_step(self.parts)

    def titled(self) -> list[tuple[str, float, bool]]:
        """The steps with GPUs in order: title, GPUs, and whether it is waste."""
        sums = {step: round(gpus, 2) for step, gpus in self.by_step().items()}
        return [(TITLES[step], gpus, step not in NO_WASTE) for step, gpus in sums.items() if gpus]


def gpus_by_step(parts: Iterable[Part]) -> dict[Step, float]:
    """GPUs of each step, also of those with none."""
    sums = dict.fromkeys(Step, 0.0)
    for part in parts:
        sums[part.step] += part.gpus
    return sums


class Obstacle(IntEnum):
    """What keeps a pending pod off a node. ``PIECES``: too few GPUs are free there; ``RULES``: several rules,
    or one that no change of the pod lifts."""

    NOTHING = 0
    CPU_OR_MEMORY = 1
    MIG_LAYOUT = 2
    PIECES = 3
    RULE = 4
    RULES = 5
    OTHER = 6


_STEPS = (Step.STARTING, Step.CPU_OR_MEMORY, Step.MIG_LAYOUT, Step.FRAGMENTED, Step.RULE, Step.RULE)
"""By obstacle."""
_OBSTACLES = np.full(max(Reason) + 1, Obstacle.OTHER, np.int8)
_OBSTACLES[[Reason.FITS, Reason.PLUGIN_BUSY]] = Obstacle.NOTHING
_OBSTACLES[[Reason.NO_FREE_CPU, Reason.NO_FREE_MEMORY, Reason.MISALIGNED]] = Obstacle.CPU_OR_MEMORY
_OBSTACLES[[Reason.NO_FREE_GPUS, Reason.FRAGMENTED, Reason.NO_FREE_PEERS, Reason.SHARES_USED_UP]] = (
    Obstacle.PIECES
)
_CLOSED = Reason.REPARTITIONING, Reason.LAYOUT_CHANGES, Reason.LEAVING, Reason.NOT_IN_SHARD
_BY_LAYOUT = Reason.NO_SUCH_RESOURCE, Reason.NO_FREE_GPUS


@dataclass(frozen=True, slots=True)
class Demand:
    """Pending pods that start together, or one: ``copies`` of ``gpus``, CPU (milli) and memory (bytes).
    ``obstacles`` (N,) of the nodes, ``why``: in words, by row. ``held``: why kube-scheduler does not try
    them, "" if it does; ``node``: row that is reserved for them, -1 for none."""

    pod: str
    gpus: float
    cpu: int
    memory: int
    obstacles: npt.NDArray[np.int8]
    why: dict[int, str]
    held: str = ""
    copies: int = 1
    node: int = -1

    @property
    def total(self) -> float:
        return self.gpus * self.copies


class Claims:
    """Claims of pending pods on ``free`` GPUs, CPU (milli) and memory (bytes), (N,) each."""

    def __init__(self, free: Amounts, cpu: Amounts, memory: Amounts) -> None:
        self.free, self._cpu, self._memory = free, cpu, memory

    def of(self, demands: Sequence[Demand]) -> Iterator[Part | None]:
        """The claims of demands in kube-scheduler's order, with the row as node: all demands without an
        obstacle first, then those with the smallest one. The last obstacle that must go is the cause. Yields
        None where nothing is claimed."""
        rest = [demand for demand in demands if demand.node < 0]
        for demand in demands:
            if demand.node >= 0:
                yield from self._claim(Step.RESERVED, [(demand.node, demand.total)], demand)
        in_pieces = set[int]()  # demands that are alike have the same obstacles
        for level, step in enumerate(_STEPS):
            nowhere, later = set[tuple[int, int]](), list[Demand]()
            for demand in rest:
                alike = id(demand.obstacles), demand.copies
                taken = [] if alike in nowhere or (demand.held and level) else self._enough(demand, level)
                if not taken:
                    nowhere.add(alike)
                    later.append(demand)
                    yield None
                in_pieces |= {alike[0]} if taken and step is Step.FRAGMENTED else set()
                yield from self._claim(Step.GATED if demand.held else step, taken, demand)
            rest = later
        for demand in rest:
            if not demand.held:
                yield from self._remains(demand, in_pieces)

    def _remains(self, demand: Demand, in_pieces: Collection[int]) -> Iterator[Part]:
        """GPUs that are left, too few for the demand even without obstacles: by its obstacle on their node;
        of a demand whose like is served ``in_pieces`` they are more pieces."""
        pieces, missing = (Obstacle.NOTHING, Obstacle.PIECES), demand.total
        steps: dict[Sequence[Obstacle], Step] = {(Obstacle(n),): step for n, step in enumerate(_STEPS)}
        first = Step.FRAGMENTED if id(demand.obstacles) in in_pieces else Step.TOO_FEW
        for among, step in ({pieces: first} | steps).items():
            taken = self._pieces(demand, missing, {}, among)
            missing -= sum(gpus for _, gpus in taken)
            yield from self._claim(step, taken, demand)

    def _enough(self, demand: Demand, level: int) -> list[tuple[int, float]]:
        """Rows with GPUs for all copies, if obstacles up to the level went; none if there are too few."""
        taken, missing = dict[int, float](), demand.copies
        for obstacle in range(level + 1):
            if obstacle == Obstacle.PIECES:
                pieces = self._pieces(demand, demand.gpus * missing, taken)
                if sum(gpus for _, gpus in pieces) >= demand.gpus * missing - _LEAST:
                    return [*taken.items(), *pieces]
                continue
            copies = self._copies(demand, obstacle)
            for row in sorted(np.flatnonzero(copies > 0).tolist(), key=lambda row: self.free[row]):
                count = min(int(copies[row]), missing)
                taken[row] = taken.get(row, 0.0) + count * demand.gpus
                missing -= count
                if not missing:
                    return list(taken.items())
        return []

    def _copies(self, demand: Demand, obstacle: int) -> Amounts:
        """(N,) number of copies that rows with this obstacle alone would take."""
        copies = np.floor((self.free + _LEAST) / demand.gpus) * (demand.obstacles == obstacle)
        if obstacle in (Obstacle.NOTHING, Obstacle.CPU_OR_MEMORY):  # pods that start use up the rest
            fits = np.floor((self.free + _LEAST) / demand.gpus) * (demand.obstacles == Obstacle.NOTHING)
            beside = np.minimum(self._cpu // max(demand.cpu, 1), self._memory // max(demand.memory, 1))
            with_both = np.clip(beside, 0, fits)
            copies = with_both if obstacle == Obstacle.NOTHING else copies + fits - with_both
        return np.asarray(copies, np.float64)

    def _pieces(
        self,
        demand: Demand,
        gpus: float,
        taken: Mapping[int, float],
        among: Sequence[Obstacle] = (Obstacle.NOTHING, Obstacle.PIECES),
    ) -> list[tuple[int, float]]:
        """Free GPUs of nodes with these obstacles, without those ``taken``: the largest pieces first, up to
        ``gpus``."""
        left, pieces = self.free.copy(), list[tuple[int, float]]()
        for row, amount in taken.items():
            left[row] -= amount
        rows = np.flatnonzero(np.isin(demand.obstacles, among) & (left > _LEAST))
        for row in rows[np.argsort(-left[rows], kind="stable")].tolist():
            if gpus > _LEAST:
                pieces.append((row, min(float(left[row]), gpus)))
                gpus -= pieces[-1][1]
        return pieces

    def _claim(self, step: Step, taken: Iterable[tuple[int, float]], demand: Demand) -> Iterator[Part]:
        for row, wanted in taken:
            gpus = min(wanted, float(self.free[row]))
            self.free[row] -= gpus
            self._cpu[row] -= gpus / demand.gpus * demand.cpu
            self._memory[row] -= gpus / demand.gpus * demand.memory
            if gpus > _LEAST:
                why = "which is nominated" if step is Step.RESERVED else demand.held or demand.why[row]
                yield Part(step, gpus, str(row), demand.pod, why)


async def gpu_use(state: State, census: CensusTaker) -> GpuUse:
    """The use of all GPUs. Other tasks run in between, so it shows no single moment of a busy cluster."""
    await census.take()
    counts = {name: count for name in sorted(state.nodes) if (count := census.node(name))}
    parts, arrays, names = list[Part](), state.fleet.arrays, dict[int, str]()
    free = np.zeros(arrays.capacity)
    cpu, memory = arrays.free_cpu.astype(np.float64), arrays.free_memory.astype(np.float64)
    async for name, count in with_turns(counts.items(), _AT_ONCE):
        if name in state.nodes and (row := state.fleet.rows[name]) < free.size:
            of_node = list(_parts_of(state, name, count))
            free[row] = max(count.gpus - sum(part.gpus for part in of_node), 0.0)
            names[row], parts = name, parts + of_node
    demands, notes = await _demands(
        state, {names[row]: row for row in names if free[row] > _LEAST}, free.size
    )
    async for part in with_turns(Claims(free, cpu, memory).of(demands), 1):
        parts += [replace(part, node=names[int(part.node)])] if part else []
    parts += [Part(Step.IDLE, float(free[row]), name) for row, name in names.items() if free[row] > _LEAST]
    if unknown := [name for name, count in counts.items() if not count.gpus]:
        notes.append(f"{many(len(unknown), 'node')} with an unknown number of GPUs, such as {unknown[0]}")
    installed = sum(counts[name].gpus for name in names.values())
    return GpuUse(tuple(parts), installed, (*state.unlisted_texts(), *notes))


def _parts_of(state: State, name: str, count: NodeCount) -> Iterator[Part]:
    """The GPUs of a node that are not free: held by pods, closed, broken or not readable."""
    if is_down(state.nodes[name]):
        yield Part(Step.CLOSED, count.gpus, name, why=state.nodes.closed[name])
        return
    held = min(count.used, count.gpus)
    for key, gpus in _holders(state, name, held):
        reserves = (pod := state.pods.get(key)) is not None and reserves_only(pod)
        why = "a placeholder pod" if reserves else ""
        yield Part(Step.RESERVED if reserves else Step.NOT_MEASURED, gpus, name, key, why)
    left = count.gpus - held
    is_readable = "Pod" not in state.unlisted
    if count.on_offer and is_readable:
        left -= min(left, count.free)
    if left > _LEAST:
        reason, step = closed_reason(state.fleet.arrays, state.fleet.rows[name]), Step.BROKEN
        on_node = state.devices.on_node(name, state.nodes.labels_of(name))
        unread = on_node.has_pools and (on_node.holdings_unknown or state.devices.any_device_may_be_held)
        if unread or reason is Reason.UNREADABLE or not is_readable:
            step = Step.NOT_READABLE
        elif not count.on_offer and (name in state.nodes.closed or reason in _CLOSED):
            step = Step.CLOSED
        texts = state.nodes.problems.get(name), closed_text(state, name), unoffered_note(state, name)
        why = next(filter(None, texts), "") if is_readable else "pods cannot be listed"
        yield Part(step, left, name, why=shorten(why))


def _holders(state: State, name: str, held: float) -> Iterator[tuple[str, float]]:
    """The pods that hold GPUs of a node, "" if they are unknown, in proportion to what they hold."""
    row, gpus = state.fleet.rows[name], defaultdict[str, float](float)
    for key in state.allocations.pods_on(name):
        pod = state.pods.get(key)
        taken = [part for part in state.pods.allocations_of(pod) if part.row == row] if pod else ()
        if any(part.has_gpus for part in taken):
            gpus[key] = gpus_held(state.fleet, taken)
    hidden = unoffered(state, name)
    for key, count in hidden.held if hidden else ():
        gpus.setdefault(key, float(count))
    total = sum(gpus.values())
    if held > _LEAST:
        yield from ((key, held * of / total) for key, of in gpus.items() if of > 0) if total else [("", held)]


async def _demands(state: State, nodes: Mapping[str, int], rows: int) -> tuple[list[Demand], list[str]]:
    """The demands of all pending pods with a known number of GPUs, and what is left out. ``nodes`` with free
    GPUs, each with its row, of so many ``rows``."""
    pods = [*pods_waiting_for_devices(state), *pods_waiting_for_devices(state, gated=True)]
    found, kinds, skipped = dict[object, Demand](), dict[object, Demand | None](), Counter[str]()
    requests = {pod.key: state.request_or_none(pod) for pod in pods}
    asked = {name for request in requests.values() if request for name, _ in request.devices}
    layouts = _Layouts(state, {name for name in asked if name.startswith(MIG_PREFIX)})
    async for pod in with_turns(pods, _AT_ONCE):
        request = requests[pod.key]
        if request is None:
            skipped[_NO_NUMBER] += 1
            continue
        rules = pod.scheduling_constraints, pod.volume_claims, bool(pod.gates)
        kind = request, pod.spec, rules, pod.key if pod.depends_on_pods else ""
        if kind not in kinds:
            is_evaluated = len(kinds) < _KINDS
            kinds[kind] = await _demand(state, pod, request, nodes, rows, layouts) if is_evaluated else None
        if (known := kinds[kind]) is None or known.gpus <= _LEAST:
            skipped[_NO_NUMBER if known else f"beyond the first {_KINDS} kinds of pods"] += 1
            continue
        gang = state.gangs.gang_of(pod) if state.gang_check else None
        together = (gang.key, kind) if gang and gang.to_place > 1 else pod.key
        if before := found.get(together):
            found[together] = replace(before, copies=before.copies + 1)
        else:
            found[together] = replace(
                known, pod=shorten(pod.key, KEY), node=nodes.get(pod.nominated_node, -1)
            )
    return list(found.values()), [f"{many(count, 'pending pod')} {why}" for why, count in skipped.items()]


def gpus_asked_by(state: State, request: Request) -> float:
    """GPUs that the request takes; of MIG instances that no node offers yet, by their slices."""
    offered = state.fleet.names.resources
    new = any(name.startswith(MIG_PREFIX) and name not in offered for name, _ in request.devices)
    return gpus_asked(request) if new else gpus_of(state.fleet, request)


async def _demand(
    state: State, pod: Pod, request: Request, nodes: Mapping[str, int], rows: int, layouts: _Layouts
) -> Demand:
    """The demand of one pod, with what keeps it off each of these nodes."""
    obstacles, why = np.full(rows, Obstacle.OTHER, np.int8), dict[int, str]()
    held = str(gates_said(pod)) if pod.gates else state.gangs.never_tried(pod)
    new, every = replace(pod, gates=()), NodeNames.of(nodes)
    await search_devices(state, new, every)
    evaluation, candidates = evaluate(state, new, request, every), Candidates(state, new)
    codes = evaluation.codes
    known = hosts_when_empty(state, state.fleet, evaluation) | evaluation.certain
    found = np.where(known, _OBSTACLES[codes], np.int8(Obstacle.OTHER)).tolist()
    claimed = 0.0
    async for index, (name, row) in with_turns(enumerate(nodes.items()), _AT_ONCE):
        obstacle, why[row], node = found[index], Reason(int(codes[index])).text, state.nodes.get(name)
        if node is None:
            continue
        if evaluation.forecasts:
            forecast = evaluation.forecasts[index]
            claimed = max(claimed, _gpus_among(state, node, forecast.devices))
            if forecast.problem:
                why[row], obstacle = forecast.problem, Obstacle.OTHER
        if codes[index] in _BY_LAYOUT and layouts.could_serve(node, request):
            obstacle = Obstacle.MIG_LAYOUT
        if rejection := candidates.rejection(node):
            why[row] = shorten(str(rejection.said))
            is_one = len(candidates.rules_against(node)) == 1
            alone = obstacle == Obstacle.NOTHING and rejection.rule is not Rule.NOT_OFFERED
            obstacle = (Obstacle.RULE if is_one else Obstacle.RULES) if alone else Obstacle.OTHER
        elif lack := candidates.lack_on(node):
            why[row] = lack.reason
            alone = obstacle <= Obstacle.CPU_OR_MEMORY and lack.asked <= lack.total
            obstacle = Obstacle.CPU_OR_MEMORY if alone else Obstacle.OTHER
        obstacles[row] = obstacle
    size = gpus_asked_by(state, request) + claimed
    return Demand(pod.key, size, request.cpu_milli, request.memory_bytes, obstacles, why, held)


def _gpus_among(state: State, node: Node, devices: Sequence[DeviceId]) -> float:
    """The GPUs, or fractions of them, among DRA devices of a node."""
    on_node = state.devices.on_node(node.name, node.labels)
    gpus = on_node.gpus().items() if devices else ()
    return sum(fraction for index, (_, fraction, _) in gpus if on_node.device_id(index) in devices)


class _Layouts:
    """What nodes would offer with other MIG layouts. ``resources``: MIG instances that pods request."""

    def __init__(self, state: State, resources: Iterable[str]) -> None:
        self._state, self._resources = state, frozenset(resources)
        self._of_node: dict[str, list[Mapping[str, int]]] = {}

    def could_serve(self, node: Node, request: Request) -> bool:
        """Whether the node would offer the devices of the request with another layout."""
        asked = request.devices if not request.shares else ()
        layouts = self._layouts_of(node) if asked else ()
        return any(all(offers.get(of, 0) >= count for of, count in asked) for offers in layouts)

    def _layouts_of(self, node: Node) -> list[Mapping[str, int]]:
        if node.name not in self._of_node:

            def possible(of: Node, spec: NodeSpec) -> list[NodeLayout]:
                return possible_layouts(self._state, of, spec, self._resources)

            found = candidate(self._state, node, possible)
            self._of_node[node.name] = [layout.devices for layout in found.others] if found else []
        return self._of_node[node.name]
