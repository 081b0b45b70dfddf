"""Whether the waiting members of a gang fit together, and where: they are placed one after another in memory.

Each member goes to the node of least cost that still has room; equal members share one ranking of the nodes.
For equal members without rules about nodes the answer is exact. For unlike members it may miss a way, so two
orders are tried: the largest first, and as given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.cluster.allocations import Placement
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Node, Pod
from packing.fleet.feasibility import gpu_sizes, reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.interface import Policy


@dataclass(frozen=True, slots=True)
class WaitingMember:
    """A member without a node, and what it asks for."""

    pod: Pod
    request: Request


def waiting_members(pods: Iterable[Pod]) -> list[WaitingMember]:
    """These pods with what they ask for, the smallest first. A pod whose request cannot be read is left out:
    it is refused by itself."""
    members = []
    for pod in pods:
        with suppress(RequestError):
            members.append(WaitingMember(pod, request_of(pod)))
    return sorted(members, key=lambda one: (one.request.gpus, one.request.cpu_milli, one.pod.key))


def place_together(
    fleet: Fleet, policy: Policy, nodes: Mapping[str, Node], members: Sequence[WaitingMember]
) -> list[Placement] | None:
    """A place for each member, None if not all fit. The fleet is unchanged afterwards.

    Of kube-scheduler's own filters those of ``k8s.node_filter`` count. A node whose device plugin is busy
    for a moment counts as open.
    """
    largest_first = sorted(members, key=lambda member: _size(fleet, member.request), reverse=True)
    for order in (largest_first, members) if largest_first != list(members) else (members,):
        placements: list[Placement] = []
        with fleet.holding(_placed_in(order, fleet, policy, nodes, placements)):
            if len(placements) == len(members):
                return placements
    return None


def _placed_in(
    order: Sequence[WaitingMember],
    fleet: Fleet,
    policy: Policy,
    nodes: Mapping[str, Node],
    placements: list[Placement],
) -> Iterator[Allocation]:
    """What each member takes, given that the fleet holds what those before it take. Ends at the first one
    that fits nowhere."""
    candidates: dict[object, _Candidates] = {}
    for member in order:
        pod, request = member.pod, member.request
        shape = (request, pod.spec.node_selector, pod.scheduling_constraints)
        if shape not in candidates:
            candidates[shape] = _Candidates(fleet, policy, nodes, member)
        row = candidates[shape].next_row()
        if row < 0:
            return
        spec = fleet.specs[row]
        assert spec is not None
        placements.append(Placement(spec.name, request, priority=pod.priority))
        yield allocation_of(fleet, row, request, freest_gpus(fleet, row, request))


class _Candidates:
    """The nodes for members of one shape, by their cost before the first of them is placed.

    A node that does not fit once is not looked at again: members only take room.
    """

    def __init__(
        self, fleet: Fleet, policy: Policy, nodes: Mapping[str, Node], member: WaitingMember
    ) -> None:
        self._fleet, self._nodes, self._request = fleet, nodes, member.request
        self._filter = NodeFilter(member.pod)
        fits = np.flatnonzero(_fits(fleet, member.request))
        if member.request.wants_gpu:
            fits = fits[np.argsort(policy.cost(fleet, member.request)[fits], kind="stable")]
        self._rows: list[int] = fits.tolist()
        self._at, self._passed = 0, -1

    def next_row(self) -> int:
        """The first row that still fits, -1 for none."""
        fits = _fits(self._fleet, self._request)
        while self._at < len(self._rows):
            row = self._rows[self._at]
            if fits[row] and (row == self._passed or self._accepts(row)):
                self._passed = row
                return row
            self._at += 1
        return -1

    def _accepts(self, row: int) -> bool:
        spec = self._fleet.specs[row]
        return spec is not None and not self._filter.rejection(self._nodes[spec.name])


def _fits(fleet: Fleet, request: Request) -> npt.NDArray[np.bool_]:
    """(N,) where the request fits, or would if the device plugin were idle."""
    reasons = reasons_for(fleet, request)
    fits: npt.NDArray[np.bool_] = (reasons == Reason.FITS) | (reasons == Reason.PLUGIN_BUSY)
    return fits


def _size(fleet: Fleet, request: Request) -> tuple[float, int, int]:
    """To order members by: GPUs on the node where they are most, then CPU and memory."""
    return float(gpu_sizes(fleet, request).max(initial=0.0)), request.cpu_milli, request.memory_bytes
