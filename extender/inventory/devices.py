"""Counted GPU devices: how many a node has of each extended resource, and what one of them is.

``allocatable`` says how many there are (never ``capacity``, never a label that counts). Labels, the catalogue
and the name of the resource say what one is: a GPU, a MIG instance, or a replica of either.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from extender.dialects.shared_gpus import AMD_GPU, MIG_PREFIX, NVIDIA, InventoryError, is_gpu_resource
from extender.inventory import cloud_labels, gfd_labels
from extender.inventory.gpu_labels import AMD_MEMORY, GpuLabels
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB, GPUS_PER_NODE, quoted
from packing.model.gpu_catalogue import Model, Profile, find_model, parse_profile, placement_of
from packing.model.request import WHOLE

_SHARED_SUFFIX = ".shared"


@dataclass(frozen=True, slots=True)
class CountedDevices:
    """``count`` devices, each with this compute and memory, on GPUs with ``gpu_memory_mib`` each.

    ``per_gpu`` devices are on one GPU. ``replicas`` of them share one MIG instance with this ``profile``, or
    one GPU if it is None. A container may request ``per_container`` of them at most, 0 for any number.
    ``gpu_compute_milli``: of the GPUs, less than ``WHOLE`` where a virtual machine has only a part of one.
    """

    count: int
    compute_milli: int
    memory_mib: int
    gpu_memory_mib: int
    per_gpu: int = 1
    per_container: int = 0
    profile: Profile | None = None
    replicas: int = 1
    gpu_compute_milli: int = WHOLE

    @property
    def gpus_needed(self) -> int:
        """The fewest GPUs that the devices are on."""
        return -(-self.count // self.per_gpu)

    def separate(self, resource: str) -> int | None:
        """How many of them the plugin gives from different GPUs while none is in use; None for all.

        NVIDIA's plugin gives the replica of the GPU with the fewest in use (internal/rm/allocate.go of
        NVIDIA/k8s-device-plugin: ``distributedAlloc``, at 046b76bb the policy ``distributed``), and kubelet
        asks it (``devicesToAllocate`` of pkg/kubelet/cm/devicemanager/manager.go in kubernetes/kubernetes).
        To it every MIG instance is a device of its own, whatever GPU it is on. Where the name of the resource
        says that it is a part of a GPU, that is what the pod asks for.
        """
        if self.per_gpu == 1 or resource.startswith(MIG_PREFIX) or resource.endswith(_SHARED_SUFFIX):
            return None
        return 0 if self.profile else self.gpus_needed


def counted_devices(
    node: Node, labels: GpuLabels, model: Model | None, ignored: Collection[str]
) -> dict[str, CountedDevices]:
    """The node's devices by resource, sorted by name, without the ``ignored`` resources.

    Raises QuantityError and InventoryError.
    """
    counts = {
        resource: count
        for resource, text in sorted(node.allocatable.items())
        if is_gpu_resource(resource) and resource not in ignored and (count := whole(text)) > 0
    }
    if max(counts.values(), default=0) > DEVICES_PER_NODE:
        raise InventoryError("more GPU devices on one node than can be true")
    return {resource: _devices(node, labels, model, resource, count) for resource, count in counts.items()}


def _devices(node: Node, labels: GpuLabels, model: Model | None, resource: str, count: int) -> CountedDevices:
    if resource.startswith(MIG_PREFIX):
        return _mig_instances(node, model, resource, count)
    if resource in NVIDIA:
        return _nvidia(node, labels, model, resource, count)
    return _other_vendor(node, model, resource, count)


def _nvidia(node: Node, labels: GpuLabels, model: Model | None, resource: str, count: int) -> CountedDevices:
    """GPUs, MIG instances (single strategy), or replicas of either. Where there are more devices than GPUs
    and no label says why, they are replicas."""
    product = labels.device.product
    profile = (product.profile if product else None) or cloud_labels.mig_profile(node.labels)
    if profile:
        devices = _instances(profile, count, labels.device.memory_mib, model)
    else:
        memory, compute = labels.memory_mib(model), labels.compute_milli(model)
        devices = CountedDevices(count, compute, memory, memory, gpu_compute_milli=compute)
    shared = resource.endswith(_SHARED_SUFFIX) or gfd_labels.is_replica(node.labels, labels.device)
    replicas = max(labels.device.replicas, cloud_labels.replicas(node.labels))
    possible = count <= GPUS_PER_NODE * max(replicas, 1)
    gpus = labels.gpu_count or (GPUS_PER_NODE if possible else 1)
    if not profile and count > gpus * max(replicas, 1):
        shared, replicas = True, -(-count // gpus)
    elif shared and replicas < 2 and labels.gpu_count:
        replicas = -(-count // gpus)
    return _replicated(devices, replicas, shared, gfd_labels.replicas_per_container(node.labels, "gpu"))


def _mig_instances(node: Node, model: Model | None, resource: str, count: int) -> CountedDevices:
    device = resource.removeprefix(gfd_labels.PREFIX).removesuffix(_SHARED_SUFFIX)
    labels = gfd_labels.device_labels(node.labels, device)
    if model is None and labels.product:
        model = find_model(labels.product.base)
    devices = _instances(device.removeprefix("mig-"), count, labels.memory_mib, model)
    per_container = gfd_labels.replicas_per_container(node.labels, device)
    return _replicated(devices, labels.replicas, resource.endswith(_SHARED_SUFFIX), per_container)


def _other_vendor(node: Node, model: Model | None, resource: str, count: int) -> CountedDevices:
    vram = node.labels.get(AMD_MEMORY, "") if resource == AMD_GPU else ""
    labelled = gfd_labels.whole_number(vram[:-1]) * 1024 if vram[-1:] == "G" else 0
    memory = labelled if 0 < labelled <= GPU_MIB else (model.memory_mib if model else 0)
    return CountedDevices(count, WHOLE, memory, memory)


def _instances(profile_name: str, count: int, memory_mib: int, model: Model | None) -> CountedDevices:
    """MIG instances with the labelled memory, 0 if not labelled.

    A GPU without known geometry counts with seven compute slices. Raises InventoryError.
    """
    profile = parse_profile(profile_name)
    if profile is None:
        raise InventoryError(f"{quoted(profile_name)} is not a MIG profile (like 1g.10gb)")
    geometry = model.geometry if model else None
    placement = placement_of(geometry, profile, model.memory_mib) if geometry and model else None
    if geometry is None or placement is None or model is None:
        memory, per_gpu = memory_mib or profile.memory_gb * 1024, max(7 // max(profile.compute, 1), 1)
        compute = min(WHOLE * profile.compute // 7, WHOLE)
        gpu_memory = min(memory * per_gpu, GPU_MIB)
        return CountedDevices(count, compute, memory, gpu_memory, per_gpu, profile=profile)
    memory = memory_mib or model.memory_mib * placement.size // geometry.memory_slices
    compute = WHOLE * profile.compute // geometry.compute_slices
    return CountedDevices(count, compute, memory, model.memory_mib, len(placement.starts), profile=profile)


def _replicated(devices: CountedDevices, replicas: int, shared: bool, per_container: int) -> CountedDevices:
    """The devices as time-slicing or MPS replicas; shared devices without a labelled number count as two."""
    if not shared and replicas < 2:
        return devices
    replicas = max(replicas, 2)
    return replace(
        devices,
        compute_milli=devices.compute_milli // replicas,
        memory_mib=devices.memory_mib // replicas,
        per_gpu=devices.per_gpu * replicas,
        per_container=per_container,
        replicas=replicas,
    )
