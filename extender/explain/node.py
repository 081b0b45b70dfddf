"""A readable view of a node: its GPUs, free resources, the allocations of pods, and their certainty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extender.cluster.state import State
from extender.cluster.unoffered import Unoffered, closed_text, device_problem, not_offered, unoffered
from extender.dialects.dialect import Claims
from extender.dialects.pod_request import claims_of
from extender.explain.needs import kind_of
from extender.inventory.node_inventory import Sources
from extender.inventory.node_state import mig_change_of
from extender.k8s.resource_slices import Device
from extender.untrusted.limits import shorten
from packing.fleet.fleet import Fleet
from packing.model.mig_instances import every_slice
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import WHOLE


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU. Behind a device plugin that only counts, free amounts are shown as if pods filled GPU by GPU.

    Where MIG instances are made on demand, the GPU has so many memory ``slices`` (else 0), the largest
    instance that can still be made counts as free, and ``taken_slices`` are the slices that pods have.
    """

    index: int
    free_compute_milli: int
    free_memory_mib: int
    memory_mib: int
    taken_slices: tuple[int, ...] = ()
    slices: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class PoolView:
    """Devices of one extended resource, each this large. ``kind``: GPUs, MIG instances, or replicas of GPUs
    that are shared by time-slicing or MPS. ``gpus`` are the GPUs that they are on, ``each`` how many are on
    each of these, if known. ``counted``: the device plugin allocates them."""

    resource: str
    free: int
    total: int
    compute_milli: int
    memory_mib: int
    gpus: tuple[int, ...]
    each: tuple[int, ...]
    kind: str
    counted: bool


@dataclass(frozen=True, slots=True)
class PartView:
    """A pod's share of one GPU. ``slices``: the memory slices of its MIG instances, () for none."""

    gpu: int
    compute_milli: int
    memory_mib: int
    slices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceView:
    """A MIG instance that was made for a pod, by its annotations: profile and memory slices."""

    gpu: int
    profile: str
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HolderView:
    """A pod on the node. ``known``: ``placement`` where it is known which device it has, else ``counts``.

    ``parts``: what it has of which GPU, where GPUs are shared; ``instances``: its MIG instances, where
    they are made on demand and its annotations contradict nothing. ``source``: how that is known, by a
    report of ``kubelet``, by ``annotations``, because ``bind`` has just assigned it, or only what the pod
    ``request``s. ``assumed_seconds``: how long it has been assumed; null once the watch shows it.
    """

    pod: str
    cpu_milli: int
    memory_mib: int
    devices: dict[str, int]
    gpus: tuple[int, ...]
    device_ids: tuple[str, ...]
    known: str
    assumed_seconds: float | None
    parts: tuple[PartView, ...] = ()
    instances: tuple[InstanceView, ...] = ()
    source: str = "request"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device of Dynamic Resource Allocation, and the claims (and their pods) that it is allocated to.

    ``free``: a claim can have it. Without claims it is not free where other parts of its GPU are allocated.
    ``gpu``: the UUID of the GPU that it is, or is a part of; ``slices``: the memory slices that it takes of
    that, () where its driver does not say.
    ``problem``: why claims may not get it though none is known to have it.
    ``total_milli``: the thousandths of its GPU that it is, ``used_milli``: those of them in use.
    """

    device: str
    what: str
    free: bool
    claims: tuple[str, ...]
    pods: tuple[str, ...]
    gpu: str = ""
    slices: tuple[int, ...] = ()
    problem: str = ""
    used_milli: int = 0
    total_milli: int = WHOLE


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. ``spot``: its provider may reclaim it at any time. ``takes_nothing``: why it accepts no pods,
    ``problem``: its unreadable data.

    ``read_from``: which label, annotation or resource the GPUs and their model were read from, whether it
    is known which GPU a pod has (``placement``) or only how many are taken (``counts``), what says which GPU
    has which devices (``layout``; empty where that is guessed), and what the NVLink ``islands`` were read
    from (empty where they are not known). ``network``: the labels that say to which nodes it is near.
    ``unoffered``: its GPUs where pods get none of them but by claims; ``not_offered``: which of them are
    missing where it offers some. ``layout_change``: how Stowage changes its MIG layout, or has changed it.
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
    unoffered: Unoffered | None = None
    not_offered: str = ""
    layout_change: str = ""


def view_node(state: State, name: str, now: float) -> NodeView | None:
    """The current node, None if unknown. ``now``: seconds of the clock of assumed pods."""
    fleet, spec = state.fleet, state.fleet.spec_of(name)
    if spec is None:
        return None
    row, change = fleet.rows[name], mig_change_of(state.nodes[name].annotations)
    return NodeView(
        name=name,
        model=spec.model or spec.product,
        spot=spec.spot,
        takes_nothing=closed_text(state, name),
        problem=state.nodes.problems.get(name, ""),
        read_from=state.nodes.sources.get(name),
        free_cpu_milli=int(fleet.arrays.free_cpu[row]),
        free_memory_mib=int(fleet.arrays.free_memory[row]) >> 20,
        gpus=tuple(_gpu(fleet, row, index, gpu) for index, gpu in enumerate(spec.gpus)),
        pools=tuple(_pool(fleet, row, pool, spec) for pool in spec.pools),
        islands=spec.islands,
        network=tuple(filter(None, state.nodes.network.of(name))),
        holders=tuple(_holders(state, name, now)),
        devices=tuple(_devices(state, name)),
        unoffered=unoffered(state, name),
        not_offered=not_offered(state, name),
        layout_change=shorten(change.described()) if change else "",
    )


def _gpu(fleet: Fleet, row: int, index: int, gpu: Gpu) -> GpuView:
    slices = fleet.usage[row].slices(index)
    return GpuView(
        index=index,
        free_compute_milli=int(fleet.arrays.compute[index, row]),
        free_memory_mib=int(fleet.arrays.memory[index, row]),
        memory_mib=gpu.memory_mib,
        taken_slices=_places(slices),
        slices=every_slice(gpu.instances).bit_length(),
        uuid=gpu.uuid,
    )


def _places(mask: int) -> tuple[int, ...]:
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


def _pool(fleet: Fleet, row: int, pool: Pool, spec: NodeSpec) -> PoolView:
    return PoolView(
        resource=pool.resource,
        free=int(fleet.arrays.free_devices[fleet.names.resources[pool.resource], row]),
        total=pool.total,
        compute_milli=pool.compute_milli,
        memory_mib=pool.memory_mib,
        gpus=pool.gpus,
        each=pool.each,
        kind=kind_of(pool),
        counted=not spec.is_divisible(pool),
    )


def _devices(state: State, name: str) -> Iterator[DeviceView]:
    on_node = state.devices.on_node(name, state.nodes.labels_of(name))
    gpus = on_node.gpus()
    for index, id in enumerate(map(on_node.device_id, range(len(on_node.devices)))):
        device = on_node.device(index)
        claims, part = [state.devices.claims[key] for key in state.devices.holders(id)], gpus.get(index)
        milli = WHOLE * (part.fraction if part else 1)
        yield DeviceView(
            device="/".join(id),
            what=next(filter(None, map(device.attribute_text, ("profile", "productName", "type"))), ""),
            free=on_node.available.is_available(index),
            claims=tuple(claim.key for claim in claims),
            pods=tuple(f"{claim.namespace}/{pod}" for claim in claims for pod in claim.reserved_for),
            gpu=part.gpu if part else "",
            slices=tuple(sorted(_slice_counters(device))),
            problem=device_problem(state, on_node, index),
            used_milli=round(milli * on_node.used_fraction(index)) if claims else 0,
            total_milli=round(milli),
        )


def _slice_counters(device: Device) -> Iterator[int]:
    """The memory slices that a device takes: NVIDIA's driver has a counter ``memory-slice-3`` for each
    (NVIDIA/k8s-dra-driver-gpu, partitionable devices)."""
    for _, counter in device.consumes_counters:
        name, _, number = counter.rpartition("-")
        if name == "memory-slice" and number.isdecimal() and len(number) < 3:
            yield int(number)


def _holders(state: State, node: str, now: float) -> Iterator[HolderView]:
    names = {index: name for name, index in state.fleet.names.resources.items()}
    spec = state.fleet.spec_of(node)
    assert spec is not None
    for key in state.allocations.pods_on(node):
        assumed = state.assumed_pods.by_key(key)
        allocation = state.allocations.allocation_of(key)
        pod = assumed.pod if assumed else state.pods[key]
        assert allocation is not None  # the node is known
        gpus = tuple(gpu for gpu, _, _ in allocation.shares)
        device_ids = tuple(device for _, device in pod.devices)
        source = "kubelet" if pod.devices else "request"
        if gpus:
            source = "bind" if assumed else "annotations"
        unread = key in state.allocations.problems or key in state.pods.problems
        yield HolderView(
            pod=pod.key,
            cpu_milli=allocation.cpu_milli,
            memory_mib=allocation.memory_mib,
            devices={names[index]: count for index, count in allocation.devices},
            gpus=gpus,
            device_ids=device_ids,
            known="placement" if gpus or device_ids else "counts",
            assumed_seconds=round(now - assumed.since, 3) if assumed else None,
            parts=tuple(
                PartView(gpu, milli, mib, _places(dict(allocation.slices).get(gpu, 0)))
                for gpu, milli, mib in allocation.shares
            ),
            instances=() if unread else tuple(_instances(spec, claims_of(pod))),
            source=source,
        )


def _instances(spec: NodeSpec, claims: Claims | None) -> Iterator[InstanceView]:
    index_of = {gpu.uuid: index for index, gpu in enumerate(spec.gpus)}
    for claim in claims.devices if claims else ():
        if claim.slices and (index := index_of.get(claim.device)) is not None:
            fitting = (
                instance.profile
                for instance in spec.gpus[index].instances
                if claim.slices in instance.windows and instance.memory_mib >= claim.memory_mib
            )
            yield InstanceView(index, next(fitting, ""), _places(claim.slices))
