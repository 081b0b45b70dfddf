"""Node -> NodeSpec: which GPUs a node has and in which devices or parts they are handed out.

``allocatable`` says how many devices there are (never ``capacity``, never a count label); labels say what
one device is; the catalogue and cloud labels fill in what labels leave out. Nothing but ``allocatable`` is
required: a node without labels has GPUs of unknown model, which pack neutrally. Where a sharing system
divides the GPUs (``division.py``), its own register says which there are, and the count it advertises is of
stand-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from extender.inventory import cloud_labels as cloud
from extender.inventory import gfd_labels as gfd
from extender.inventory import mig_manager, nvlink
from extender.inventory.mig_manager import Advertised, Partition
from extender.inventory.shared_gpus import MIG_PREFIX, NVIDIA, InventoryError, SharedGpus, is_nvidia
from extender.inventory.sharing import gpushare, hami, koordinator, vgpu_manager, volcano
from extender.inventory.sharing import stowage as own
from extender.k8s import gpu_health as health
from extender.k8s.objects import KoordinatorDevice, MigLayouts, Node
from extender.k8s.quantity import milli, whole
from extender.untrusted.limits import (
    DEVICES_PER_NODE,
    GPU_MIB,
    GPUS_PER_NODE,
    NAME,
    RESOURCES,
    quoted,
    shorten,
)
from packing.model.gpu_catalogue import Model, Profile, find_model, parse_product, parse_profile, placement_of
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import WHOLE

__all__ = [
    "Inventory",
    "InventoryError",
    "Sources",
    "inventory_of",
    "is_gpu_resource",
    "shape_of",
    "sources_of",
]

SHARED_SUFFIX = ".shared"
_OTHERS = {"amd.com/gpu": "amd.com/gpu.product-name", "gpu.intel.com/i915": "", "gpu.intel.com/xe": ""}
_READ = frozenset(
    {
        *(hami.REGISTER, hami.HANDSHAKE, hami.CORDON, volcano.REGISTER),
        *(vgpu_manager.REGISTER, vgpu_manager.CONFIG, own.LABEL, koordinator.MODEL),
        *(health.IGNORED, cloud.INSTANCE_TYPE, *health.LABELS),
    }
)
_READ_PREFIXES = ("nvidia.com/gpu.", "nvidia.com/mig", "amd.com/gpu.", "cloud.google.com/gke-", nvlink.PREFIX)
"""Annotations and labels that say what a node has: without one of them that is not known."""


@dataclass(frozen=True, slots=True)
class _Device:
    """One device of a pool, the memory of the GPU it is on, and how many of it one GPU gives; the MIG profile
    of its instance, None for a GPU, and how many of it one instance (or GPU) gives."""

    compute_milli: int
    memory_mib: int
    gpu_mib: int
    per_gpu: int = 1
    most: int = 0
    profile: Profile | None = None
    parts: int = 1


def is_gpu_resource(name: str) -> bool:
    """Whether an extended resource is a counted GPU device that Stowage packs."""
    return is_nvidia(name) or name in _OTHERS


@dataclass(frozen=True, slots=True)
class Sources:
    """What a node's inventory was read from: label, annotation or resource names, "" for nothing.

    ``truth`` is ``placement`` where it is known which GPU a pod has, ``counts`` where the device plugin
    keeps that to itself. ``layout`` says which GPU has which devices; "" where that is guessed.
    """

    devices: str
    model: str
    truth: Literal["placement", "counts"]
    layout: str = ""


def sources_of(
    node: Node, cards: KoordinatorDevice | None = None, layouts: MigLayouts | None = None
) -> Sources:
    """Where ``shape_of`` has a node's inventory from. Raises as it does."""
    division = _division(node, cards)
    label = next(
        (name for name in (gfd.PREFIX + "gpu.product", _OTHERS["amd.com/gpu"]) if name in node.labels), ""
    )
    model = (
        label
        or cloud.naming_label(node.labels)
        or (division.source if division and division.products else "")
    )
    if division:
        return Sources(division.source, model, "placement")
    plain = any(is_gpu_resource(name) for name in node.allocatable)
    devices = _devices(node, division, _model(node, division))
    layout = (
        f"configmap {layouts.name}" if layouts and _partition(node, division, devices, layouts).gpus else ""
    )
    return Sources("allocatable" if plain else "", model, "counts", layout)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node has. ``doubt`` says why it takes nothing new, and what contradicts it and is not heard; ""
    for nothing."""

    shape: NodeSpec
    doubt: str = ""


def shape_of(
    node: Node, cards: KoordinatorDevice | None = None, layouts: MigLayouts | None = None
) -> NodeSpec:
    """The shape of ``inventory_of``. Raises as it does."""
    return inventory_of(node, cards, layouts).shape


def inventory_of(
    node: Node, cards: KoordinatorDevice | None = None, layouts: MigLayouts | None = None
) -> Inventory:
    """Read a node, and what there is beside it of its GPUs.

    Raises QuantityError or InventoryError where what it advertises cannot be read, and nothing else.
    """
    _check_readable(node)
    division = _division(node, cards)
    model = _model(node, division)
    gpus: list[Gpu] = []
    pools: list[Pool] = []
    if division:
        _add_divided(gpus, pools, division)
    devices = _devices(node, division, model)
    partition = _partition(node, division, devices, layouts)
    if partition.gpus:
        _add_partitioned(gpus, pools, devices, partition)
        devices = {name: one for name, one in devices.items() if name in _OTHERS}
    for name, (count, device) in devices.items():
        if not name.startswith(MIG_PREFIX):
            _add_group(gpus, pools, {name: (count, device)}, -(-count // device.per_gpu))
    instances = {name: one for name, one in devices.items() if name.startswith(MIG_PREFIX)}
    if instances:
        _add_group(gpus, pools, instances, _mig_gpus(node, len(gpus), instances))
    closed, reason = _closed(node, division, devices)
    shape = NodeSpec(
        node.name,
        milli(node.allocatable.get("cpu", "0")),  # rounded up, as kube-scheduler does (Resource.Add)
        whole(node.allocatable.get("memory", "0")),
        tuple(gpus),
        tuple(pools),
        model.name if model else None,
        nvlink.islands(node.labels, len(gpus), model if _all_whole(pools, division) else None),
        reason,
        _product(node, division),
        gfd.cuda(node.labels),
        division.resource if division else "",
        division.mode if division else "",
    )
    doubts = (closed, partition.doubt, node.problem)
    return Inventory(shape, shorten("; ".join(filter(None, doubts))))


def _check_readable(node: Node) -> None:
    """Raises InventoryError where something that the inventory is read from is missing or too much."""
    for name in node.unreadable:
        if name in _READ or name.startswith(_READ_PREFIXES):
            raise InventoryError(f"{quoted(name)} is too long to be read")
    if len(node.allocatable) > RESOURCES:
        raise InventoryError(
            f"allocatable has {len(node.allocatable)} resources: at most {RESOURCES} are read"
        )
    for label in (gfd.PREFIX + "gpu.product", _OTHERS["amd.com/gpu"]):
        if len(node.labels.get(label, "")) > NAME:
            raise InventoryError(f"label {label} has more than {NAME} characters")


def _division(node: Node, cards: KoordinatorDevice | None) -> SharedGpus | None:
    """How the node's GPUs are divided, None for a plain node. Two systems on one node cannot be true."""
    found = [source.divided(node) for source in (hami, vgpu_manager, volcano, gpushare)]
    found.append(koordinator.divided(node, cards))
    model = find_model(_labelled_product(node))
    found.append(own.divided(node, gfd.card(node.labels).memory_mib or (model.memory_mib if model else 0)))
    divisions = [division for division in found if division]
    if len(divisions) > 1:
        raise InventoryError(f"GPUs are divided as {' and as '.join(d.resource for d in divisions)}")
    return divisions[0] if divisions else None


def _devices(node: Node, division: SharedGpus | None, model: Model | None) -> dict[str, tuple[int, _Device]]:
    """The counted devices of each resource, in the order of their names: how many, and what one is."""
    replaced = division.replaces if division else ()
    counts = {
        name: count
        for name, text in sorted(node.allocatable.items())
        if is_gpu_resource(name) and name not in replaced and (count := whole(text)) > 0
    }
    if max(counts.values(), default=0) > DEVICES_PER_NODE:
        raise InventoryError("more GPU devices on one node than can be true")
    return {name: (count, _device(node, name, count, model)) for name, count in counts.items()}


def _partition(
    node: Node,
    division: SharedGpus | None,
    devices: Mapping[str, tuple[int, _Device]],
    layouts: MigLayouts | None,
) -> Partition:
    """Which of NVIDIA's GPUs has which devices, as far as the MIG manager says."""
    if layouts is None or division is not None:
        return Partition()
    advertised = {
        name: Advertised(count, device.profile, device.compute_milli, device.parts)
        for name, (count, device) in devices.items()
        if name not in _OTHERS
    }
    return mig_manager.partition(node, layouts, advertised)


def _add_divided(gpus: list[Gpu], pools: list[Pool], division: SharedGpus) -> None:
    gpus.extend(division.gpus)
    fit = tuple(
        index
        for index, gpu in enumerate(gpus)
        if gpu.divisible and not (gpu.instances and gpu.compute_milli < WHOLE)
    )
    if division.whole and fit:
        total = len(fit) if division.open else 0
        pools.append(Pool(division.whole, total, fit, WHOLE, max(gpus[index].memory_mib for index in fit)))


def _add_group(
    gpus: list[Gpu], pools: list[Pool], devices: dict[str, tuple[int, _Device]], count: int
) -> None:
    """Add ``count`` GPUs that carry these pools between them."""
    if len(gpus) + count > GPUS_PER_NODE:
        names = quoted(", ".join(devices))
        raise InventoryError(f"{names}: {len(gpus) + count} GPUs on one node cannot be true")
    indices = tuple(range(len(gpus), len(gpus) + count))
    gpus.extend(Gpu(max(device.gpu_mib for _, device in devices.values())) for _ in indices)
    pools.extend(
        Pool(name, total, indices, device.compute_milli, device.memory_mib, device.most)
        for name, (total, device) in devices.items()
    )


def _add_partitioned(
    gpus: list[Gpu], pools: list[Pool], devices: Mapping[str, tuple[int, _Device]], partition: Partition
) -> None:
    """Add NVIDIA's GPUs, each with the devices that it carries."""
    first = len(gpus)
    largest = max(device.gpu_mib for _, device in devices.values())
    for carried in partition.gpus:
        gpus.append(Gpu(max((devices[name][1].gpu_mib for name in carried), default=largest)))
    for name in sorted({name for carried in partition.gpus for name in carried}):
        total, device = devices[name]
        on = [(first + index, one[name]) for index, one in enumerate(partition.gpus) if name in one]
        indices, each = zip(*on, strict=True)
        pools.append(Pool(name, total, indices, device.compute_milli, device.memory_mib, device.most, each))


def _labelled_product(node: Node) -> str:
    product = gfd.card(node.labels).product
    return (product.base if product else cloud.product(node.labels)) or node.labels.get(
        _OTHERS["amd.com/gpu"], ""
    )


def _product(node: Node, division: SharedGpus | None) -> str:
    """The name of the node's GPUs, "" where they have several or none that is known."""
    names = division.products if division else frozenset()
    if len(names) > 1:
        return ""
    return _labelled_product(node) or next(iter(names), "")


def _device(node: Node, resource: str, count: int, model: Model | None) -> _Device:
    if resource.startswith(MIG_PREFIX):
        return _mig_device(node, resource, model)
    if resource in NVIDIA:
        return _nvidia_device(node, resource, count, model)
    return _other_device(node, resource, model)


def _model(node: Node, division: SharedGpus | None) -> Model | None:
    product = _product(node, division)
    return find_model(product) if product else None


def _nvidia_device(node: Node, resource: str, count: int, model: Model | None) -> _Device:
    """A GPU, a MIG instance (single strategy) or a replica of one. Raises InventoryError where there are more
    devices than GPUs, and nothing says why."""
    card = gfd.card(node.labels)
    profile = (card.product.profile if card.product else None) or cloud.mig_profile(node.labels)
    if profile:
        device = _instance(profile, card.memory_mib, model)
    else:
        memory = card.memory_mib or (model.memory_mib if model else 0)
        device = _Device(WHOLE, memory, memory)
    shared = resource.endswith(SHARED_SUFFIX) or gfd.shared(node.labels)
    replicas, gpus = max(card.replicas, cloud.replicas(node.labels)), gfd.gpu_count(node.labels)
    if shared and replicas < 2 and gpus:
        replicas = -(-count // gpus)
    device = _replicated(device, replicas, shared=shared, most=gfd.most_replicas(node.labels, "gpu"))
    if gpus and not profile and count > gpus * device.per_gpu:
        raise InventoryError(
            f"{count} {resource} on {gpus} GPUs (nvidia.com/gpu.count): no label says how they are shared"
        )
    return device


def _mig_device(node: Node, resource: str, model: Model | None) -> _Device:
    profile = resource.removeprefix(MIG_PREFIX).removesuffix(SHARED_SUFFIX)
    card = gfd.mig_card(node.labels, profile)
    if model is None and card.product:
        model = find_model(card.product.base)
    device = _instance(profile, card.memory_mib, model)
    most = gfd.most_replicas(node.labels, f"mig-{profile}")
    return _replicated(device, card.replicas, shared=resource.endswith(SHARED_SUFFIX), most=most)


def _other_device(node: Node, resource: str, model: Model | None) -> _Device:
    vram = node.labels.get("amd.com/gpu.vram", "") if resource == "amd.com/gpu" else ""
    labelled = gfd.whole_number(vram[:-1]) * 1024 if vram[-1:] == "G" else 0
    memory = labelled if 0 < labelled <= GPU_MIB else (model.memory_mib if model else 0)
    return _Device(WHOLE, memory, memory)


def _instance(profile_name: str, memory_mib: int, model: Model | None) -> _Device:
    """One MIG instance. Without a known geometry the GPU is taken to have seven compute slices."""
    profile = parse_profile(profile_name)
    if profile is None:
        raise InventoryError(f"{quoted(profile_name)} is not a MIG profile (like 1g.10gb)")
    geometry = model.geometry if model else None
    placement = placement_of(geometry, profile, model.memory_mib) if geometry and model else None
    if geometry is None or placement is None or model is None:
        slices = 7 // max(profile.compute, 1)
        memory, most = memory_mib or profile.memory_gb * 1024, max(slices, 1)
        compute = min(WHOLE * profile.compute // 7, WHOLE)
        return _Device(compute, memory, min(memory * most, GPU_MIB), most, profile=profile)
    memory = memory_mib or model.memory_mib * placement.size // geometry.memory_slices
    compute = WHOLE * profile.compute // geometry.compute_slices
    return _Device(compute, memory, model.memory_mib, len(placement.starts), profile=profile)


def _replicated(device: _Device, replicas: int, *, shared: bool, most: int) -> _Device:
    """Split a device into its time-slicing or MPS replicas; unlabelled sharing counts as two.

    ``most`` replicas go to one container at once, 0 for any number.
    """
    if not shared and replicas < 2:
        return device
    parts = max(replicas, 2)
    return replace(
        device,
        compute_milli=device.compute_milli // parts,
        memory_mib=device.memory_mib // parts,
        per_gpu=device.per_gpu * parts,
        most=most,
        parts=parts,
    )


def _mig_gpus(node: Node, whole_gpus: int, devices: dict[str, tuple[int, _Device]]) -> int:
    """GPUs in MIG mode: what the count label leaves beside whole GPUs, at least what the instances need."""
    needed = max(-(-count // device.per_gpu) for count, device in devices.values())
    compute = sum(count * device.compute_milli for count, device in devices.values())
    return max(gfd.gpu_count(node.labels) - whole_gpus, needed, -(-compute // WHOLE))


def _all_whole(pools: list[Pool], division: SharedGpus | None) -> bool:
    whole_devices = all(pool.compute_milli == WHOLE for pool in pools)
    return whole_devices and bool(pools or division)


def _closed(
    node: Node, division: SharedGpus | None, devices: Mapping[str, tuple[int, _Device]]
) -> tuple[str, Reason]:
    """Why the node takes nothing new, in words and by its kind."""
    if gfd.repartitioning(node.labels):
        return "", Reason.REPARTITIONING
    if parse_product(node.labels.get("nvidia.com/gpu.product", "")).profile == "INVALID":
        return "", Reason.INVALID_LAYOUT
    if division and (division.closed or (twice := _side_by_side(node, division, devices))):
        return f"node takes nothing new: {division.closed or twice}", division.reason
    sign = "" if division and division.sick else health.reported(node)
    return (f"node takes nothing new: {sign}", Reason.UNHEALTHY_GPU) if sign else ("", Reason.FITS)


def _side_by_side(node: Node, division: SharedGpus, devices: Mapping[str, tuple[int, _Device]]) -> str:
    """Why GPUs that a sharing system divides may be advertised by NVIDIA's plugin, too; "" where the node has
    GPUs enough for both."""
    plain = {name: -(-count // one.per_gpu) for name, (count, one) in devices.items() if name in NVIDIA}
    needed = len(division.gpus) + sum(plain.values())
    if not plain or gfd.gpu_count(node.labels) >= needed:
        return ""
    return f"{' and '.join(plain)} may be the GPUs that are divided as {division.resource}"
