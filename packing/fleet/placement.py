"""The allocation of a request on one node, and the GPUs for its shares."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from packing.fleet.feasibility_kernels import note_fitting
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.permitted import permitted_on
from packing.model.node_spec import NodeSpec, in_one_island, resolve_on
from packing.model.request import WHOLE, Request, Shares


def allocation_of(fleet: Fleet, row: int, request: Request, gpus: Sequence[int] = ()) -> Allocation:
    """The allocation of a request on a node if its shares are placed on these GPUs.

    Whether it fits is not checked, because running pods hold their resources in any case. Devices that the
    node does not have are left out, because the kubelet cannot have allocated them.
    """
    spec = fleet.specs[row]
    if spec is None:
        return Allocation(row, request.cpu_milli, request.memory_bytes)
    request = resolve_on(spec, request)
    part, usage = request.shares, fleet.usage[row]
    owned = {pool.resource for pool in spec.pools}
    devices = tuple((fleet.names.resources[name], count) for name, count in request.devices if name in owned)
    shares = tuple((g, part.compute_milli, share_mib(fleet, row, g, part)) for g in gpus) if part else ()
    further = tuple((g, part.slots - 1) for g in gpus) if part and part.slots > 1 else ()
    slices = tuple((g, usage.slices_for(g, *size)) for g, *size in shares if spec.gpus[g].instances)
    cpu, memory = request.cpu_milli, request.memory_bytes
    concurrent = part is not None and part.concurrent
    return Allocation(row, cpu, memory, devices, shares, slices, request.island, further, concurrent)


def share_mib(fleet: Fleet, row: int, gpu: int, part: Shares) -> int:
    """Memory that one share takes of this GPU, in MiB."""
    return part.mib_of(int(fleet.arrays.memory_capacity[gpu, row]))


def placed_shares(fleet: Fleet, row: int, request: Request) -> Shares | None:
    """The shares that the request takes on a node; None if the node does not place its GPUs for them."""
    spec = fleet.specs[row]
    part = resolve_on(spec, request).shares if spec else None
    return part if spec and part and part.resource == spec.sharing_resource else None


def fitting_gpus(fleet: Fleet, row: int, request: Request) -> list[int]:
    """The GPUs of a node that can hold one share of the request now, in ascending order."""
    spec, part = fleet.specs[row], placed_shares(fleet, row, request)
    if spec is None or part is None:
        return []
    arrays, fits = fleet.arrays, np.empty(len(fleet.arrays.compute), np.uint8)
    note_fitting(
        row, arrays.compute, arrays.memory, arrays.memory_capacity, arrays.divisible,
        part.compute_milli, part.memory_mib, part.memory_milli, fits,
    )  # fmt: skip
    fits[arrays.share_slots[:, row] < part.slots] = 0
    return [gpu for gpu in sorted(permitted_on(fleet, request, row)) if fits[gpu]]


def freest_gpus(fleet: Fleet, row: int, request: Request) -> tuple[int, ...]:
    """The GPUs expected for a nominated pod: those that can hold its shares now, the freest first, then the
    others. For a pod that needs NVLink peers they are in one island, the one with the most such GPUs if none
    has enough."""
    spec, part = fleet.specs[row], placed_shares(fleet, row, request)
    if spec is None or part is None:
        return ()
    fitting = set(fitting_gpus(fleet, row, request))
    gpus: Collection[int] = range(len(spec.gpus))
    if request.island:
        large = [island for island in spec.peers if len(island) >= part.count]
        most = max(large, key=lambda island: len(fitting.intersection(island)), default=gpus)
        gpus = in_one_island(spec, fitting, part.count) or most
    compute, memory = fleet.arrays.compute[:, row].tolist(), fleet.arrays.memory[:, row].tolist()
    ranked = sorted(gpus, key=lambda gpu: (gpu not in fitting, -compute[gpu], -memory[gpu], gpu))
    return tuple(ranked[: part.count])


def tightest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the least free, lowest index on ties; () if the node places no shares."""
    return _first_fitting(fleet, request, row, 1)


def freest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the most free, lowest index on ties; () if the node places no shares."""
    return _first_fitting(fleet, request, row, -1)


def fitting_with_free_part(fleet: Fleet, request: Request, row: int) -> list[tuple[float, int]]:
    """(free fraction, index) of the GPUs that can hold one share of the request; where the request needs
    NVLink peers, only those of one island (see ``in_one_island``)."""
    spec, part = fleet.specs[row], placed_shares(fleet, row, request)
    if spec is None or part is None:
        return []
    gpus = fitting_gpus(fleet, row, request)
    if request.island:
        island = in_one_island(spec, gpus, part.count)
        gpus = [gpu for gpu in gpus if gpu in island]
    compute, memory = fleet.arrays.compute[:, row].tolist(), fleet.arrays.memory[:, row].tolist()
    return [(compute[g] / WHOLE / 2 + memory[g] / max(1, spec.gpus[g].memory_mib) / 2, g) for g in gpus]


def _first_fitting(fleet: Fleet, request: Request, row: int, sign: int) -> tuple[int, ...]:
    """As many GPUs as the request needs on this node, ordered by ``sign`` x the free fraction."""
    spec, part = fleet.specs[row], placed_shares(fleet, row, request)
    if spec is None or part is None:
        return ()
    free = fitting_with_free_part(fleet, request, row)
    ranked = [gpu for _, gpu in sorted((sign * free, gpu) for free, gpu in free)]
    if part.count > 1 and not request.scattered and any(len(island) > 1 for island in spec.islands):
        ranked = _peers_first(spec, ranked, part.count)
    return tuple(ranked[: part.count])


def _peers_first(spec: NodeSpec, ranked: Sequence[int], count: int) -> list[int]:
    """Reorder these GPUs so that the first ``count`` are of as few islands as possible: of the smallest
    island that holds them all."""
    groups = [[gpu for gpu in ranked if gpu in island] for island in spec.peers]
    ordered: list[int] = []
    while groups and len(ordered) < count:
        left = count - len(ordered)
        group = min(groups, key=lambda group: (len(group) < left, abs(len(group) - left)))
        groups.remove(group)
        ordered += group
    return ordered
