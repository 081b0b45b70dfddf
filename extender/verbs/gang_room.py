"""Whether the members of a gang fit together, and in which topology domains, for every verb.

The answer "no" must be right, because it starves the gang; so everything unknown to Stowage, and all
resources that evictions can free, count as fitting. If the gang requires topology domains, nothing unknown
does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from extender.cluster.gang_domains import Chosen
from extender.cluster.gang_placement import WaitingMembers, grouped, waiting_members
from extender.cluster.other_resources import asked_by
from extender.cluster.state import Rows, State
from extender.dra.pod_claims import class_resources
from extender.k8s.objects import Node, Pod, RequiredDomain
from extender.queues.gangs import Gang
from extender.untrusted.limits import GANG_READ, GANG_VICTIMS
from extender.verbs.reason_codes import NEVER, Codes, codes_of_form
from packing.fleet.arrays import Flags
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request

_MORE_VICTIMS = 16
"""How many times as many victims are looked at, to find those of few domains."""
Among = Mapping[RequiredDomain, Flags]
"""Rows, (N,), that a domain must contain one of."""


@dataclass(frozen=True, slots=True)
class Supposed:
    """A hypothetical state: the ``nodes`` by name as they would be, and the allocations of removed pods.
    Evictions are then excluded."""

    nodes: Mapping[str, Node]
    left: tuple[Allocation, ...] = ()


def refuse_outside(state: State, pod: Pod, request: Request, rows: Rows, codes: Codes) -> Codes:
    """(len(rows),) the codes, with reasons for nodes outside the topology domains that the pod's gang
    requires; the same array if it requires none. Not to be called within ``fleet_view_for``."""
    if not (domains := state.gangs.domains_of(pod)):
        return codes
    permitted = _rows_of_domains(state, pod, request, domains, rows)
    codes, known = codes.copy(), rows >= 0
    usable = known & (~NEVER[codes] | (codes == Reason.PLUGIN_BUSY))
    if permitted is None:
        codes[codes == Reason.FITS] = Reason.GANG_DOES_NOT_FIT
    else:
        codes[usable & ~permitted[rows]] = Reason.OTHER_DOMAIN
    codes[usable & ~state.gang_domains.rows_left(domains, {})[rows]] = Reason.NO_DOMAIN
    return codes


def _rows_of_domains(
    state: State, pod: Pod, request: Request, domains: Sequence[RequiredDomain], rows: Rows
) -> Flags | None:
    """(N,) the rows in the domains that other members have taken, or else in those chosen now among these
    ``rows``: with room for all that must start with the pod. If some of these run already, with room for the
    pod, and for the others if any domain has. None if there is no such domain, even without all pods that
    may be evicted."""
    table, gang, now = state.gang_domains, state.gangs.gang_of(pod), time.time()
    taken, _ = table.taken(pod)
    permitted = table.rows_left(domains, taken)
    free = [domain for domain in domains if domain not in taken]
    if not free or gang is None:
        return permitted
    named = np.zeros(permitted.size, np.bool_)
    named[rows[rows >= 0]] = True
    among = {free[0]: table.whole(free[0], named & permitted)}
    asking = WaitingMembers(pod, request, domains=tuple(domains))
    chosen: Chosen | None = {}
    if state.gang_check and gang.to_place > 1:
        chosen = may_fit(state, gang, asking, now, among=among)
    if chosen is not None and free[-1] not in chosen:
        chosen = _fits(state, [asking], now, among=among)
    if chosen is None:
        return None
    for domain in free:
        permitted &= table.rows_in(domain, chosen[domain]) if domain in chosen else True
    return permitted


def gang_would_fit(state: State, pod: Pod, request: Request, supposed: Supposed) -> bool:
    """Whether all members that must run together would fit, as far as is known, without evictions. True for a
    pod without such a gang. For plans and ``explain``, which promise nothing that is unknown."""
    gang = state.gangs.gang_of(pod)
    if gang is None or gang.to_place < 2:
        return True
    asking = WaitingMembers(pod, request, domains=state.gangs.domains_of(pod))
    return may_fit(state, gang, asking, time.time(), supposed) is not None


def may_fit(
    state: State,
    gang: Gang,
    asking: WaitingMembers,
    now: float,
    supposed: Supposed | None = None,
    among: Among | None = None,
) -> Chosen | None:
    """The domains in which the members fit, if only without all pods that they may evict, with nominated ones
    on their nodes or elsewhere: the search may miss the placement for which they were nominated. None if they
    do not fit, empty if it is not known. ``now`` in Unix seconds."""
    others = state.gangs.still_to_start(gang, gang.to_place, state.pods.is_bound, but=asking.pod.key)
    if any(map(state.wants_gpu, others.room)):
        return {}
    wanted = others.missing  # a launcher without GPUs starts before its workers
    to_come = max(wanted - 1 - len(others.free) - len(others.gated), 0)
    if 1 + len(others.free) + to_come < wanted:
        return None
    nominated = [other.key for other in others.free if state.reservations.node_of(other.uid)]
    known = [asking.pod, *others.room, *others.free, *others.gated]
    unseen = _unseen(state, gang, known) if to_come else []
    members = _members_to_place(state, gang, asking, others.free, wanted, unseen)
    chosen = _fits(state, members, now, without=nominated, supposed=supposed, among=among)
    if chosen is not None or not nominated:
        return chosen
    rest = [other for other in others.free if other.key not in nominated]
    members = _members_to_place(state, gang, asking, rest, wanted - len(nominated), unseen)
    return _fits(state, members, now, supposed=supposed, among=among)


def _unseen(state: State, gang: Gang, known: Sequence[Pod]) -> list[Pod]:
    """The members that the gang's job declares and that do not exist yet: those of its templates in excess of
    ``known`` pods with the same requests."""
    seen = Counter[Request]()
    for member in waiting_members(known, GANG_READ, state.request_of):
        seen[member.request] += member.count
    unseen: list[Pod] = []
    for template, count in gang.templates:
        pod = replace(state.admission.as_created(template)[0], priority=known[0].priority)
        for member in waiting_members([pod], 1, state.request_of):
            unseen += [pod] * min(max(count - seen[member.request], 0), GANG_READ)
            seen[member.request] = max(seen[member.request] - count, 0)
    return unseen


def _members_to_place(
    state: State,
    gang: Gang,
    asking: WaitingMembers,
    others: Sequence[Pod],
    wanted: int,
    unseen: Sequence[Pod],
) -> Sequence[WaitingMembers]:
    """The pod itself and as many others as must run with it, indispensable members first, then the smallest.
    After these, members that are not created yet: ``unseen``, or copies of the pod if these have the same
    requests."""
    members, shared = [asking], tuple(domain for domain in asking.domains if not domain.size)
    domains_of = state.gangs.domains_of if gang.in_domains else lambda pod: ()
    for some, domains in (others, domains_of), (unseen, lambda pod: shared):
        left = max(wanted - sum(member.count for member in members), 0)
        first, request_of = gang.indispensable, state.request_of
        members += waiting_members(islice(some, GANG_READ), left, request_of, first, domains)
    members = grouped(members)
    missing = wanted - sum(member.count for member in members)
    alike = all(member.request == asking.request for member in members)
    if missing > 0 and alike and not (gang.words.others_unlike or gang.templates):
        members[:1] = with_copies(members[0], missing)
    return members


def with_copies(member: WaitingMembers, more: int) -> list[WaitingMembers]:
    """The member and as many ``more`` like it: they fill its slice, then further slices."""
    size = member.domains[-1].size if member.domains else 0
    own = max(min(size - member.count, more), 0) if size else more
    copies = [replace(member, count=member.count + own)]
    for first in range(own, more, max(size, 1)):
        *above, last = member.domains
        another = last._replace(group=f"{last.group} and {first}")
        copies.append(replace(member, count=min(size, more - first), domains=(*above, another)))
    return copies


def wants_dra(state: State, members: WaitingMembers) -> bool:
    """Whether they may be allocated devices outside the fleet."""
    resources = state.devices.extended_resources
    counted = [name for name, _ in members.request.devices]
    named = resources and not resources.isdisjoint([*counted, *asked_by(members.pod)])
    return bool(named or members.pod.spec.claims or class_resources(members.pod.spec))


def _fits(
    state: State,
    members: Sequence[WaitingMembers],
    now: float,
    without: Collection[str] = (),
    supposed: Supposed | None = None,
    among: Among | None = None,
) -> Chosen | None:
    """The domains in which these members fit, None if they do not. ``without``: keys of nominated pods whose
    reservations are ignored."""
    if any(wants_dra(state, member) for member in members):
        return {} if supposed is None else None  # unknown
    pod = members[0].pod
    with state.fleet_view_for(pod, without) as fleet:
        chosen = search(state, fleet, members, supposed, among)
        if chosen is not None or supposed is not None:
            return chosen
        evictable = _evictable(state, pod, now, _usable(fleet, members))
        domain = next((member.domains[0] for member in members if member.domains), None)
        victims = tuple(islice(evictable, (_MORE_VICTIMS if domain else 1) * GANG_VICTIMS + 1))
        if domain:  # those of few domains are enough
            ids, _ = state.gang_domains.level(domain.key)
            in_domain = Counter(int(ids[held.row]) for held in victims)
            order = sorted(victims, key=lambda held: (-in_domain[int(ids[held.row])], ids[held.row]))
            victims = tuple(order[:GANG_VICTIMS])
        if not victims or len(victims) > GANG_VICTIMS:
            return {} if victims else None
        return search(state, fleet, members, Supposed(state.nodes, victims), among)


def fit_together(
    state: State, fleet: Fleet, members: Sequence[WaitingMembers], supposed: Supposed | None = None
) -> bool:
    """Whether all these members fit on a view of the fleet, on nodes that ``filter`` would not refuse."""
    return search(state, fleet, members, supposed) is not None


def search(
    state: State,
    fleet: Fleet,
    members: Sequence[WaitingMembers],
    supposed: Supposed | None = None,
    among: Among | None = None,
) -> Chosen | None:
    """The domains in which all these members fit on a view of the fleet, on nodes that ``filter`` would not
    refuse; None if they do not."""
    rows = np.arange(fleet.arrays.capacity)

    def allowed(members: WaitingMembers) -> Flags:
        codes = codes_of_form(state, fleet, members.pod, members.request, rows)
        fits: Flags = (codes == Reason.FITS) | (codes == Reason.PLUGIN_BUSY)
        return fits

    nodes, left = (supposed.nodes, supposed.left) if supposed else (state.nodes, ())
    with fleet.without(left):
        places = state.domain_search(members[0].pod, fleet, nodes, allowed, among, left)
        return places.chosen if places.place(members) is not None else None


def _usable(fleet: Fleet, members: Sequence[WaitingMembers]) -> Flags:
    """(N,) the rows that have the resources of a member's request, free or not."""
    usable = np.zeros(fleet.arrays.capacity, np.bool_)
    for member in members:
        usable |= (gpu_sizes(fleet, member.request) > 0) | (not member.request.wants_gpu)
    return usable


def _evictable(state: State, pod: Pod, now: float, usable: Flags) -> Iterator[Allocation]:
    """The allocations on ``usable`` rows of pods that are about to end, or may be evicted for this one, if
    only by the evictor. Recent losses of their jobs and queues protect them only for a short time."""
    rules = state.rules_for(pod, now, to_equals=True)
    below = pod.priority + any(queue.max_duration for queue in state.rights.queues.by_name.values())
    bound = (other for other in state.pods.values() if other.node_name)
    possible = (
        other for other in bound if (other.is_about_to_go(now) if other.deleting else other.priority < below)
    )

    def held_by(other: Pod) -> list[Allocation]:
        absent = state.fleet.absent  # for a question about evictions
        held = state.pods.allocations_of(other)
        return [taken for taken in held if usable[taken.row] and taken not in absent.get(taken.row, ())]

    holding = (other for other in possible if held_by(other))
    while some := list(islice(holding, GANG_VICTIMS)):
        for other, may_leave in zip(some, rules.may_ever_leave(some), strict=True):
            if other.deleting or may_leave:
                yield from held_by(other)
