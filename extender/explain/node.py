"""A node for people to read: its GPUs, what is free, which pods have what, and how well that is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extender.cluster.state import State
from extender.explain.closed import closed_text
from extender.inventory.node_inventory import Sources
from packing.fleet.fleet import Fleet
from packing.model.node_spec import Gpu, Pool


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU. Behind a device plugin that only counts, what is free is shown as if pods filled GPU by GPU.

    Where MIG instances are made on demand, the largest one that can still be made counts as free, and
    ``taken_slices`` are the memory slices that others have.
    """

    index: int
    free_compute_milli: int
    free_memory_mib: int
    memory_mib: int
    taken_slices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolView:
    """Devices of one extended resource, each this large. ``gpus`` are the GPUs that they are on (whole, or as
    MIG instances or replicas), ``each`` how many are on each of these, where that is known."""

    resource: str
    free: int
    total: int
    compute_milli: int
    memory_mib: int
    gpus: tuple[int, ...]
    each: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HolderView:
    """A pod on the node. ``known``: ``placement`` where it is known which device it has, else ``counts``.

    ``assumed_seconds``: how long it has been assumed; null once the watch shows it.
    """

    pod: str
    cpu_milli: int
    memory_mib: int
    devices: dict[str, int]
    gpus: tuple[int, ...]
    device_ids: tuple[str, ...]
    known: str
    assumed_seconds: float | None


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device of Dynamic Resource Allocation, and the claims (and their pods) that it is allocated to.

    ``free``: a claim can have it. Without claims it is not free where other parts of its GPU are allocated.
    """

    device: str
    what: str
    free: bool
    claims: tuple[str, ...]
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. ``spot``: its provider may take it back at any time. ``takes_nothing`` is the reason why it
    takes no pods, ``problem`` what of it cannot be read.

    ``read_from``: which label, annotation or resource the GPUs and their model were read from, whether it
    is known which GPU a pod has (``placement``) or only how many are taken (``counts``), what says which GPU
    has which devices (``layout``; empty where that is guessed), and what the NVLink ``islands`` were read
    from (empty where they are not known). ``network``: the labels that say to which nodes it is near.
    """

    name: str
    model: str
    spot: bool
    takes_nothing: str
    problem: str
    read_from: Sources | None
    free_cpu_milli: int
    free_memory_mib: int
    gpus: tuple[GpuView, ...]
    pools: tuple[PoolView, ...]
    islands: tuple[tuple[int, ...], ...]
    network: tuple[str, ...]
    holders: tuple[HolderView, ...]
    devices: tuple[DeviceView, ...]


def view_node(state: State, name: str, now: float) -> NodeView | None:
    """The node as it is, None where it is not known. ``now``: seconds of the clock of assumed pods."""
    row = state.fleet.rows.get(name)
    spec = state.fleet.specs[row] if row is not None else None
    if row is None or spec is None:
        return None
    fleet = state.fleet
    return NodeView(
        name=name,
        model=spec.model or spec.product,
        spot=spec.spot,
        takes_nothing=closed_text(state, name, row),
        problem=state.problems.get(name, ""),
        read_from=state.nodes.sources.get(name),
        free_cpu_milli=int(fleet.arrays.free_cpu[row]),
        free_memory_mib=int(fleet.arrays.free_memory[row]) >> 20,
        gpus=tuple(_gpu(fleet, row, index, gpu) for index, gpu in enumerate(spec.gpus)),
        pools=tuple(_pool(fleet, row, pool) for pool in spec.pools),
        islands=spec.islands,
        network=tuple(filter(None, state.nodes.network.of(name))),
        holders=tuple(_holders(state, name, now)),
        devices=tuple(_devices(state, name)),
    )


def _gpu(fleet: Fleet, row: int, index: int, gpu: Gpu) -> GpuView:
    slices = fleet.usage[row].slices(index)
    return GpuView(
        index=index,
        free_compute_milli=int(fleet.arrays.compute[index, row]),
        free_memory_mib=int(fleet.arrays.memory[index, row]),
        memory_mib=gpu.memory_mib,
        taken_slices=tuple(place for place in range(slices.bit_length()) if slices >> place & 1),
    )


def _pool(fleet: Fleet, row: int, pool: Pool) -> PoolView:
    return PoolView(
        resource=pool.resource,
        free=int(fleet.arrays.free_devices[fleet.names.resources[pool.resource], row]),
        total=pool.total,
        compute_milli=pool.compute_milli,
        memory_mib=pool.memory_mib,
        gpus=pool.gpus,
        each=pool.each,
    )


def _devices(state: State, name: str) -> Iterator[DeviceView]:
    on_node = state.devices.on_node(name, state.nodes.labels_of(name))
    for index, id in enumerate(map(on_node.device_id, range(len(on_node.devices)))):
        device = on_node.device(index)
        claims = [state.devices.claims[key] for key in state.devices.pools.holders(id)]
        yield DeviceView(
            device="/".join(id),
            what=next(filter(None, map(device.attribute_text, ("profile", "productName", "type"))), ""),
            free=on_node.available.is_available(index),
            claims=tuple(claim.key for claim in claims),
            pods=tuple(f"{claim.namespace}/{pod}" for claim in claims for pod in claim.reserved_for),
        )


def _holders(state: State, node: str, now: float) -> Iterator[HolderView]:
    names = {index: name for name, index in state.fleet.names.resources.items()}
    for key in state.allocations.pods_on(node):
        assumed = state.assumed_pods.by_key(key)
        allocation = state.allocations.allocation_of(key)
        pod = assumed.pod if assumed else state.pods[key]
        assert allocation is not None  # the node is known
        gpus = tuple(gpu for gpu, _, _ in allocation.shares)
        device_ids = tuple(device for _, device in pod.devices)
        yield HolderView(
            pod=pod.key,
            cpu_milli=allocation.cpu_milli,
            memory_mib=allocation.memory_mib,
            devices={names[index]: count for index, count in allocation.devices},
            gpus=gpus,
            device_ids=device_ids,
            known="placement" if gpus or device_ids else "counts",
            assumed_seconds=round(now - assumed.since, 3) if assumed else None,
        )
