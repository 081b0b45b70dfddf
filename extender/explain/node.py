"""A node as people want to see it: its GPUs, what is free, who holds what, and how well that is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extender.cluster.state import State
from extender.inventory.node_inventory import InventoryError, Sources, sources_of
from extender.k8s.quantity import QuantityError
from packing.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU. Behind a device plugin that only counts, what is free is shown as if GPUs filled in order.

    Where MIG instances are made on demand, what is free is the largest that can still be made, and
    ``taken_slices`` are the memory slices that it must do without.
    """

    index: int
    free_compute_milli: int
    free_memory_mib: int
    memory_mib: int
    taken_slices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolView:
    """Devices of one extended resource, each this large; MIG instances are slices of the GPUs they are on,
    ``each`` says how many are on each of these, where that is known."""

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

    ``assumed_seconds``: for so long ``bind`` has assumed that it is here; null once the watch shows it.
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
    """A device of Dynamic Resource Allocation, and which claims (of which pods) hold it.

    ``free``: a claim can have it. Where other parts of its GPU are held, it is not, although nobody holds it.
    """

    device: str
    what: str
    free: bool
    claims: tuple[str, ...]
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. ``takes_nothing`` is the reason why it is closed, ``problem`` what is wrong with it.

    ``read_from``: which label, annotation or resource the GPUs and their model were read from, whether it
    is known which GPU a pod has (``placement``) or only how many are taken (``counts``), and what says which
    GPU has which devices (``layout``; empty where that is guessed).
    """

    name: str
    model: str
    takes_nothing: str
    problem: str
    read_from: Sources | None
    free_cpu_milli: int
    free_memory_mib: int
    gpus: tuple[GpuView, ...]
    pools: tuple[PoolView, ...]
    islands: tuple[tuple[int, ...], ...]
    holders: tuple[HolderView, ...]
    devices: tuple[DeviceView, ...]


def view_node(state: State, name: str, now: float) -> NodeView | None:
    """The node as it is, None where it is not known. ``now``: seconds of the clock of tentative holds."""
    row = state.fleet.rows.get(name)
    shape = state.fleet.shapes[row] if row is not None else None
    if row is None or shape is None:
        return None
    fleet = state.fleet
    closed = Reason.OVERCOMMITTED if fleet.overcommitted[row] else Reason(int(fleet.blocked[row]))
    holders = [holder for key in state.allocations.pods_on(name) if (holder := _holder(state, key, now))]
    return NodeView(
        name=name,
        model=shape.model or shape.product,
        takes_nothing=closed.text if closed is not Reason.FITS else "",
        problem=state.problems.get(name, ""),
        read_from=_sources(state, name),
        free_cpu_milli=int(fleet.free_cpu[row]),
        free_memory_mib=int(fleet.free_memory[row]) >> 20,
        gpus=tuple(
            GpuView(
                index,
                int(fleet.compute[index, row]),
                int(fleet.memory[index, row]),
                gpu.memory_mib,
                _places(fleet.slices(row, index)),
            )
            for index, gpu in enumerate(shape.gpus)
        ),
        pools=tuple(
            PoolView(
                pool.resource,
                int(fleet.free[fleet.resources[pool.resource], row]),
                pool.total,
                pool.compute_milli,
                pool.memory_mib,
                pool.gpus,
                pool.each,
            )
            for pool in shape.pools
        ),
        islands=shape.islands,
        holders=tuple(holders),
        devices=tuple(_devices(state, name)),
    )


def _places(mask: int) -> tuple[int, ...]:
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


def _sources(state: State, name: str) -> Sources | None:
    try:
        return sources_of(
            state.nodes[name], state.nodes.koordinator_devices.get(name), state.nodes.layouts_for(name)
        )
    except (InventoryError, QuantityError):
        return None


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


def _holder(state: State, key: str, now: float) -> HolderView | None:
    assumed_pods = state.assumed_pods.by_key(key)
    taken, pod = (
        state.allocations.allocation_of(key),
        assumed_pods.pod if assumed_pods else state.pods.get(key),
    )
    if taken is None or pod is None:
        return None
    names = {index: name for name, index in state.fleet.resources.items()}
    gpus = tuple(gpu for gpu, _, _ in taken.shares)
    ids = tuple(device for _, device in pod.devices)
    return HolderView(
        pod=pod.key,
        cpu_milli=taken.cpu_milli,
        memory_mib=taken.memory_mib,
        devices={names[index]: count for index, count in taken.devices},
        gpus=gpus,
        device_ids=ids,
        known="placement" if gpus or ids else "counts",
        assumed_seconds=round(now - assumed_pods.since, 3) if assumed_pods else None,
    )
