"""Whether the waiting members of a gang fit together, and where: they are placed one after another in memory.

Members that ask for the same go to the nodes in the order of their cost, and fill one after the other. For
equal members without shares of GPUs the answer is exact. For unlike members it may miss a way, so two orders
are tried: the largest first, and as given; and then with containers of a pod that share GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from extender.cluster.allocations import Placement
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Node, Pod
from extender.untrusted.limits import GANG_PLACED
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import copies_that_fit, fits_when_idle, gpu_sizes
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.request import Request
from packing.policies.interface import Policy

FarCosts: TypeAlias = Callable[[Request], Floats | None]


@dataclass(frozen=True, slots=True)
class WaitingMembers:
    """``count`` members without a node that ask for the same under the same rules about nodes, such as
    ``pod``."""

    pod: Pod
    request: Request
    count: int = 1


def waiting_members(pods: Iterable[Pod], most: int) -> list[WaitingMembers]:
    """The ``most`` smallest of these pods. A pod whose request cannot be read is left out: it is refused by
    itself."""
    members = []
    for pod in pods:
        with suppress(RequestError):
            members.append(WaitingMembers(pod, request_of(pod)))
    members.sort(key=lambda one: (one.request.gpus, one.request.cpu_milli, one.pod.key))
    return grouped(members[:most])


def grouped(members: Iterable[WaitingMembers]) -> list[WaitingMembers]:
    """Members that ask for the same as one group, in the order in which they come first."""
    groups: dict[object, WaitingMembers] = {}
    for one in members:
        shape = (one.request, one.pod.spec.node_selector, one.pod.scheduling_constraints)
        known = groups.get(shape)
        groups[shape] = replace(known, count=known.count + one.count) if known else one
    return list(groups.values())


def place_together(
    fleet: Fleet,
    policy: Policy,
    nodes: Mapping[str, Node],
    members: Sequence[WaitingMembers],
    far: FarCosts = lambda request: None,
) -> list[Placement] | None:
    """A place for each member, None if not all fit. The fleet is unchanged afterwards. ``far``: what rows
    cost more for such a member, (N,), because they are far from the others.

    Of kube-scheduler's own filters those of ``k8s.node_filter`` count. A node whose device plugin is busy for
    a moment counts as open. No more than ``limits.GANG_PLACED`` members are placed one by one; those beyond
    get no place, as if they needed none.
    """
    largest_first = sorted(members, key=lambda one: _size(fleet, one.request), reverse=True)
    stacked = [replace(one, request=one.request.stacked or one.request) for one in members]
    orders = [largest_first, list(members), stacked]
    for number, order in enumerate(orders):
        if order in orders[:number]:
            continue
        placements = _place_in_order(fleet, policy, nodes, order, far)
        if placements is not None:
            return placements
    return None


def _place_in_order(
    fleet: Fleet, policy: Policy, nodes: Mapping[str, Node], order: Sequence[WaitingMembers], far: FarCosts
) -> list[Placement] | None:
    placements: list[Placement] = []
    left = GANG_PLACED
    with ExitStack() as held:
        for members in order:
            candidates = _Candidates(fleet, policy, nodes, members, far(members.request))
            is_last = members is order[-1]
            if is_last and (rows := candidates.rows_by_count(members.count)) is not None:
                wanted = members.count
            else:
                wanted = min(members.count, left)
                left -= wanted
                rows = []
                held.enter_context(fleet.holding(candidates.taken_one_by_one(wanted, rows)))
            if len(rows) < wanted:
                return None
            for row in rows:
                spec = fleet.specs[row]
                assert spec is not None
                placements.append(Placement(spec.name, members.request, priority=members.pod.priority))
    return placements


class _Candidates:
    """The nodes for members that ask for the same, by their cost before the first of them is placed.

    A node that does not fit once is not looked at again: members only take room.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        nodes: Mapping[str, Node],
        members: WaitingMembers,
        far: Floats | None,
    ) -> None:
        self._fleet, self._nodes, self._request = fleet, nodes, members.request
        self._filter = NodeFilter(members.pod)
        rows = np.flatnonzero(fits_when_idle(fleet, members.request))
        if members.request.wants_gpu:
            cost = policy.cost(fleet, members.request)
            cost = cost if far is None else cost + far
            rows = rows[np.argsort(cost[rows], kind="stable")]
        self._rows: list[int] = rows.tolist()

    def rows_by_count(self, wanted: int) -> list[int] | None:
        """The rows of so many members, fewer if not all fit; None where counts do not tell."""
        copies = copies_that_fit(self._fleet, self._request)
        if copies is None:
            return None
        found: list[int] = []
        for row in self._rows:
            if len(found) >= wanted:
                break
            if self._accepts(row):
                found += [row] * min(int(copies[row]), wanted - len(found))
        return found

    def taken_one_by_one(self, wanted: int, rows: list[int]) -> Iterator[Allocation]:
        """What so many members take, given that the fleet holds what those before it take. Adds to ``rows``;
        ends early if one fits nowhere."""
        candidates = iter(self._rows)
        row = next(candidates, -1)
        accepted = -1
        while len(rows) < wanted and row >= 0:
            if fits_when_idle(self._fleet, self._request)[row] and (row == accepted or self._accepts(row)):
                accepted = row
                rows.append(row)
                gpus = freest_gpus(self._fleet, row, self._request)
                yield allocation_of(self._fleet, row, self._request, gpus)
            else:
                row = next(candidates, -1)

    def _accepts(self, row: int) -> bool:
        spec = self._fleet.specs[row]
        return spec is not None and not self._filter.rejection(self._nodes[spec.name])


def _size(fleet: Fleet, request: Request) -> tuple[float, int, int]:
    """To order members by: GPUs on the node where they are most, then CPU and memory."""
    return float(gpu_sizes(fleet, request).max(initial=0.0)), request.cpu_milli, request.memory_bytes
