"""The topology domains that gangs require: racks, blocks, NVLink domains, by a label of the nodes.

All members that share a ``RequiredDomain`` run in one domain, or do not run. It is chosen with the first of
them that gets a node, and kept for the others and for replacements, as in kube-scheduler (kubernetes,
``pkg/scheduler/framework/plugins/topologyaware/topology_placement.go``). A node without the label is in no
domain. Domains are told apart by the value of this label alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from extender.cluster.allocations import Placement
from extender.cluster.gang_placement import FarCosts, WaitingMembers, place_together, room_for
from extender.cluster.node_table import NodeTable
from extender.cluster.pod_table import PodTable
from extender.k8s.objects import Node, Pod, RequiredDomain
from extender.queues.gangs import GangTable
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import GANG_DOMAINS
from packing.fleet.arrays import Flags
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.policies.interface import Policy

_LEVELS_KEPT = 16
Chosen = dict[RequiredDomain, set[str | None]]
"""The names of the domains in which members that share one have a node; None for a node in no domain."""


class GangDomains:
    """The domains of all nodes, and those that gangs have taken."""

    def __init__(
        self,
        gangs: GangTable,
        pods: PodTable,
        nodes: NodeTable,
        fleet: Fleet,
        wants_gpu: Callable[[Pod], bool],
    ) -> None:
        self._gangs, self._pods, self._nodes, self._fleet = gangs, pods, nodes, fleet
        self._wants_gpu = wants_gpu
        self._made_for: object = None
        self._levels: BoundedMap[str, tuple[npt.NDArray[np.int32], list[str]]] = BoundedMap(_LEVELS_KEPT)

    def level(self, key: str) -> tuple[npt.NDArray[np.int32], list[str]]:
        """The number of the domain of each row, (N,), -1 for none; and their names by number."""
        made_for = self._nodes.changes, self._fleet.replaced, self._fleet.arrays.capacity
        if self._made_for != made_for:
            self._made_for, self._levels = made_for, BoundedMap(_LEVELS_KEPT)
        if (known := self._levels.get(key)) is None:
            numbers = dict[str, int]()
            ids = np.full(self._fleet.arrays.capacity, -1, np.int32)
            for name, row in self._fleet.rows.items():
                if (value := self._nodes[name].labels.get(key)) is not None and key:
                    ids[row] = numbers.setdefault(value, len(numbers))
            known = ids, list(numbers)
            self._levels.put(key, known, ids.nbytes)
        return known

    def rows_left(self, domains: Iterable[RequiredDomain], taken: Chosen) -> Flags:
        """(N,) the rows that are in a domain of each of these levels, in the one that is taken if any is."""
        rows = np.ones(self._fleet.arrays.capacity, np.bool_)
        for domain in domains:
            of_taken = self.rows_in(domain, taken[domain]) if domain in taken else True
            rows &= (self.level(domain.key)[0] >= 0) & of_taken
        return rows

    def rows_in(self, domain: RequiredDomain, values: set[str | None]) -> Flags:
        """(N,) the rows in the only one of these domains; none if there are several."""
        ids, names = self.level(domain.key)
        value = next(iter(values)) if len(values) == 1 else None
        rows: Flags = ids == (names.index(value) if value in names else -2)
        return rows

    def whole(self, domain: RequiredDomain, rows: Flags) -> Flags:
        """(N,) all rows of the domains that contain one of these ``rows``."""
        ids, _ = self.level(domain.key)
        return np.isin(ids, ids[rows & (ids >= 0)])

    def taken(self, pod: Pod) -> tuple[Chosen, Counter[RequiredDomain]]:
        """The domains of the other members of the pod's gang that are bound, else of those that may be bound
        soon; and the number of members without a node for each domain. Members without GPUs do not count: no
        extender is asked about them."""
        gang, bound, soon = self._gangs.gang_of(pod), Chosen(), Chosen()
        pending = Counter(self._gangs.domains_of(pod))
        reservations, cycle = self._pods.reservations, self._gangs.cycle_of(pod)
        answered = reservations.in_cycle(cycle)
        for other in self._gangs.members(gang.key) if gang and gang.in_domains else ():
            if other.key == pod.key or other.deleting or not self._wants_gpu(other):
                continue
            node, is_bound = self._pods.node_of(other), self._pods.is_bound(other.uid)
            if not is_bound:  # kube-scheduler tries another domain in another cycle
                likely = answered.get(other.uid) or ("" if cycle else reservations.lately_answered(other.uid))
                node = likely or node or reservations.node_of(other.uid)
            for domain in self._gangs.domains_of(other):
                if known := self._nodes.get(node):
                    chosen = (bound if is_bound else soon).setdefault(domain, set())
                    chosen.add(known.labels.get(domain.key))
                pending[domain] += not known
        return soon | bound, pending


@dataclass(frozen=True, slots=True)
class DomainSearch:
    """Places members of a gang together, those that share a domain in one, on this view of the fleet.

    ``allowed`` and ``far`` as for ``place_together``. ``allocation``: what a placement takes. ``among``: rows
    of the domains that may be chosen. ``hoped``: number of pending pods of each domain, including spare ones.
    ``left``: what is gone from the fleet because pods would be evicted. ``chosen``: the domains that are
    taken, to which the search adds its own.
    """

    fleet: Fleet
    policy: Policy
    nodes: Mapping[str, Node]
    domains: GangDomains
    allocation: Callable[[Placement], Allocation]
    chosen: Chosen
    hoped: Mapping[RequiredDomain, int]
    allowed: Callable[[WaitingMembers], Flags] | None
    among: Mapping[RequiredDomain, Flags]
    left: Sequence[Allocation]
    far: FarCosts

    def place(
        self, members: Sequence[WaitingMembers], within: Flags | None = None, level: int = 0
    ) -> list[Placement] | None:
        """A place for each member ``within`` these rows, None if not all fit. Their first ``level`` domains
        are chosen already. Of several parts the largest chooses first, so that a placement may be missed if
        they are unlike; identical slices are placed if they can be."""
        parts, others = defaultdict[RequiredDomain, list[WaitingMembers]](list), list[WaitingMembers]()
        for member in members:
            (parts[member.domains[level]] if level < len(member.domains) else others).append(member)
        placements = list[Placement]()
        with ExitStack() as held:
            for domain in sorted(parts, key=lambda key: (key not in self.chosen, -_count(parts[key]))):
                places = self._in_one(domain, parts[domain], within, level)
                if places is None:
                    return None
                placements += places
                held.enter_context(self.fleet.holding(map(self.allocation, places)))
            if others:
                rows = partial(self._rows, within=within)
                places = place_together(self.fleet, self.policy, self.nodes, others, self.far, rows)
                return None if places is None else placements + places
        return placements

    def _in_one(
        self, domain: RequiredDomain, part: Sequence[WaitingMembers], within: Flags | None, level: int
    ) -> list[Placement] | None:
        before = dict(self.chosen)
        for value, rows in self._options(domain, part, within):
            if (places := self.place(part, rows, level + 1)) is not None:
                self.chosen[domain] = {value}
                return places
            self.chosen.clear()  # of the parts of this one
            self.chosen.update(before)
        return None

    def _options(
        self, domain: RequiredDomain, part: Sequence[WaitingMembers], within: Flags | None
    ) -> Iterator[tuple[str | None, Flags]]:
        """The domain that is taken, else those with room for all, the one with the least room first."""
        ids, names = self.domains.level(domain.key)
        within = np.ones(ids.size, np.bool_) if within is None else within
        if values := self.chosen.get(domain):
            yield next(iter(values)), within & self.domains.rows_in(domain, values)
            return
        within = within & self.among.get(domain, within) & (ids >= 0)
        enough, room = np.ones(len(names), np.bool_), np.zeros(len(names))
        for member in part:
            rows = self._rows(member, within)
            fit = np.bincount(ids[rows], room_for(self.fleet, member.request)[rows], len(names))
            enough &= (fit >= member.count) | (member.request.stacked is not None)
            room += fit
        lacks = np.maximum(self.hoped.get(domain, 0) - room, 0)
        left = np.array([ids[held.row] for held in self.left if within[held.row]], np.int64)
        gone = np.bincount(left, minlength=len(names))
        evicted = np.clip(_count(part) - room + gone, 0, gone)  # about so many of them
        tried = min(int(enough.sum()), GANG_DOMAINS)
        for number in np.lexsort((room, evicted, lacks, ~enough))[:tried].tolist():
            yield names[number], within & (ids == number)

    def _rows(self, member: WaitingMembers, within: Flags | None) -> Flags:
        rows = np.ones(self.fleet.arrays.capacity, np.bool_) if within is None else within
        return rows & self.allowed(member) if self.allowed else rows


def _count(members: Sequence[WaitingMembers]) -> int:
    return sum(member.count for member in members)
