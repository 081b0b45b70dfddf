"""Mixed fleets: whole GPUs of several models, MIG instances, time slices and spot nodes side by side.

Fleets and pods are drawn at random, as Kubernetes objects, and every pod is placed by the code of the verbs.
``static``: pods are on random nodes, and are placed again, as with ``stowage replay --snapshot``.
``departures``: pods arrive and end, and those that fit nowhere are dropped. ``moves``: other pods are moved
for pods that fit nowhere, as recommended by ``consolidation: recommend``, simulated on the engine.

    python -m bench.packing.mixed_fleets static [--seeds 0-19] [--allow-downgrade] [--program]
    python -m bench.packing.mixed_fleets moves [--seeds 0-19]
    python -m bench.packing.mixed_fleets departures [--seeds 0-9] [--loads 0.8,0.95,1.1] [--select 0.3]

``--separate-gpus``: the setting, as in the service ``prefer`` by default.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, get_args

import numpy as np

from bench.packing.policies import POLICIES
from bench.packing.repack_bound import most_whole_gpus_free
from bench.packing.seeds import seed_range
from extender.cluster.factory import state_of
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.node_filter import node_requirement
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.protocol.node_names import NodeNames
from extender.replay.repack import SnapshotReplay
from extender.replay.steps import Step, carry_out
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.trial.cluster_pods import trial_of
from extender.trial.room_by_moves import Move, RoomByMoves, room_by_moves
from extender.trial.trial import Item, Trial
from extender.verbs.evaluate import evaluate
from packing.fleet.arrays import WHOLE_GPU
from packing.fleet.downgrade import device_on
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import SeparateGpus
from packing.plan.move_rule import MoveRule
from packing.policies.upkeep import Arrivals

RIVALS = ("best-fit", "fgd", "least-allocated", "most-allocated")
GPU, MIG, SPOT = "nvidia.com/gpu", "nvidia.com/mig-", "cloud.google.com/gke-spot"
PODS, WARM = 3_000, 1_000
"""Number of pods that arrive in ``departures``, and of those that are not counted."""
_JOBS = {1: 0.55, 2: 0.18, 4: 0.14, 8: 0.13}
"""GPUs of a job, and their frequency."""
_SLICES = {"1g.10gb": 0.6, "2g.20gb": 0.2, "3g.40gb": 0.2}
_LATER = 2e9
"""Unix seconds: a time at which the pods of a snapshot have run for long."""
_BACKFILL = 0.25
"""Fraction of the jobs that may run on spot nodes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes of one kind: their number (from, to), CPU, the GPU's product label and memory, the number of
    GPUs, and the advertised devices. ``shared``: replicas of one GPU. ``single``: a MIG profile under the
    resource name of GPUs."""

    number: tuple[int, int]
    cpu: int
    product: str
    mib: int
    gpus: int
    shared: int = 1
    single: tuple[str, int] | None = None
    mixed: Mapping[str, int] | None = None
    spot: bool = False

    @property
    def devices(self) -> dict[str, int]:
        if self.mixed:
            return {GPU: 0, **{MIG + name: count for name, count in self.mixed.items()}}
        return {GPU: self.single[1] if self.single else self.gpus * self.shared}

    def node(self, name: str) -> dict[str, Any]:
        product = self.product + (f"-MIG-{self.single[0]}" if self.single else "")
        labels = {
            "kubernetes.io/hostname": name,
            "nvidia.com/gpu.product": product + ("-SHARED" if self.shared > 1 else ""),
            "nvidia.com/gpu.count": str(self.single[1] if self.single else self.gpus),
            "nvidia.com/gpu.memory": str(self.mib),
            "nvidia.com/gpu.replicas": str(self.shared),
            "nvidia.com/mig.strategy": "single" if self.single else "mixed",
        }
        if self.spot:
            labels[SPOT] = "true"
        amounts = {"cpu": self.cpu, "memory": "1000Gi", "pods": 110, **self.devices}
        taints = [{"key": SPOT, "value": "true", "effect": "NoSchedule"}] if self.spot else []
        return {
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
            "status": {"allocatable": {key: str(amount) for key, amount in amounts.items()}},
        }


KINDS = {
    "h100": Kind((4, 12), 192, "NVIDIA-H100-80GB-HBM3", 81_559, 8),
    "a100": Kind((2, 6), 96, "NVIDIA-A100-SXM4-80GB", 81_920, 8),
    "mig": Kind(
        (2, 5), 96, "NVIDIA-A100-SXM4-80GB", 81_920, 8, mixed={"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}
    ),
    "single": Kind((1, 4), 96, "NVIDIA-A100-SXM4-80GB", 9_856, 8, single=("1g.10gb", 56)),
    "halves": Kind((1, 4), 96, "NVIDIA-H100-80GB-HBM3", 40_320, 8, single=("3g.40gb", 16)),
    "l40s": Kind((2, 8), 96, "NVIDIA-L40S", 46_068, 4, shared=4),
    "twins": Kind((1, 5), 96, "NVIDIA-L40S", 46_068, 4, shared=2),
    "tenths": Kind((1, 4), 96, "NVIDIA-L4", 23_034, 4, shared=10),
    "l4": Kind((2, 6), 48, "NVIDIA-L4", 23_034, 4),
    "t4": Kind((2, 6), 16, "Tesla-T4", 15_360, 1),
    "spot": Kind((2, 6), 96, "NVIDIA-A100-SXM4-40GB", 40_960, 8, spot=True),
}
"""Every fleet has H100 nodes, and each of the other kinds with a probability of one half."""


class MixedFleet:
    """A fleet, and an endless stream of pods. ``select``: the fraction of the pods that name a product.
    ``separate``: the setting ``separate_gpus``."""

    def __init__(self, seed: int, select: float = 0.0, separate: SeparateGpus = "prefer") -> None:
        self._rng = rng = np.random.default_rng(seed)
        self._select, self._separate = select, separate
        kinds = {name: kind for name, kind in KINDS.items() if name == "h100" or rng.random() < 0.5}
        self.nodes = [
            kind.node(f"{name}-{n}")
            for name, kind in kinds.items()
            for n in range(rng.integers(kind.number[0], kind.number[1] + 1))
        ]
        self._products = [
            node["metadata"]["labels"]["nvidia.com/gpu.product"]
            for node in self.nodes
            if node["status"]["allocatable"][GPU] != "0"
        ]
        self._has_mig, self._has_spot = "mig" in kinds, "spot" in kinds
        self._number = 0

    def state(self) -> State:
        """The nodes, without pods."""
        state = state_of(Settings(separate_gpus=self._separate))
        for events in SnapshotSource(_snapshot(self.nodes), "").list_once():
            state.apply(events)
        return state

    def pods(self, number: int) -> list[Item]:
        """The next pods in order of arrival. Their ``rows`` are not known yet."""
        manifests = [self._pod() for _ in range(number)]
        return [Item(p.key, request_of(p), np.zeros(0, bool), p) for p in _snapshot(manifests).pods.values()]

    def _pod(self) -> dict[str, Any]:
        rng, self._number = self._rng, self._number + 1
        if self._has_mig and rng.random() < 0.3:
            asked, gpus = MIG + _drawn(rng, _SLICES), 1
        else:
            asked, gpus = GPU, int(_drawn(rng, _JOBS))
        cpu = int(gpus * rng.integers(2, 9))
        requests = {"cpu": str(cpu), "memory": f"{8 * cpu}Gi", asked: str(gpus)}
        backfill = self._has_spot and rng.random() < _BACKFILL
        selector = {}
        if asked == GPU and not backfill and rng.random() < self._select:
            selector = {"nvidia.com/gpu.product": str(rng.choice(self._products))}
        name = f"p{self._number}"
        return {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "ml",
                "uid": name,
                "labels": {"stowage.dev/queue": "backfill" if backfill else "interactive"},
                "ownerReferences": [{"kind": "Job", "name": name, "uid": name, "controller": True}],
            },
            "spec": {
                "nodeSelector": selector,
                "tolerations": [{"key": SPOT, "operator": "Exists"}] if backfill else [],
                "containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}],
            },
        }


def _snapshot(items: Sequence[Mapping[str, Any]]) -> Snapshot:
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": items}), "")
    assert not snapshot.problems
    return snapshot


def _drawn(rng: np.random.Generator, frequency: Mapping[int, float] | Mapping[str, float]) -> str:
    """One of the names or numbers, as text."""
    return str(rng.choice(list(map(str, frequency)), p=list(frequency.values())))


def scattered(fleet: MixedFleet, load: float, seed: int) -> State:
    """The fleet with pods on random nodes, until ``load`` of its GPUs is allocated."""
    rng, state = np.random.default_rng(seed), fleet.state()
    permitted, arrays = PermittedRows(state), state.fleet.arrays
    trial = Trial(state, permitted.open)
    total = float((arrays.compute_capacity > 0).sum())
    for item in fleet.pods(1000):
        item = replace(item, rows=permitted.rows_that_accept(item.pod))
        codes, _ = trial.evaluate(item)
        if (fits := np.flatnonzero((codes == 0) & item.rows)).size:
            trial.place_on(item, int(rng.choice(fits)))
        if arrays.free_gpu() <= (1 - load) * total:
            break
    return state


def static(
    seed: int, *, allow_downgrade: bool, program: bool, separate: SeparateGpus = "prefer"
) -> dict[str, tuple[int, int]]:
    """Free whole GPUs and free nodes, by policy."""
    state = scattered(MixedFleet(seed, separate=separate), 0.45, seed)
    replay = SnapshotReplay(state, str(seed), allow_downgrade=allow_downgrade)
    rows = [replay.row("today")]
    for name in ("inventory", *RIVALS):
        rows.append(replay.repacked(name, partial(POLICIES[name], filling=True), lambda part: None))
    found = {row["policy"]: (row["whole_gpus_free"], row["whole_nodes_free"]) for row in rows}
    if program:
        found["program"] = most_whole_gpus_free(replay, by_node=True), 0
    return found


@dataclass(slots=True)
class Carried:
    """Pods that fit nowhere, those for which a few moves made room, and these moves. ``problems``: failures,
    ``weaker``: pods that were allocated a weaker device."""

    waiting: int = 0
    helped: int = 0
    moves: int = 0
    weaker: int = 0
    problems: list[str] = field(default_factory=list)


def moves(seed: int, load: float, arrivals: int = 100, separate: SeparateGpus = "prefer") -> Carried:
    """The moves for the next pods, on the fleet with pods on random nodes."""
    fleet = MixedFleet(seed, separate=separate)
    return moves_for(scattered(fleet, load, seed), (item.pod for item in fleet.pods(arrivals)))


def moves_for(state: State, pods: Iterable[Pod]) -> Carried:
    """The moves for each pod that fits nowhere, carried out one by one."""
    found = Carried()
    for pod in pods:
        rows = PermittedRows(state).rows_that_accept(pod)
        names = [name for name, row in state.fleet.rows.items() if rows[row]]
        if evaluate(state, pod, request_of(pod), NodeNames.of(names)).certain.any():
            continue
        found.waiting += 1
        state.apply([Upserted(pod)])
        if room := _room(state, pod, names):
            found.helped += 1
            found.moves += len(room.moves)
            found.weaker += sum(_is_weaker(state.fleet, move) for move in room.moves)
            found.problems += carry_out(trial_of(state, real_moves=True), _steps(room)).problems
        else:
            state.apply([Deleted("Pod", pod.key)])
    return found


def _room(state: State, pod: Pod, names: Sequence[str]) -> RoomByMoves | None:
    return room_by_moves(state, [pod], lambda one: names, _LATER, most=MoveRule().moves)


def _is_weaker(fleet: Fleet, move: Move) -> bool:
    request, nodes = request_of(move.pod), (move.pod.node_name, move.target)
    had, gets = (device_on(fleet, fleet.rows[node], request) for node in nodes)
    return bool(had and gets and gets.is_weaker_than(had))


def _steps(room: RoomByMoves) -> list[Step]:
    """The last move first: each target is free before any pod is moved."""
    steps = list[Step]()
    for move in reversed(room.moves):
        steps += [Step("evict", move.pod.key), Step("place", move.pod.key, move.target)]
    return [*steps, *(Step("place", one.key, node) for one, node in room.nodes)]


@dataclass(frozen=True, slots=True)
class Placed:
    """Results for the pods that count, in percent: placed GPU-hours, by GPU and by value, and dropped 8-GPU
    jobs."""

    gpu_hours: float
    worth: float
    large_dropped: float


def departures(
    seed: int, policy: str, load: float, select: float, separate: SeparateGpus = "prefer"
) -> Placed:
    """Pods arrive and end under a policy, the same for every policy."""
    fleet = MixedFleet(seed, select, separate)
    state = fleet.state()
    items = fleet.pods(PODS)
    sim, permitted = trial_of(state), PermittedRows(state)
    state.policy = POLICIES[policy]()
    arrivals = Arrivals(state.fleet, state.policy)
    items = [replace(item, rows=permitted.rows_that_accept(item.pod)) for item in items]
    sizes = {item.key: _size(sim, item) for item in items}
    rng = np.random.default_rng(seed)
    lifetimes = rng.exponential(_mean_lifetime(state.fleet, items, load), PODS)
    leaving: list[tuple[float, int]] = []
    figures = defaultdict[str, float](float)
    for number, item in enumerate(items):
        while leaving and leaving[0][0] <= number:
            sim.leave(items[heapq.heappop(leaving)[1]])
        arrivals.arrive(replace(item.request, node_set=node_requirement(item.pod)))
        placed = sim.place(item)
        if placed:
            heapq.heappush(leaving, (number + lifetimes[number], number))
        if number < WARM:
            continue
        hours, large = lifetimes[number] * sizes[item.key], item.request.gpus == 8
        figures["asked"] += hours
        figures["large"] += large
        figures["dropped"] += large and not placed
        figures["placed"] += placed * hours
        figures["free"] += _free_worth(sim)
    total = float((state.fleet.arrays.gpu_value * (state.fleet.arrays.compute_capacity > 0)).sum())
    return Placed(
        100 * figures["placed"] / figures["asked"],
        100 * figures["free"] / (PODS - WARM) / total,
        100 * figures["dropped"] / max(1, figures["large"]),
    )


def _mean_lifetime(fleet: Fleet, items: Sequence[Item], load: float) -> float:
    """The mean lifetime, in arrivals, at which the jobs request ``load`` times the whole GPUs, once all
    fractions of GPUs are taken by single-GPU jobs."""
    arrays = fleet.arrays
    devices = arrays.total_devices[fleet.names.resources[GPU]]
    whole = (arrays.offered == WHOLE_GPU).sum(axis=0)
    parts = int(devices[whole == 0].sum())
    asked = [item.request.gpus for item in items if item.request.devices[0][0] == GPU]
    single, several = asked.count(1) / len(items), sum(gpus for gpus in asked if gpus > 1) / len(items)
    return float(min(load * whole.sum() / several, (load * whole.sum() + parts) / (several + single)))


def _size(sim: Trial, item: Item) -> float:
    """GPUs that a pod takes, the mean over its allowed nodes."""
    sizes = gpu_sizes(sim.fleet, item.request)[item.rows]
    return float(sizes[sizes > 0].mean()) if (sizes > 0).any() else 0.0


def _free_worth(sim: Trial) -> float:
    return float((sim.fleet.arrays.free_parts().clip(min=0) * sim.fleet.arrays.gpu_value).sum())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.mixed_fleets")
    add = parser.add_argument
    add("way", choices=("static", "moves", "departures"))
    add("--seeds", type=seed_range, default=None)
    add("--loads", type=lambda text: [float(load) for load in text.split(",")], default=[0.8, 0.95, 1.1])
    add("--select", type=float, default=0.0, help="fraction of the pods that name a product")
    add("--allow-downgrade", action="store_true")
    add("--separate-gpus", choices=get_args(SeparateGpus), default="prefer")
    add("--program", action="store_true", help="static: also the integer program that knows all pods")
    args = parser.parse_args(arguments)
    lines = {"static": _static_lines, "moves": _move_lines, "departures": _departure_lines}[args.way]
    for line in lines(args):
        print(line, flush=True)


def _static_lines(args: argparse.Namespace) -> Iterator[str]:
    found = [
        static(
            seed,
            allow_downgrade=args.allow_downgrade,
            program=args.program,
            separate=args.separate_gpus,
        )
        for seed in args.seeds or range(20)
    ]
    yield "| policy | whole GPUs free | whole nodes free | below the best other by more than 1 |"
    yield "|---|--:|--:|--:|"
    for policy in found[0]:
        gpus, nodes = (fmean(one[policy][i] for one in found) for i in range(2))
        below = sum(one[policy][0] < _best_other(one, policy) - 1 for one in found)
        yield f"| {policy} | {gpus:.1f} | {nodes:.1f} | {below} of {len(found)} |"


def _move_lines(args: argparse.Namespace) -> Iterator[str]:
    yield "| seed | pods that fit nowhere | helped by moves | moves | failed moves | weaker device |"
    yield "|--:|--:|--:|--:|--:|--:|"
    for seed in args.seeds or range(20):
        one = moves(seed, 0.7, separate=args.separate_gpus)
        yield f"| {seed} | {one.waiting} | {one.helped} | {one.moves} | {len(one.problems)} | {one.weaker} |"


def _best_other(found: Mapping[str, tuple[int, int]], policy: str) -> int:
    return max(gpus for name, (gpus, _) in found.items() if name not in (policy, "program", "today"))


def _departure_lines(args: argparse.Namespace) -> Iterator[str]:
    yield "| load | policy | GPU-hours placed, % | free worth, % | 8-GPU jobs dropped, % |"
    yield "|--:|---|--:|--:|--:|"
    for load in args.loads:
        for policy in ("inventory", *RIVALS):
            runs = [
                departures(seed, policy, load, args.select, args.separate_gpus)
                for seed in args.seeds or range(10)
            ]
            cells = [[run.gpu_hours for run in runs], [run.worth for run in runs]]
            cells.append([run.large_dropped for run in runs])
            yield f"| {load} | {policy} | {' | '.join(map(_mean_and_error, cells))} |"


def _mean_and_error(values: Sequence[float]) -> str:
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{fmean(values):.2f} ({error:.2f})"


if __name__ == "__main__":
    main()
