"""Moves of running pods after which a pending pod, or its whole gang, fits, or that create headroom: the
search of ``packing.plan.room_by_moves`` on the present cluster.

A pod may move if it is restartable (by annotation or queue), a controller recreates it, nothing protects it,
no PodDisruptionBudget forbids it, and it has no rules that Stowage does not compute. A pod with volume claims
must declare that it may move, and stays in its zone. No pod moves to a weaker device. Members of a gang move
only together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from extender.cluster.demand import gpus_of
from extender.cluster.other_resources import PODS, OtherResources
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError
from extender.inventory.node_state import must_stay
from extender.k8s.affinity import SchedulingConstraints, Toleration
from extender.k8s.node_filter import NodeRequirement
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.queues.disruptions import job_of, lost_seconds
from extender.queues.queue import is_restartable
from extender.queues.rights import EvictionRules, declares_movable
from extender.settings import Mode, Settings, next_window
from extender.trial.cluster_pods import as_new, why_it_stays
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import day_text, listed, many
from extender.verbs.evaluate import evaluate
from extender.verbs.eviction.node_pods import gpus_held
from extender.verbs.eviction.promising import promising_nodes
from packing.fleet.arrays import Flags, Floats
from packing.fleet.downgrade import device_on, weaker_rows
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import idle_nodes
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE, Request, Shares
from packing.plan.move_rule import MoveRule
from packing.plan.room_by_moves import (
    MOST_QUESTIONS,
    Movable,
    Waiting,
    cheapest_moves,
    places_elsewhere,
)
from packing.victims.rights import gpu_seconds

MOST_MEMBERS = 16
"""Maximum members that may lack room together. Requests wait while all of them are planned."""
_MOST_SEARCHED = 400
"""Maximum running pods considered."""
_IN_ADVANCE = 50
"""Maximum questions of a search for headroom."""
_NOBODY = Pod(
    "",
    "nobody",
    priority=-(2**31),  # all reserved capacity counts
    scheduling_constraints=SchedulingConstraints(tolerations=(Toleration(operator="Exists"),)),
)
_SHOWN, _LONGEST_TEXT = 4, 900
"""Maximum moves, and characters, in one sentence: an Event has at most 1,024 characters."""


@dataclass(frozen=True, slots=True)
class Move:
    """A running pod, its new node, and its allocation there."""

    pod: Pod
    target: str
    held: Allocation


@dataclass(frozen=True, slots=True)
class RoomByMoves:
    """The node of each pending pod after all these moves, and the GPU-seconds that the moves lose."""

    nodes: tuple[tuple[Pod, str], ...]
    moves: tuple[Move, ...]
    lost: float


def rule_of(settings: Settings) -> MoveRule:
    """The rule with the values of the settings."""
    return MoveRule(
        gpus=settings.consolidation_gpus,
        after=settings.consolidation_after_seconds,
        price=settings.consolidation_price,
        moves=settings.consolidation_moves,
        lost_share=settings.consolidation_lost_percent / 100,
        small_wait=math.inf if (wait := settings.consolidation_small_wait_seconds) is None else wait,
    )


def window_note(settings: Settings, now: float, lasts: float = 0.0) -> str:
    """When moves or changes that last so many seconds are permitted again, "" if they are now."""
    opens = next_window(settings.windows, now, lasts)
    return f"; not before the next window, {day_text(opens)}" if opens else ""


def mode_for(state: State, pod: Pod, settings: Settings) -> Mode:
    """The mode of moves for this pod: of its queue, else the setting; limited by ``evictor``."""
    mode = state.rights.queue_of(pod).consolidation or settings.consolidation
    if "off" in (mode, settings.evictor):
        return "off"
    return "recommend" if settings.evictor == "recommend" else mode


def starting_together(state: State, pod: Pod) -> list[Pod]:
    """The pod alone, or the members of its gang that must still start, the oldest first; none if some do not
    exist yet."""
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return [pod]
    members = state.gangs.still_to_start(gang, gang.to_run, state.pods.is_bound)
    free = sorted(members.free, key=lambda member: (member.created, member.key))
    missing = members.missing
    return free[:missing] if 0 < missing <= min(len(free), MOST_MEMBERS) else []


def asked_together(state: State, pods: Sequence[Pod]) -> list[Request]:
    """The requests of these pods, which start together. Empty if nothing moves for them: a request is
    unreadable, or kube-scheduler chooses the devices of a claim or places the PodGroup as a whole."""
    if any(pod.spec.claims or pod.pod_group for pod in pods):
        return []
    try:
        return [state.request_of(pod) for pod in pods]
    except RequestError:
        return []


def lost_by_move(state: State, pod: Pod, held: Allocation, now: float) -> float:
    """GPU-seconds that a running pod with this allocation loses if it moves at ``now`` (Unix seconds)."""
    lost = lost_seconds(pod, state.rights.queue_of(pod), now)
    return float(gpu_seconds(gpus_held(state.fleet, (held,)), lost, state.disruptions.restarts(pod)))


def would_make_room(room: RoomByMoves, *, named: bool = True) -> str:
    """The moves, the nodes where they make room, and the lost work. Short enough for an Event, which is not
    ``named``: it tells no names of pods and nodes."""
    moves = [f"{shorten(move.pod.key, KEY)} to {shorten(move.target, KEY)}" for move in room.moves]
    nodes = ", ".join(sorted({shorten(node, KEY) for _, node in room.nodes})[:_SHOWN])
    text = f"{many(len(moves), 'move')} would make room"
    text += f" on {nodes}: {listed(moves, _SHOWN)}" if named else ""
    return f"{shorten(text, _LONGEST_TEXT)}; lost work: {room.lost / 3600:.2g} GPU-hours"


class Movers:
    """Running pods that may move for one pod at one moment (``now`` in Unix seconds), and where they and the
    pending pods fit. ``pod``: None for headroom. ``rule``: None to ask only whether they could move.
    ``closed``: the room is not for such pods: their nodes accept none."""

    def __init__(
        self, state: State, pod: Pod | None, now: float, rule: MoveRule | None, *, closed: bool = False
    ) -> None:
        self._state, self._pod, self._now, self._rule, self._closed = state, pod, now, rule, closed
        self._rules: dict[int, EvictionRules] = {}
        self._permitted = PermittedRows(state)
        self._names: dict[Hashable, NodeNames] = {}
        self._asked: dict[str, tuple[Pod, Request, Callable[[], NodeNames], list[int]]] = {}

    @cached_property
    def _others(self) -> OtherResources:
        return OtherResources(self._state)

    def movable_on(self, nodes: Iterable[str]) -> list[Movable]:
        """The pods with GPUs of these nodes that may move, with all members of their gangs."""
        found: dict[str, Movable | None] = {}
        pods = [pod for node in nodes for pod in self._state.pods.on_node(node)]
        stay = self._staying(pods)
        for pod in pods:
            if pod.key not in found and len(found) < _MOST_SEARCHED:
                found |= {pod.key: None} if pod.key in stay else self._with_gang(pod)
        return [movable for movable in found.values() if movable]

    def _staying(self, pods: Sequence[Pod]) -> set[str]:
        """The keys of the pods without a gang that must stay, in one batch: 0.1 s less for 300."""
        by_priority, stay = defaultdict[int, list[Pod]](list), set[str]()
        for pod in pods:
            if self._state.gangs.gang_of(pod) is None:
                by_priority[pod.priority].append(pod)
        for alike in by_priority.values():
            why_not = self._rules_for(alike).why_not(alike)
            stay |= {pod.key for pod, why in zip(alike, why_not, strict=True) if why}
        return stay

    def _rules_for(self, members: Sequence[Pod]) -> EvictionRules:
        """The rules for evictions for the pod; for headroom, for a pod of the same priority as these."""
        pod = self._pod or replace(_NOBODY, priority=max((member.priority for member in members), default=0))
        if pod.priority not in self._rules:
            shield = self._rule.shield if self._rule else 0.0
            self._rules[pod.priority] = self._state.rules_for(pod, self._now, moved_within=shield)
        return self._rules[pod.priority]

    def _with_gang(self, pod: Pod) -> dict[str, Movable | None]:
        """The pod, or all bound members of its gang, by key; each None unless all may move."""
        gang, members = self._state.gangs.gang_of(pod), [pod]
        if gang is not None:
            members = [member for member in self._state.gangs.members(gang.key) if member.node_name]
        movable: dict[str, Movable | None] = dict.fromkeys(member.key for member in members)
        if gang is None or self._rules_for(members).may_leave_whole(members):
            found = {member.key: self._movable(member, gang.key if gang else "") for member in members}
            if all(found.values()) and not any(self._state.budgets.violations(members)):
                movable |= found
        return movable

    def _movable(self, pod: Pod, gang: str) -> Movable | None:
        state, queue = self._state, self._state.rights.queue_of(pod)
        held = state.allocations.allocation_of(pod.key)
        if held is None or not held.has_gpus:
            return None
        if pod.depends_on_pods or (pod.has_other_constraints and not declares_movable(pod)):
            return None
        if why_it_stays(pod, self._now, must_be_created_again=True) or must_stay(state.nodes[pod.node_name]):
            return None
        if self._rule and job_of(pod) == pod.key:
            return None  # its replacement could not be recognized, so the room would not be its own
        wanted = self._pod is not None or self._closed
        if not (wanted or self._permitted.rows_that_accept(pod)[held.row]):
            return None  # the node accepts no such pods now, so its room would be useless
        if self._rule and not (is_restartable(pod, queue) and 0 < pod.started <= self._now - self._rule.age):
            return None
        if (request := state.request_or_none(pod)) is None:
            return None
        kind = request, pod.spec.node_selector, pod.scheduling_constraints, pod.priority
        new = replace(as_new(pod), name=f"{pod.name}.", uid="")  # no pod has this name
        self._asked[pod.key] = new, request, partial(self._names_for, pod, held.row, request), [held.row]
        return Movable(pod.key, request, held, lost_by_move(state, pod, held, self._now), gang, kind)

    def _names_for(self, pod: Pod, row: int, request: Request) -> NodeNames:
        """Nodes where a running pod may run: its rules allow it, and its device is no weaker."""
        rows, has = self._permitted.rows_that_accept(pod), device_on(self._state.fleet, row, request)
        kind = id(rows), request, has
        if kind not in self._names:
            allowed = rows if has is None else rows & ~weaker_rows(self._state.fleet, request, has)
            self._names[kind] = NodeNames.of(_names(self._state, allowed))
        return self._names[kind]

    def waiting(self, pod: Pod, request: Request, nodes: Sequence[str], sources: Iterable[str]) -> Waiting:
        """A pending pod for one of the ``nodes``; room may be made on the ``sources``."""
        rows: Flags = np.zeros(self._state.fleet.arrays.capacity, np.bool_)
        leaving = [self._state.fleet.rows[name] for name in sources]
        rows[leaving] = True
        names = NodeNames.of(nodes)
        self._asked[pod.key] = pod, request, lambda: names, leaving
        return Waiting(pod.key, request, rows)

    def permitted(
        self, nodes: tuple[tuple[Pod, str], ...], targets: Mapping[str, Allocation], lost: float
    ) -> RoomByMoves | None:
        """The moves to these ``targets`` (by pod), unless a budget or the hourly limit forbids them, or
        another resource is insufficient for all of them together. Call once only."""
        state, leaving = self._state, [self._state.pods[key] for key in targets]
        if any(state.budgets.violations(leaving)) or self._rules_for(leaving).exceeds_hourly_bound(leaving):
            return None
        for pod, held in zip(leaving, targets.values(), strict=True):
            if any(lacks[held.row] for lacks in self._others.lacking(pod).values()):
                return None
            self._others.take(pod, held.row)
        moves = (Move(state.pods[key], self.node(held.row), held) for key, held in targets.items())
        return RoomByMoves(nodes, tuple(moves), lost)

    def node(self, row: int) -> str:
        """Name of the node of a row."""
        spec = self._state.fleet.specs[row]
        assert spec is not None
        return spec.name

    def costs(self, key: str) -> Floats:
        """Costs as in ``packing.plan.room_by_moves.Costs``, by the code of ``filter`` and ``prioritize``."""
        state, (pod, request, names, leaving) = self._state, self._asked[key]
        found: Floats = np.full(state.fleet.arrays.capacity, np.inf, np.float32)
        evaluation = evaluate(state, pod, request, names())
        fits = np.flatnonzero(evaluation.certain)
        if not fits.size or evaluation.forecasts:
            return found  # the devices that a claim would be allocated are unknown
        found[evaluation.rows[fits]] = evaluation.cost[fits]
        for name, lacks in self._others.lacking(pod).items():
            if name == PODS:
                lacks[leaving] = False  # a pod is evicted before this one arrives
            found[lacks] = np.inf
        return found


def room_by_moves(
    state: State,
    pods: Sequence[Pod],
    nodes_of: Callable[[Pod], Sequence[str]],
    now: float,
    *,
    most: int,
    rule: MoveRule | None = None,
    questions: int = MOST_QUESTIONS,
) -> RoomByMoves | None:
    """The cheapest moves, at most ``most``, after which all these pods fit; None if none are found or needed.
    ``nodes_of``: the nodes that kube-scheduler's own filters accept for a pod. Without a ``rule``, pods may
    move even if they are not restartable, too young, or moved recently."""
    try:
        asked = [(pod, state.request_of(pod), nodes_of(pod)) for pod in pods]
    except RequestError:
        return None
    movers = Movers(state, pods[0], now, rule)
    return _search(state, movers, asked, most, questions)


def room_in_advance(state: State, now: float, rule: MoveRule, number: int) -> tuple[RoomByMoves | None, bool]:
    """Moves that create headroom: for a request of the learned mix that is large enough for the rule and fits
    nowhere, the most frequent first, then for nodes without pods on their GPUs. Because requests wait during
    the search, only the candidate of this ``number`` (from 0) is considered. Also returns whether there is
    such a number. The moves may lose as much work as for a job of that size that has waited as long as the
    rule requires."""
    wishes = [*_worth_having(state, rule)]
    if number >= len(wishes):
        return None, False
    pod, request, closed = wishes[number]
    names = _names(state, PermittedRows(state).rows_that_accept(pod))
    if closed is None:
        if evaluate(state, pod, request, NodeNames.of(names)).certain.any():
            return None, True
        closed = np.zeros(state.fleet.arrays.capacity, np.bool_)
    movers = Movers(state, None, now, rule)
    room = _search(state, movers, [(pod, request, names)], rule.moves, _IN_ADVANCE, closed)
    enough = room and room.lost <= rule.may_lose(gpus_of(state.fleet, request), rule.after)
    return room if enough else None, True


def moves_off(state: State, node: str, now: float, rule: MoveRule) -> RoomByMoves | None:
    """Moves after which no pod holds a GPU of the node, except terminating pods; None if a pod may not move
    or fits nowhere else."""
    movers = Movers(state, None, now, rule, closed=True)
    staying = {pod.key for pod in holders(state, node) if not pod.deleting}
    movable = movers.movable_on([node]) if staying else []
    if staying - {pod.key for pod in movable} or len(movable) > rule.moves:
        return None
    if (targets := places_elsewhere(state.fleet, movable, movers.costs)) is None:
        return None
    return movers.permitted(((_NOBODY, node),), targets, sum(pod.cost for pod in movable))


def holders(state: State, node: str) -> list[Pod]:
    """The pods that hold GPUs of the node, bound or assumed."""

    def holds(key: str) -> bool:
        held = state.allocations.allocation_of(key)
        return held is not None and held.has_gpus

    assumed = (bound for bound in state.assumed_pods if bound.pod.node_name == node and holds(bound.key))
    return [pod for pod in state.pods.on_node(node) if holds(pod.key)] + [bound.pod for bound in assumed]


def _worth_having(state: State, rule: MoveRule) -> Iterator[tuple[Pod, Request, Flags | None]]:
    """Candidates for headroom: expected requests (with None), if they fit nowhere; then empty nodes, with the
    nodes that no pod should move to (N,)."""
    fleet = state.fleet
    for request in state.learner.monitor.demand.mix().requests:
        if gpus_of(fleet, request) >= rule.gpus:
            yield _asking_for(request), request, None
    for whole in dict.fromkeys(_all_gpus(spec) for spec in fleet.specs if spec and spec.gpus):
        yield _NOBODY, whole, idle_nodes(fleet.arrays)


def _asking_for(request: Request) -> Pod:
    """A placeholder pod for the nodes that pods with this request require."""
    if not isinstance(insists := request.node_set, NodeRequirement):
        return _NOBODY
    rules = SchedulingConstraints(insists.terms or None, insists.tolerations)
    spec = replace(_NOBODY.spec, node_selector=insists.selector)
    return replace(_NOBODY, spec=spec, scheduling_constraints=rules)


def _all_gpus(spec: NodeSpec) -> Request:
    if any(gpu.divisible for gpu in spec.gpus):
        return Request(shares=Shares(len(spec.gpus), WHOLE, 0, WHOLE, spec.sharing_resource))
    return Request(devices=tuple((pool.resource, pool.total) for pool in spec.pools if pool.total))


def _names(state: State, rows: Flags) -> list[str]:
    return [name for name, row in state.fleet.rows.items() if rows[row]]


def _search(
    state: State,
    movers: Movers,
    asked: Sequence[tuple[Pod, Request, Sequence[str]]],
    most: int,
    questions: int,
    closed: Flags | None = None,
) -> RoomByMoves | None:
    """``asked``: each pod to make room for, its request, and its possible nodes. ``closed``: as in
    ``cheapest_moves``."""
    sources = dict[str, list[str]]()
    for pod, request, names in asked:
        promising = promising_nodes(state, pod, request, names, {})
        sources[pod.key] = [node.name for node in promising if not node.by_claims]
    movable = movers.movable_on(dict.fromkeys(name for names in sources.values() for name in names))
    if not movable:
        return None
    largest_first = sorted(asked, key=lambda asking: (-asking[1].gpus, asking[0].key))
    waiting = [movers.waiting(pod, request, names, sources[pod.key]) for pod, request, names in largest_first]
    moves = cheapest_moves(
        state.fleet, waiting, movable, movers.costs, most=most, questions=questions, closed=closed
    )
    if moves is None or not moves.targets:
        return None
    nodes = tuple((pod, movers.node(moves.places[pod.key].row)) for pod, *_ in asked)
    return movers.permitted(nodes, moves.targets, moves.cost)
