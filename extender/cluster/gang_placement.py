"""Places the pending members of a gang together, and holds room for them.

Members are placed one after another in memory. Members with equal requests fill the nodes one by one, in
order of cost. For equal members without shares of GPUs the result is exact. For unequal members a placement
may be missed, so two orders are tried: the largest first, and as given; and then with containers of a pod
that share GPUs.

kube-scheduler places pod after pod, so other pods could use the resources that the rest of a gang needs. Once
the watch shows the first member bound, the room for the missing members is hidden from other pods, except
those of higher priority, for a limited time, until the minimum is bound. Room is held only for members that
exist and fit together; if they do not fit yet, for instance after the loss of a node, the hold and its time
begin once they do.

Members prefer few nodes that are near each other. Once members are bound, a node costs less the more of them
are on it, in its NVLink domain, or below the same switch. Before that, the smallest domain that holds the
whole gang is best, so that the first member is not placed where the others do not fit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from extender.cluster.allocations import Placement
from extender.cluster.pod_table import PodTable
from extender.cluster.reservations import GangRoom, Reservations
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import HOSTNAME, NodeFilter
from extender.k8s.objects import Node, Pod, RequiredDomain, Unchecked
from extender.queues.gangs import Gang, GangTable
from extender.untrusted.limits import GANG_HELD, GANG_PLACED, GANG_READ
from packing.fleet.arrays import Flags, Floats
from packing.fleet.feasibility import copies_that_fit, fits_with_idle_plugin, gpu_sizes
from packing.fleet.fleet import Fleet
from packing.fleet.network import DomainIds, Network
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.request import Request
from packing.policies.interface import Policy

FarCosts: TypeAlias = Callable[[Request], Floats | None]
_PAUSE = 1.0
"""Seconds between two searches for room for one gang: users can change a gang at any rate."""


@dataclass(frozen=True, slots=True)
class WaitingMembers:
    """``count`` unbound members with the same request, scheduling constraints and required topology
    ``domains``, such as ``pod``."""

    pod: Pod
    request: Request
    count: int = 1
    domains: tuple[RequiredDomain, ...] = ()


def waiting_members(
    pods: Iterable[Pod],
    most: int,
    asked_by: Callable[[Pod], Request] = request_of,
    first: Container[str] = (),
    domains_of: Callable[[Pod], tuple[RequiredDomain, ...]] = lambda pod: (),
) -> list[WaitingMembers]:
    """The first ``most`` of these pods: those with a key in ``first``, then the smallest. A pod with an
    unreadable request is omitted: it is rejected on its own."""
    members = []
    for pod in pods:
        with suppress(RequestError):
            members.append(WaitingMembers(pod, asked_by(pod), domains=domains_of(pod)))

    def order(member: WaitingMembers) -> tuple[bool, int, int, str]:
        pod, request = member.pod, member.request
        return pod.key not in first, request.gpus, request.cpu_milli, pod.key

    return grouped(sorted(members, key=order)[:most])


def grouped(members: Iterable[WaitingMembers]) -> list[WaitingMembers]:
    """Members with equal requests merged into groups, in order of first appearance."""
    groups: dict[object, WaitingMembers] = {}
    for member in members:
        pod = member.pod
        shape = (member.request, pod.spec.node_selector, pod.scheduling_constraints, member.domains)
        known = groups.get(shape)
        groups[shape] = replace(known, count=known.count + member.count) if known else member
    return list(groups.values())


def place_together(
    fleet: Fleet,
    policy: Policy,
    nodes: Mapping[str, Node],
    members: Sequence[WaitingMembers],
    far: FarCosts = lambda request: None,
    allowed: Callable[[WaitingMembers], Flags] | None = None,
) -> list[Placement] | None:
    """A place for each member, None if not all fit. The fleet is unchanged afterwards. ``far``: additional
    cost of each row for the member due to its distance from the others, (N,). ``allowed``: rows where
    nothing but room can rule out the member, (N,).

    Of kube-scheduler's filters, those of ``k8s.node_filter`` apply. A node with a momentarily busy device
    plugin counts as open. At most ``limits.GANG_PLACED`` members are placed one by one, in all orders; each
    further kind counts as one more. In the first order, further members are assigned no place, as if they
    needed none.
    """

    def size(member: WaitingMembers) -> tuple[float, int, int]:
        gpus = float(gpu_sizes(fleet, member.request).max(initial=0.0))  # the largest size on any node
        return gpus, member.request.cpu_milli, member.request.memory_bytes

    largest_first = sorted(members, key=size, reverse=True)
    stacked = [replace(member, request=member.request.stacked or member.request) for member in members]
    orders = [largest_first, list(members), stacked]
    left = GANG_PLACED
    for number, order in enumerate(orders):
        if order in orders[:number] or not left:
            continue
        placements, left = _place_in_order(fleet, policy, nodes, order, far, allowed, left)
        if placements is not None and (left or not number):
            return placements
    return None


def _place_in_order(
    fleet: Fleet,
    policy: Policy,
    nodes: Mapping[str, Node],
    order: Sequence[WaitingMembers],
    far: FarCosts,
    allowed: Callable[[WaitingMembers], Flags] | None,
    left: int,
) -> tuple[list[Placement] | None, int]:
    """The places, and how many more of the ``left`` members may be placed one by one."""
    placements: list[Placement] = []
    with ExitStack() as held:
        for members in order:
            is_last = members is order[-1]
            if not left and not is_last:
                continue
            left = max(left - (members is not order[0]), 0)
            rows_that_fit = fits_with_idle_plugin(fleet, members.request)
            if allowed:
                rows_that_fit &= allowed(members)
            candidates = _Candidates(fleet, policy, nodes, members, far(members.request), rows_that_fit)
            if is_last and (rows := candidates.rows_by_count(members.count)) is not None:
                wanted = members.count
            else:
                wanted = min(members.count, left)
                left -= wanted
                rows = []
                held.enter_context(fleet.holding(candidates.taken_one_by_one(wanted, rows)))
            if len(rows) < wanted:
                return None, left
            for row in rows:
                spec = fleet.specs[row]
                assert spec is not None
                placements.append(Placement(spec.name, members.request, priority=members.pod.priority))
    return placements, left


class _Candidates:
    """Candidate nodes for members with equal requests, by their cost before the first of them is placed.

    A node that once does not fit is not considered again: placing members only reduces room.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        nodes: Mapping[str, Node],
        members: WaitingMembers,
        far: Floats | None,
        fits: Flags,
    ) -> None:
        self._fleet, self._nodes, self._request = fleet, nodes, members.request
        self._filter, self._apart = NodeFilter(members.pod), apart(members.pod)
        self._domains = set[str]()
        rows = np.flatnonzero(fits)
        if members.request.wants_gpu:
            cost = policy.cost(fleet, members.request)
            cost = cost if far is None else cost + far
            rows = rows[np.argsort(cost[rows], kind="stable")]
        self._rows: list[int] = rows.tolist()

    def rows_by_count(self, wanted: int) -> list[int] | None:
        """The rows of ``wanted`` members, fewer if not all fit; None if counts cannot decide."""
        copies = copies_that_fit(self._fleet, self._request)
        if copies is None:
            return None
        found: list[int] = []
        for row in self._rows:
            if len(found) >= wanted:
                break
            if self._accepts(row):
                most = 1 if self._is_apart(row) else int(copies[row])
                found += [row] * min(most, wanted - len(found))
        return found

    def taken_one_by_one(self, wanted: int, rows: list[int]) -> Iterator[Allocation]:
        """The allocations of ``wanted`` members; the caller must make each in the fleet before the next.
        Appends to ``rows``; ends early if a member fits nowhere."""
        candidates = iter(self._rows)
        row = next(candidates, -1)
        accepted = -1
        while len(rows) < wanted and row >= 0:
            if fits_with_idle_plugin(self._fleet, self._request)[row] and (
                row == accepted or self._accepts(row)
            ):
                accepted = -1 if self._is_apart(row) else row
                rows.append(row)
                gpus = freest_gpus(self._fleet, row, self._request)
                yield allocation_of(self._fleet, row, self._request, gpus)
            else:
                row = next(candidates, -1)

    def _accepts(self, row: int) -> bool:
        spec = self._fleet.specs[row]
        if spec is None or (self._apart and self._domain(spec.name) in self._domains):
            return False
        return not self._filter.rejection(self._nodes[spec.name])

    def _domain(self, node: str) -> str:
        """Where no two of these members may be, "" if they may be anywhere."""
        return node if self._apart == HOSTNAME else self._nodes[node].labels.get(self._apart, "")

    def _is_apart(self, row: int) -> bool:
        """Whether a member that is placed there keeps others of the domain; it is taken then."""
        spec = self._fleet.specs[row]
        domain = self._domain(spec.name) if spec and self._apart else ""
        self._domains |= {domain} if domain else set()
        return bool(domain)


def apart(pod: Pod) -> str:
    """The topology key of the domains in which no two pods of this template may run, "" for none: required
    anti-affinity to itself, and ports of the host."""
    if Unchecked.HOST_PORTS in pod.unchecked:
        return HOSTNAME
    own = pod.scheduling_constraints.anti_affinity
    return next((term.key for term in own if term.selects(pod.namespace, pod.labels)), "")


class GangHolds:
    """Holds room for gangs with some members bound, but not all that must run together.

    ``seconds``: duration of a hold, 0 for none. All gangs together have at most ``limits.GANG_HELD`` places:
    if they want more, the namespace with the most gives up places.
    """

    def __init__(
        self,
        reservations: Reservations,
        gangs: GangTable,
        is_bound: Callable[[str], bool],
        has_node: Callable[[str], bool],
        place: Callable[[Sequence[WaitingMembers], Sequence[Placement]], Sequence[Placement] | None],
    ) -> None:
        """``is_bound``: whether the pod with this UID is bound. ``has_node``: whether the cluster has a node
        with this name. ``place`` returns places for these members in addition to the gang's existing places,
        None if they do not fit together."""
        self.seconds, self._looked = 0.0, -math.inf
        self._reservations, self._gangs = reservations, gangs
        self._is_bound, self._has_node, self._place = is_bound, has_node, place

    def update(self) -> None:
        """Start, renew and end the holds of changed gangs, and search again for room that a gang lacks. Call
        it after all events."""
        if not (keys := {*self._gangs.take_changed(), *self._searched_again()}):
            return
        self._reservations.expire()
        rooms = self._reservations.gangs
        for key in keys:
            gang = self._gangs.gang(key)
            self._reservations.changes += 1
            if gang is None or self._gangs.running(key) >= gang.to_place:
                self._reservations.starts.ended(key)
            if gang is None or not self.seconds or not 0 < self._gangs.running(key) < gang.to_place:
                rooms.pop(key, None)
                continue
            room = rooms.setdefault(key, GangRoom(self.seconds, gang.namespace))
            if not room.is_over and len(self._gangs.members(key)) <= GANG_READ:
                self._renew(room, gang)

    def _searched_again(self) -> list[str]:
        """The gang without room whose last search was longest ago, if any is due. Looks at all rooms, but at
        most once per ``_PAUSE``, because it is called for every few events."""
        now, rooms = self._reservations.clock(), self._reservations.gangs
        if not rooms or now - self._looked < _PAUSE:
            return []
        self._looked = now
        lacking = {
            key: room.searched
            for key, room in rooms.items()
            if room.lacks or not all(self._has_node(place.node) for place in room.places)
        }
        if not lacking or now - max(lacking.values()) < _PAUSE:
            return []
        return [min(lacking, key=lambda key: lacking[key])]

    def describe(self, key: str) -> str:
        """The room that is held for a gang, in words; "" if no member is bound, or enough are."""
        self._reservations.expire()
        room = self._reservations.gangs.get(key)
        if room is None:
            return ""
        if room.is_over:
            return f"room for the others is no longer held: they were not bound within {self.seconds:g} s"
        if not room.places:
            return "no room is held for the others: they do not exist, are too many, or do not fit together"
        left = math.ceil(room.expires - self._reservations.clock())
        return f"room for {len(room.places)} more is held for {left} s"

    def _renew(self, room: GangRoom, gang: Gang) -> None:
        """Release places that no pending member needs, and search for missing places."""
        members = self._gangs.still_to_start(gang, gang.to_place, self._is_bound)
        bound = {pod.key: pod.node_name for pod in members.room}
        served = {pod.scheduler_name for pod in members.room}
        waiting = [pod for pod in (*members.free, *members.gated) if pod.scheduler_name in served]
        unpromised = [pod for pod in waiting if not pod.nominated_node]  # the others have room already
        missing = members.missing - (len(waiting) - len(unpromised))
        wanted = waiting_members(
            unpromised, max(missing, 0), first=gang.indispensable, domains_of=self._gangs.domains_of
        )
        counts: Counter[Request] = Counter()
        for member in wanted:
            counts[member.request] += member.count
        places = [place for place in room.places if self._has_node(place.node)]
        room.places = _kept(places, counts, [bound[key] for key in bound.keys() - room.bound])
        room.bound = frozenset(bound)
        lacking = _without(wanted, Counter(place.request for place in room.places))
        now, room.lacks = self._reservations.clock(), bool(lacking)
        if not lacking or now - room.searched < _PAUSE:
            return
        found, room.searched = self._place(lacking, room.places), now
        room.lacks = found is None
        room.places = [] if found is None else [*room.places, *found[:GANG_HELD]]
        self._limit_places(room)
        if room.places and not math.isfinite(room.expires):
            room.expires = self._reservations.expires_in(self.seconds)

    def _limit_places(self, latest: GangRoom) -> None:
        """Release places of the namespace with the most until all are within the limit; among equals, the
        ``latest`` room gets no more."""
        rooms = self._reservations.gangs.values()
        while (held := Counter(room.namespace for room in rooms for _ in room.places)).total() > GANG_HELD:
            most = max(held.values())
            largest = [room for room in rooms if room.places and held[room.namespace] == most]
            max(largest, key=lambda room: (room is latest, len(room.places))).places.pop()


def _kept(places: Sequence[Placement], counts: Counter[Request], nodes: list[str]) -> list[Placement]:
    """At most ``counts`` places for each request. Places on ``nodes``, where members have just been bound,
    are released first."""
    taken = Counter(nodes)
    released_first = []
    for place in places:
        released_first.append(taken[place.node] > 0)
        taken[place.node] -= 1
    left, kept = Counter(counts), []
    for _, place in sorted(zip(released_first, places, strict=True), key=lambda entry: entry[0]):
        if left[place.request] > 0:
            left[place.request] -= 1
            kept.append(place)
    return kept


def _without(wanted: Sequence[WaitingMembers], having: Counter[Request]) -> list[WaitingMembers]:
    lacking = []
    for member in wanted:
        count = max(member.count - having[member.request], 0)
        having[member.request] -= member.count - count
        if count:
            lacking.append(replace(member, count=count))
    return lacking


FAR = 1.0
"""Additional cost of a node far from all other members of the gang, in GPUs for each GPU of the pod. A
placement costs about one GPU for each on average (``packing/cost/slots.py``). Policies other than
``inventory`` have costs up to 100: there it only breaks ties."""
NEAR = (1.0, 0.8, 0.5, 0.3, 0.15)
"""The fraction of it that is waived if a member is on the same node, in the same NVLink domain, below the
same leaf switch, the same spine, the same core."""


class GangCosts:
    """Additional costs of nodes for the members of a gang, from the tables of the cluster's state."""

    def __init__(self, gangs: GangTable, pods: PodTable, fleet: Fleet, network: Network) -> None:
        self._gangs, self._pods, self._fleet, self._network = gangs, pods, fleet, network

    def __call__(self, pod: Pod, request: Request) -> Floats | None:
        """Additional cost of each row due to its distance from the other members of the pod's gang: (N,) in
        GPUs; None for a pod without a gang."""
        if self._gangs.is_single(pod) or (gang := self._gangs.gang_of(pod)) is None:
            return None
        others = [other for other in self._gangs.members(gang.key)[:GANG_READ] if other.key != pod.key]
        answered = self._pods.reservations.in_cycle(self._gangs.cycle_of(pod))
        nodes = [self._pods.node_of(other) or answered.get(other.uid, "") for other in others]
        bound = [self._fleet.rows[node] for node in nodes if node in self._fleet.rows]
        missing = max(gang.to_place, len(others) + 1) - len(bound)
        return gang_costs(self._fleet, self._network.ids(self._fleet), request, bound, missing)


def gang_costs(
    fleet: Fleet, domains: DomainIds, request: Request, bound: Sequence[int], missing: int
) -> Floats:
    """Additional cost of each row for one of ``missing`` members: (N,) in GPUs. ``bound``: rows of the bound
    members."""
    nearness = _nearness(domains, bound) if bound else _room_nearby(fleet, domains, request, missing)
    sizes = gpu_sizes(fleet, request)
    cost: Floats = (FAR * np.where(sizes > 0, sizes, 1) * (1 - nearness)).astype(np.float32)
    return cost


def _nearness(domains: DomainIds, bound: Sequence[int]) -> npt.NDArray[np.float64]:
    """Mean over the bound members, 0 to 1. One pass for all members in the same domains."""
    nearness = np.zeros(domains.shape[1])
    for shared, members in Counter(tuple(domains[:, row].tolist()) for row in bound).items():
        nearest = np.zeros(domains.shape[1])
        for ids, own, near in zip(domains, shared, NEAR[1:], strict=True):
            if own >= 0:
                nearest = np.maximum(nearest, near * (ids == own))
        nearness += nearest * members / len(bound)
    for row, members in Counter(bound).items():
        known = [near for own, near in zip(domains[:, row], NEAR[1:], strict=True) if own >= 0]
        nearness[row] += (NEAR[0] - max(known, default=0.0)) * members / len(bound)
    return nearness


def _room_nearby(fleet: Fleet, domains: DomainIds, request: Request, missing: int) -> npt.NDArray[np.float64]:
    """Nearness of the nearest domain that holds all missing members, 0 to 1; slightly more if it is small."""
    room = room_for(fleet, request)
    nearness = np.zeros(room.size)
    levels = np.vstack([np.arange(domains.shape[1], dtype=np.int32), domains])  # nodes themselves first
    for ids, near in zip(levels, NEAR, strict=True):
        known = ids >= 0
        in_domain = np.zeros(room.size)
        in_domain[known] = np.bincount(ids[known], weights=room[known])[ids[known]]
        holds = in_domain >= max(missing, 1)
        tightness = 0.9 + 0.1 * max(missing, 1) / np.maximum(in_domain, 1)
        nearness = np.maximum(nearness, np.where(holds, near * tightness, 0))
    return nearness


def room_for(fleet: Fleet, request: Request) -> npt.NDArray[np.float64]:
    """Approximate number of such members that fit on each row; exact if devices are only counted."""
    copies = copies_that_fit(fleet, request)
    if copies is not None:
        return copies.astype(np.float64)
    arrays, sizes = fleet.arrays, np.maximum(gpu_sizes(fleet, request), 1e-3)
    free = (arrays.compute * arrays.divisible).clip(min=0).sum(axis=0) / 1000
    for name, _ in request.devices:
        resource = fleet.names.resources.get(name)
        if resource is not None:
            counted = arrays.free_devices[resource] * arrays.device_gpu[resource]
            free = np.where(arrays.divisible_pool[resource] > 0, free, counted)
    room: npt.NDArray[np.float64] = np.maximum(np.floor(free / sizes), 1) * fits_with_idle_plugin(
        fleet, request
    )
    return room
