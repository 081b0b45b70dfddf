"""Members of a gang prefer few nodes that are near each other: what a node costs because it is far.

Once members are bound, a node costs less the more of them are on it, in its NVLink domain, or below the same
switch. Before that, a domain is best if the whole gang fits into it, and the smallest such domain: so the
first member does not go where the others cannot follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from extender.cluster.pod_table import PodTable
from extender.inventory.network_labels import LEVELS, NOWHERE, Domains, domains_of
from extender.k8s.objects import Pod
from extender.queues.gangs import GangTable
from extender.untrusted.limits import GANG_READ
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import copies_that_fit, fits_with_idle_plugin, gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request

FAR = 1.0
"""What a node costs more that has nothing to do with the gang's other members, in GPUs for each GPU of the
pod. A placement costs about one for each on average (``packing/cost/slots.py``). Policies other than
``inventory`` have costs up to 100: there it only breaks ties."""
NEAR = (1.0, 0.8, 0.5, 0.3, 0.15)
"""The part of it that goes where a member is on the same node, in the same NVLink domain, below the same leaf
switch, the same spine, the same core."""
DomainIds = npt.NDArray[np.int32]
"""(levels, rows of the fleet): equal numbers are the same domain, -1 is none."""


class Network:
    """The domains of all nodes. The array is made when it is asked for after a change."""

    def __init__(self) -> None:
        self._domains: dict[str, Domains] = {}
        self._changes = 0
        self._ids: tuple[object, DomainIds] = None, np.zeros((len(LEVELS), 0), np.int32)

    def put(self, node: str, labels: Mapping[str, str]) -> None:
        domains = domains_of(labels)
        if self._domains.get(node, NOWHERE) != domains:
            self._domains[node] = domains
            self._changes += 1

    def remove(self, node: str) -> None:
        self._changes += self._domains.pop(node, None) is not None

    def of(self, node: str) -> Domains:
        """The domains of a node; "" where it names none."""
        return self._domains.get(node, NOWHERE)

    def ids(self, fleet: Fleet) -> DomainIds:
        """The domains of the nodes in the rows of the fleet."""
        rows, made_for = fleet.rows, (self._changes, fleet.replaced, fleet.arrays.capacity)
        if self._ids[0] != made_for:
            ids = np.full((len(LEVELS), fleet.arrays.capacity), -1, np.int32)
            for level in range(len(LEVELS)):
                numbers: dict[str, int] = {}
                for node, domains in self._domains.items():
                    if domains[level] and node in rows:
                        ids[level, rows[node]] = numbers.setdefault(domains[level], len(numbers))
            self._ids = made_for, ids
        return self._ids[1]


class GangCosts:
    """What nodes cost more for the members of a gang, with the tables of the cluster's state."""

    def __init__(self, gangs: GangTable, pods: PodTable, fleet: Fleet, network: Network) -> None:
        self._gangs, self._pods, self._fleet, self._network = gangs, pods, fleet, network

    def __call__(self, pod: Pod, request: Request) -> Floats | None:
        """What each row costs more because it is far from the other members of the pod's gang: (N,) in GPUs;
        None for a pod of its own."""
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
    """What each row costs more for one of ``missing`` members: (N,) in GPUs. ``bound``: the rows of those
    that are bound."""
    nearness = _nearness(domains, bound) if bound else _room_nearby(fleet, domains, request, missing)
    sizes = gpu_sizes(fleet, request)
    cost: Floats = (FAR * np.where(sizes > 0, sizes, 1) * (1 - nearness)).astype(np.float32)
    return cost


def _levels(domains: DomainIds) -> npt.NDArray[np.int32]:
    """The domains, with the nodes themselves as the first level."""
    return np.vstack([np.arange(domains.shape[1], dtype=np.int32), domains])


def _nearness(domains: DomainIds, bound: Sequence[int]) -> npt.NDArray[np.float64]:
    """0 to 1: the mean over the bound members. One pass for all members in the same domains."""
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
    """0 to 1: by the nearest domain into which all missing members fit; a little more for a small one."""
    room = _room(fleet, request)
    nearness = np.zeros(room.size)
    for ids, near in zip(_levels(domains), NEAR, strict=True):
        known = ids >= 0
        in_domain = np.zeros(room.size)
        in_domain[known] = np.bincount(ids[known], weights=room[known])[ids[known]]
        holds = in_domain >= max(missing, 1)
        tightness = 0.9 + 0.1 * max(missing, 1) / np.maximum(in_domain, 1)
        nearness = np.maximum(nearness, np.where(holds, near * tightness, 0))
    return nearness


def _room(fleet: Fleet, request: Request) -> npt.NDArray[np.float64]:
    """How many such members fit on each row, about: exact where devices are only counted."""
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
