"""The fleet in one table: what each node has left, and which pods wait for what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.explain.closed import closed_rows, closed_text
from extender.explain.pod import Candidates, Refusal, explain
from extender.explain.unoffered import not_offered, unoffered
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten
from extender.verbs.evaluate import wants_devices
from packing.fleet.stranded import on_offer, whole_gpus
from packing.model.request import WHOLE

_UNREAD = 10
"""Objects that cannot be read and are named."""
_CLAIMS = 4


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node with GPUs; 0 ``gpus`` where it is not known how many, ``not_offered`` those that it has beside
    them. ``used_percent``: the larger part of compute and memory that is in use, of each GPU; ``free_gpus``
    is the sum of what is left of their compute, ``used_gpus`` of what is in use, ``whole`` how many are
    entirely free. ``note``: why the node takes nothing, and whether it is a spot node; ``problem``: what is
    not known of it. Where it is not ``on_offer``, it takes no pods, and nothing of it counts as free in the
    sums."""

    node: str
    model: str
    gpus: int
    whole: int
    free_gpus: float
    free_memory_mib: int
    memory_mib: int
    free_cpu_milli: int
    free_host_memory_mib: int
    pods: int
    used_percent: tuple[int, ...]
    islands: tuple[int, ...]
    note: str
    on_offer: bool = True
    used_gpus: float = 0.0
    problem: str = ""
    not_offered: int = 0


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """A pod that waits for a GPU. ``created`` in Unix seconds; ``why`` is the reason that most nodes give,
    and ``help`` what it lacks on the nearest node of these and what would help, "" where that is not
    known."""

    pod: str
    queue: str
    priority: int
    asks: dict[str, int | str]
    created: float
    why: str
    lacks: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all nodes with GPUs: ``gpus``, also those not on offer, and ``used`` of them by pods.
    ``closed_nodes`` take no pods, and ``closed_gpus`` are theirs; ``not_offered``: GPUs that other nodes do
    not offer. ``uncounted`` nodes have GPUs, and it is not known how many. ``whole`` GPUs and
    ``whole_nodes`` are on offer and entirely free."""

    nodes: int
    gpus: int
    used: float
    whole: int
    whole_nodes: int
    closed_nodes: int
    closed_gpus: int
    not_offered: int
    uncounted: int


def totals(nodes: Collection[NodeLine]) -> Totals:
    """The sums over nodes."""
    closed = [line for line in nodes if not line.on_offer]
    open = [line for line in nodes if line.on_offer]
    return Totals(
        nodes=len(nodes),
        gpus=sum(line.gpus + line.not_offered for line in nodes),
        used=sum(line.used_gpus for line in nodes),
        whole=sum(line.whole for line in open),
        whole_nodes=sum(0 < line.gpus == line.whole for line in open),
        closed_nodes=len(closed),
        closed_gpus=sum(line.gpus + line.not_offered for line in closed),
        not_offered=sum(line.not_offered for line in open),
        uncounted=sum(not line.gpus for line in nodes),
    )


@dataclass(frozen=True, slots=True)
class Overview:
    """``more_waiting``: pods that wait and are not in ``waiting``, which has the most urgent ones.
    ``unread``: objects beside nodes and pods, such as claims, of which something cannot be read."""

    nodes: tuple[NodeLine, ...]
    waiting: tuple[WaitingLine, ...]
    more_waiting: int
    unread: tuple[str, ...] = ()


def overview(state: State, most_waiting: int) -> Overview:
    """All nodes with GPUs by name, and at most so many waiting pods, the most urgent first."""
    lines = node_lines(state, sorted(state.fleet.rows))
    waiting = waiting_pods(state)
    shown = tuple(waiting_line(state, pod) for pod in waiting[:most_waiting])
    return Overview(tuple(lines), shown, len(waiting) - len(shown), unread_objects(state))


def unread_objects(state: State) -> tuple[str, ...]:
    """Claims, slices and classes of which something cannot be read, and what."""
    problems = islice(sorted(state.devices.problems.items()), _UNREAD)
    return tuple(f"{shorten(name, KEY)}: {shorten(text)}" for name, text in problems)


def node_lines(state: State, names: Iterable[str]) -> Iterator[NodeLine]:
    """These nodes, without those that are not known or have no GPUs."""
    fleet = state.fleet
    whole, offered = whole_gpus(fleet.arrays).sum(axis=0), on_offer(fleet, closed_rows(state))
    for name in names:
        row = fleet.rows.get(name)
        if row is not None and (
            line := _node(state, name, row, int(whole[row]), on_offer=bool(offered[row]))
        ):
            yield line


def _node(state: State, name: str, row: int, whole: int, *, on_offer: bool) -> NodeLine | None:
    arrays, spec = state.fleet.arrays, state.fleet.specs[row]
    if spec is None or not spec.gpus:
        return _unoffered(state, name, row)
    gpus = len(spec.gpus)
    compute, memory = arrays.compute[:gpus, row], arrays.memory[:gpus, row]
    capacity, memory_capacity = arrays.compute_capacity[:gpus, row], arrays.memory_capacity[:gpus, row]
    of_memory = np.where(memory_capacity > 0, memory / np.maximum(memory_capacity, 1), 1)  # 1: not known
    left = np.minimum(compute / np.maximum(capacity, 1), of_memory)
    notes = "spot" * spec.spot, closed_text(state, name, row), not_offered(state, name)
    return NodeLine(
        node=name,
        model=spec.model or spec.product,
        gpus=gpus,
        whole=whole,
        free_gpus=round(float(np.maximum(compute, 0).sum()) / WHOLE, 3),
        free_memory_mib=int(np.maximum(memory, 0).sum()),
        memory_mib=sum(gpu.memory_mib for gpu in spec.gpus),
        free_cpu_milli=int(arrays.free_cpu[row]),
        free_host_memory_mib=int(arrays.free_memory[row]) >> 20,
        pods=len(state.allocations.pods_on(name)),
        used_percent=tuple(round(100 * (1 - part)) for part in np.clip(left, 0, 1).tolist()),
        islands=tuple(len(island) for island in spec.islands),
        note="; ".join(filter(None, notes)),
        on_offer=on_offer,
        used_gpus=round(float((capacity - np.maximum(compute, 0)).sum()) / WHOLE, 3),
        problem=shorten(state.nodes.problems.get(name, "")),
        not_offered=state.nodes.unoffered.get(name, 0),
    )


def _unoffered(state: State, name: str, row: int) -> NodeLine | None:
    found = unoffered(state, name)
    if found is None:
        return None
    arrays = state.fleet.arrays
    return NodeLine(
        node=name,
        model=shorten(found.model, KEY),
        gpus=found.gpus,
        whole=found.free,
        free_gpus=float(found.free),
        free_memory_mib=0,
        memory_mib=0,
        free_cpu_milli=int(arrays.free_cpu[row]),
        free_host_memory_mib=int(arrays.free_memory[row]) >> 20,
        pods=len(state.allocations.pods_on(name)),
        used_percent=(),
        islands=(),
        note="; ".join(filter(None, (found.closed, found.note))),
        on_offer=found.claims and not found.closed,
        used_gpus=float(found.used),
        problem=shorten(state.nodes.problems.get(name, "")),
    )


def waiting_pods(state: State) -> list[Pod]:
    """The pods that wait for room and ask for a GPU or for devices of DRA, also those whose request cannot be
    read, the most urgent first. Those with scheduling gates do not wait for room."""
    pods = (state.pods[key] for key in state.pods.waiting)
    pods = (pod for pod in pods if not (pod.deleting or pod.gates or state.pods.is_bound(pod.uid)))
    found = [pod for pod in pods if _waits_for_device(state, pod)]
    return sorted(found, key=lambda pod: (-pod.priority, pod.created, pod.key))


def _waits_for_device(state: State, pod: Pod) -> bool:
    try:
        return wants_devices(state, pod, request_of(pod))
    except RequestError:
        return True


def waiting_line(state: State, pod: Pod, candidates: Candidates | None = None) -> WaitingLine:
    """Where the pod fits now, or why not. ``candidates``: as for ``explain``."""
    explanation, refusal = explain(state, pod, candidates, with_hints=False), None
    if explanation.error:
        why = explanation.error
    elif pod.nominated_node:
        why = f"waits for room on {pod.nominated_node}"
    elif explanation.fits:
        why = f"fits on {explanation.fits} nodes"
    elif explanation.unknown:
        why = f"not known: {next(iter(explanation.unknown))}"
    else:
        counts = {one.reason: one.nodes for one in explanation.refusals} or explanation.passed_over
        reason = max(counts, key=lambda one: counts[one], default="")
        why = f"{reason} ({counts[reason]} of {len(state.nodes)} nodes)" if counts else "there is no node"
        refusal = next((one for one in explanation.refusals if one.reason == reason), None)
    asked = explanation.asks | ({} if explanation.error else _claims(pod))
    queue = state.rights.queues.name_of(pod)
    lacks = _lacks(refusal) if refusal else ""
    advice = refusal.advice if refusal else ""
    return WaitingLine(
        shorten(pod.key, KEY), queue, pod.priority, asked, pod.created, shorten(why), shorten(lacks), advice
    )


def _claims(pod: Pod) -> dict[str, int | str]:
    """The names of its claims in the pod."""
    names = [shorten(claim.name, KEY) for claim in pod.spec.claims]
    more = f" and {len(names) - _CLAIMS} more" if len(names) > _CLAIMS else ""
    return {"claims": ", ".join(names[:_CLAIMS]) + more} if names else {}


def _lacks(refusal: Refusal) -> str:
    """What the pod lacks on the node that lacks least."""
    lacks = "; ".join(need.text for need in refusal.lacks)
    return lacks and f"{refusal.nearest}: {lacks}"
