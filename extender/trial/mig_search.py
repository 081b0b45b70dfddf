"""MIG layout changes that let pods start that fit nowhere: for ``stowage plan mig``, ``explain`` and the
evictor.

Each change is tried on a simulation of its node alone, as ``filter`` answers: all other nodes have rejected
the pods. Nodes without pods on their GPUs come first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.dialects.shared_gpus import MIG_PREFIX
from extender.inventory.devices import STATE_LABEL
from extender.inventory.mig_layouts import (
    WHOLE,
    all_layouts,
    can_change,
    is_single,
    named_layouts,
    today,
    with_layout,
)
from extender.inventory.node_state import NodeLayout, mig_change_of, must_stay
from extender.k8s.objects import Event, Listed, Node, Pod, Upserted
from extender.settings import Settings
from extender.trial.cluster_pods import trial_of
from extender.trial.room_by_moves import holders
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import many
from packing.model.gpu_catalog import named_model, parse_profile
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.plan.mig_layouts import Wanted, served

_PRICED, _TRIED, _OF_A_KIND = 64, 12, 3
"""Limits of one search: nodes whose cost is computed, pairs of node and layout that are tried, and pairs of
the same kind."""
_MOST_PODS = 256
"""Maximum pending pods considered, the most urgent first."""
_AT_ONCE = 64
"""Events of a simulated node per step: a few milliseconds."""
_SLICES = 7
"""Compute slices of a GPU of unknown model."""


@dataclass(frozen=True, slots=True)
class ChangeableNode:
    """A node that could have one of the ``others`` instead of its layout of ``today``. ``is_idle``: no pod
    holds its GPUs. ``free``: free CPU milli and memory bytes without the pods that hold its GPUs."""

    node: Node
    spec: NodeSpec
    today: NodeLayout
    others: tuple[NodeLayout, ...]
    is_idle: bool
    free: tuple[float, float]

    @property
    def gpus(self) -> int:
        return len(self.spec.gpus)

    def has_room(self, request: Request) -> bool:
        """Whether there is enough CPU and memory for the request."""
        return request.cpu_milli <= self.free[0] and request.memory_bytes <= self.free[1]


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """A node, its new layout, the pending pods that would start there, in order, the GPUs that they use, and
    the GPU-seconds that the change loses."""

    candidate: ChangeableNode
    layout: NodeLayout
    pods: tuple[Pod, ...]
    gpus: float
    lost: float

    @property
    def name(self) -> str:
        return self.candidate.node.name

    @property
    def price(self) -> float:
        """GPU-seconds lost per GPU that comes into use."""
        return self.lost / self.gpus


def candidate(
    state: State, node: Node, layouts: Callable[[Node, NodeSpec], Sequence[NodeLayout]]
) -> ChangeableNode | None:
    """The node, if it can change. ``layouts``: those that it could have."""
    spec = state.fleet.spec_of(node.name)
    if spec is None or node.name in state.devices.two_ways or not can_change(node, spec):
        return None
    has = today(node, spec)
    # A pod that requests nvidia.com/gpu may need more than an instance (strategy single).
    others = [layout for layout in layouts(node, spec) if not (layout.profile or same(layout, has))]
    row, pods = state.fleet.rows[node.name], holders(state, node.name)
    held = [part for pod in pods for part in state.pods.allocations_of(pod) if part.row == row]
    cpu = float(state.fleet.arrays.free_cpu[row]) + sum(part.cpu_milli for part in held)
    memory = float(state.fleet.arrays.free_memory[row]) + sum(part.memory_bytes for part in held)
    return ChangeableNode(node, spec, has, tuple(others), not pods, (cpu, memory))


def possible_layouts(
    state: State, node: Node, spec: NodeSpec, resources: Collection[str]
) -> list[NodeLayout]:
    """The layouts that the node's MIG manager has by name; without names, all of these MIG ``resources``."""
    known = state.nodes.layouts.on(node.name)
    if known or is_single(node, spec):
        return named_layouts(node, spec, known)
    return all_layouts(spec, resources)


def open_candidate(state: State, node: Node, now: float) -> ChangeableNode | None:
    """The node, if its MIG manager could apply another layout now, and later restore this one. ``now`` in
    Unix seconds."""
    spec, change = state.fleet.spec_of(node.name), mig_change_of(node.annotations)
    if spec is None or spec.blocked is not Reason.FITS or node.name in state.nodes.closed or must_stay(node):
        return None
    if (change and (change.is_active or change.lasts(now))) or node.labels.get(STATE_LABEL) != "success":
        return None
    known = named_layouts(node, spec, state.nodes.layouts.on(node.name))
    found = candidate(state, node, lambda at, of: known)
    back = (layout for layout in known if found and layout.name == found.today.name)
    return found if found and any(same(layout, found.today) for layout in back) else None


def same(layout: NodeLayout, other: NodeLayout) -> bool:
    """Whether a node offers the same devices with both layouts."""
    return (layout.devices, layout.profile) == (other.devices, other.profile)


def gpus_asked(request: Request, model: str | None = None) -> float:
    """Number of GPUs of a request for GPUs or MIG instances, 0 for other requests."""
    known, gpus = named_model(model), 0.0
    slices = known.geometry.compute_slices if known and known.geometry else _SLICES
    for name, count in request.devices:
        profile = parse_profile(name.removeprefix(MIG_PREFIX))
        if name != WHOLE and profile is None:
            return 0.0
        gpus += count * (profile.compute / slices if profile else 1.0)
    return gpus


def asking(
    state: State, pod: Pod, offered: Container[str], most: float = math.inf
) -> Iterator[tuple[Pod, Request]]:
    """The pod with its request, if a layout change could help: it requests only resources that some layout
    offers, because users invent others, and at most ``most`` GPUs."""
    request = None if pod.spec.claims else state.request_or_none(pod)
    if request and all(name in offered for name, _ in request.devices) and 0 < gpus_asked(request) <= most:
        yield pod, request


def most_urgent(asked: Iterable[tuple[Pod, Request]]) -> list[tuple[Pod, Request]]:
    return nsmallest(_MOST_PODS, asked, key=lambda asks: (-asks[0].priority, asks[0].created, asks[0].key))


def shapes(asked: Sequence[tuple[Pod, Request]]) -> list[Wanted]:
    """The pods' requests, with equal ones merged."""
    counts = Counter(request.devices for _, request in asked)
    return [Wanted(devices, gpus_asked(Request(devices=devices)), n) for devices, n in counts.items()]


def possible_changes(
    state: State,
    settings: Settings,
    candidates: Sequence[ChangeableNode],
    pods: Sequence[Pod],
    lost: Callable[[ChangeableNode], float | None],
) -> Iterator[LayoutChange | None]:
    """Changes after which some of these ``pods``, which fit nowhere now, start; the most promising first.
    ``lost``: GPU-seconds that a change of this node loses; None if it must not change. Yields None after each
    step without a result; a step takes a few milliseconds at most."""
    layouts = {id(layout): layout for node in candidates for layout in node.others}
    offered = {name for layout in layouts.values() for name in layout.devices}
    asked = most_urgent(asks for pod in pods for asks in asking(state, pod, offered))
    requests = {pod.key: request for pod, request in asked}
    wanted, waiting = shapes(asked), [(pod, state.node_filter(pod)) for pod, _ in asked]
    serves = dict[int, float]()
    for key, layout in layouts.items():
        serves[key] = served(layout.devices, wanted)
        yield None
    pairs = [(node, layout) for node in candidates for layout in node.others if serves[id(layout)]]
    pairs.sort(key=lambda pair: (not pair[0].is_idle, pair[0].gpus / serves[id(pair[1])], pair[0].node.name))
    tried, kinds, prices = 0, Counter[object](), dict[str, float | None]()
    for node, layout in pairs:
        changed = with_layout(node.node, layout)
        accepted = [
            pod for pod, rules in waiting if node.has_room(requests[pod.key]) and not rules.rejection(changed)
        ]
        yield None
        if not accepted:
            continue
        kind = node.spec.model, node.gpus, frozenset(layout.devices.items()), node.is_idle
        if node.node.name not in prices and len(prices) < _PRICED:
            prices[node.node.name] = lost(node)
            yield None
        if kinds[kind] >= _OF_A_KIND or (loses := prices.get(node.node.name)) is None:
            continue
        starting = yield from starts_on(state, settings, changed, accepted)
        if starting:
            kinds[kind] += 1
            gpus = sum(gpus_asked(requests[pod.key], node.spec.model) for pod in starting)
            yield LayoutChange(node, layout, tuple(starting), gpus, loses)
        if (tried := tried + 1) >= _TRIED:
            return


def starts_on(
    state: State, settings: Settings, node: Node, accepted: Sequence[Pod]
) -> Generator[None, None, list[Pod]]:
    """The ``accepted`` pending pods that start in a simulation of this node alone, with its pods that hold no
    GPU."""
    busy = {pod.uid for pod in holders(state, node.name)}
    stays = [pod for pod in state.pods.on_node(node.name) if pod.uid not in busy]
    pods = [*stays, *accepted]
    events: list[Event] = [Upserted(node), Listed("Node", frozenset([node.name]))]
    events += map(Upserted, state.gangs.pod_groups())
    events += [*map(Upserted, pods), Listed("Pod", frozenset(pod.key for pod in pods))]
    world = state_of(settings)
    for at in range(0, len(events), _AT_ONCE):
        world.apply(events[at : at + _AT_ONCE])
        yield None
    trial = trial_of(world, real_moves=True)
    yield None
    yield from trial.starting()
    return [pod for pod in accepted if pod.key in trial.held]


def would_change(change: LayoutChange, *, named: bool = True) -> str:
    """The change, the pods that it helps, and the lost work. Short enough for an Event, which is not
    ``named``: it tells no names of pods and nodes."""
    first, more = shorten(change.pods[0].key, KEY), len(change.pods) - 1
    whom = f"{first} and {many(more, 'more pod')}" if more else first
    before, after, where = change.candidate.today.name, change.layout.name, shorten(change.name, KEY)
    where, whom = (f" on node {where}", whom) if named else ("", many(len(change.pods), "pod"))
    text = f"MIG layout {after} instead of {before}{where} would make room for {whom}"
    return f"{text}; lost work: {change.lost / 3600:.2g} GPU-hours"
