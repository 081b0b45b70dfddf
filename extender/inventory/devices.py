"""Counted GPU devices: the number that a node has of each extended resource, and the kind of each.

The number is from ``allocatable`` (never from ``capacity`` or a label that counts). The kind is from labels,
the catalog and the name of the resource: a GPU, a MIG instance, or a replica of either.

The layout that NVIDIA's MIG manager applied determines the MIG instances of each GPU. Facts
(NVIDIA/mig-parted at bd7160f4): the node label ``nvidia.com/mig.config`` names a layout, and
``nvidia.com/mig.config.state`` is ``success`` once it is applied (``pkg/mig/reconfigure/reconfigure.go``).
Profiles are named as the driver names them; in resource names ``.`` replaces ``+`` (NVIDIA/k8s-device-plugin,
internal/rm). ``device-filter`` selects GPU models by PCI ids, which are in no label. So a layout is expanded
for each model that it names, and the expansion that matches ``allocatable`` is used. This fails for nodes
with GPUs of several models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from extender.dialects.shared_gpus import (
    INTEL,
    MIG_PREFIX,
    NVIDIA,
    InventoryError,
    amd_mode,
    is_gpu_resource,
    is_nvidia,
)
from extender.inventory.gpu_labels import (
    AMD_MEMORY,
    AMD_PRODUCT,
    INTEL_COUNT,
    PREFIX,
    GpuLabels,
    cloud_mig_profile,
    cloud_replicas,
    device_labels,
    is_replica,
    label_number,
    replicas_per_container,
    whole_number,
)
from extender.inventory.node_state import is_virtual
from extender.k8s.objects import MigLayout, MigLayouts, Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB, GPUS_PER_NODE, quoted
from packing.model.gpu_catalog import Model, Profile, find_model, parse_profile, placement_of
from packing.model.request import WHOLE

_SHARED_SUFFIX = ".shared"


@dataclass(frozen=True, slots=True)
class CountedDevices:
    """``count`` devices, each with this compute and memory, on GPUs with ``gpu_memory_mib`` each.

    ``per_gpu`` devices are on one GPU. ``replicas`` of them share one MIG instance with this ``profile``, or
    one GPU if it is None. A container may request at most ``per_container`` of them, 0 for unlimited.
    ``gpu_compute_milli``: compute of each GPU, less than ``WHOLE`` if a virtual machine has only a part of
    one. ``is_many_gpus``: each is a GPU, and more than a machine has, so one GPU of the fleet stands for all.
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
    is_many_gpus: bool = False

    @property
    def gpus_needed(self) -> int:
        """The minimum number of GPUs with these devices."""
        return -(-self.count // self.per_gpu)

    def separate(self, resource: str) -> int | None:
        """Number of devices that the plugin allocates from different GPUs while none is in use; None for all.

        NVIDIA's plugin prefers the replica of the GPU with the fewest in use (internal/rm/allocate.go of
        NVIDIA/k8s-device-plugin: ``distributedAlloc``, at 046b76bb the policy ``distributed``), and kubelet
        follows it (``devicesToAllocate`` of pkg/kubelet/cm/devicemanager/manager.go in
        kubernetes/kubernetes). The plugin treats every MIG instance as a separate device, whatever GPU it is
        on. If the name of the resource denotes a part of a GPU, that is what the pod requests.
        """
        if (
            self.per_gpu == 1
            or self.is_many_gpus
            or resource.startswith(MIG_PREFIX)
            or resource.endswith(_SHARED_SUFFIX)
        ):
            return None
        return self.gpus_needed if resource in NVIDIA and not self.profile else 0


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
        raise InventoryError("an impossible number of GPU devices on one node")
    found = {resource: _devices(node, labels, model, resource, count) for resource, count in counts.items()}
    shared = max(labels.device.replicas, cloud_replicas(node.labels)) > 1
    if max(counts.values(), default=0) > GPUS_PER_NODE and not shared and is_virtual(node):
        for name, of in found.items():
            if of.count > GPUS_PER_NODE and not of.profile:  # the node stands for a cluster: each is a GPU
                mib = of.gpu_memory_mib
                found[name] = CountedDevices(of.count, WHOLE, mib, mib, per_gpu=of.count, is_many_gpus=True)
    return found


def _devices(node: Node, labels: GpuLabels, model: Model | None, resource: str, count: int) -> CountedDevices:
    if resource.startswith(MIG_PREFIX):
        return _mig_instances(node, model, resource, count)
    if resource in NVIDIA:
        return _nvidia(node, labels, model, resource, count)
    return _other_vendor(node, model, resource, count)


def _nvidia(node: Node, labels: GpuLabels, model: Model | None, resource: str, count: int) -> CountedDevices:
    """GPUs, MIG instances (single strategy), or replicas of either. If there are more devices than GPUs and
    no label explains it, they are replicas."""
    product = labels.device.product
    profile = (product.profile if product else None) or cloud_mig_profile(node.labels)
    if profile:
        devices = _instances(profile, count, labels.device.memory_mib, model)
    else:
        memory, compute = labels.memory_mib(model), labels.compute_milli(model)
        devices = CountedDevices(count, compute, memory, memory, gpu_compute_milli=compute)
    shared = resource.endswith(_SHARED_SUFFIX) or is_replica(node.labels, labels.device)
    replicas = max(labels.device.replicas, cloud_replicas(node.labels))
    possible = count <= GPUS_PER_NODE * max(replicas, 1)
    gpus = labels.gpu_count or (GPUS_PER_NODE if possible else 1)
    more_than_said = not profile and count > gpus * max(replicas, 1)
    if more_than_said or (shared and replicas < 2 and labels.gpu_count):
        replicas = -(-count // gpus)
    base = -(-count // max(replicas, 1)) if profile else gpus
    return _replicated(devices, replicas, shared, replicas_per_container(node.labels, "gpu", base))


def _mig_instances(node: Node, model: Model | None, resource: str, count: int) -> CountedDevices:
    device = resource.removeprefix(PREFIX).removesuffix(_SHARED_SUFFIX)
    labels = device_labels(node.labels, device)
    if model is None and labels.product:
        model = find_model(labels.product.base)
    devices = _instances(device.removeprefix("mig-"), count, labels.memory_mib, model)
    per_container = replicas_per_container(node.labels, device, count)
    return _replicated(devices, labels.replicas, resource.endswith(_SHARED_SUFFIX), per_container)


def _other_vendor(node: Node, model: Model | None, resource: str, count: int) -> CountedDevices:
    vram = "" if resource in INTEL else node.labels.get(AMD_MEMORY, "")
    labeled = whole_number(vram[:-1]) * 1024 if vram[-1:] == "G" else 0
    memory = labeled if 0 < labeled <= GPU_MIB else (model.memory_mib if model else 0)
    parts = _amd_parts(node, resource) if resource not in INTEL else _intel_shared(node, count)
    return CountedDevices(count, WHOLE // parts, memory // parts, memory, per_gpu=parts)


def _amd_parts(node: Node, resource: str) -> int:
    """Number of partitions of each GPU: by the name of the resource, or by the label if all have the same
    (ROCm/k8s-device-plugin at ed764684, docs/user-guide/configuration.md). In CPX mode each compute die is a
    partition: an MI300A has six, the others have eight."""
    labels = (node.labels.get(f"amd.com/{name}compute-memory-partition", "") for name in ("", "gpu."))
    mode = amd_mode(resource) or next((amd_mode(f"amd.com/{label}") for label in labels if label), "")
    dies = 6 if "MI300A" in node.labels.get(AMD_PRODUCT, "") else 8
    return {"dpx": 2, "tpx": 3, "qpx": 4, "cpx": dies}.get(mode, 1)


def _intel_shared(node: Node, count: int) -> int:
    """Number of devices per GPU, which pods share (``-shared-dev-num`` of Intel's plugin)."""
    gpus = label_number(node.labels, INTEL_COUNT)
    return -(-count // gpus) if 0 < gpus < count else 1


def _instances(profile_name: str, count: int, memory_mib: int, model: Model | None) -> CountedDevices:
    """MIG instances with the labeled memory, 0 if not labeled.

    A GPU without known geometry counts with seven compute slices. Raises InventoryError.
    """
    profile = parse_profile(profile_name)
    if profile is None:
        raise InventoryError(f"{quoted(profile_name)} is not a MIG profile (such as 1g.10gb)")
    geometry = model.geometry if model else None
    placement = placement_of(geometry, profile, model.memory_mib) if geometry and model else None
    if geometry is None or placement is None or model is None:
        memory, per_gpu = memory_mib or profile.memory_gb * 1024, max(7 // max(profile.compute, 1), 1)
        compute = min(WHOLE * profile.compute // 7, WHOLE)
        if model:  # only its memory is known
            per_gpu = max(1, min(per_gpu, round(model.memory_mib / 1024 / max(profile.memory_gb, 1))))
            return CountedDevices(count, compute, memory, model.memory_mib, per_gpu, profile=profile)
        gpu_memory = min(memory * per_gpu, GPU_MIB)
        return CountedDevices(count, compute, memory, gpu_memory, per_gpu, profile=profile)
    memory = memory_mib or model.memory_mib * placement.size // geometry.memory_slices
    compute = WHOLE * profile.compute // geometry.compute_slices
    return CountedDevices(count, compute, memory, model.memory_mib, len(placement.starts), profile=profile)


def _replicated(devices: CountedDevices, replicas: int, shared: bool, per_container: int) -> CountedDevices:
    """The devices as time-slicing or MPS replicas; shared devices without a labeled number count as two."""
    if not shared and replicas < 2:
        return devices
    replicas = max(replicas, 2)
    return replace(
        devices,
        compute_milli=max(devices.compute_milli // replicas, 1),
        memory_mib=max(devices.memory_mib // replicas, min(devices.memory_mib, 1)),
        per_gpu=devices.per_gpu * replicas,
        per_container=per_container,
        replicas=replicas,
    )


def gpus_of_instances(instances: Collection[CountedDevices]) -> int:
    """The minimum number of GPUs with all these MIG instances."""
    compute = sum(counted.count * counted.compute_milli for counted in instances)
    return max([-(-compute // WHOLE), *(counted.gpus_needed for counted in instances)])


def without_leftovers(
    node: Node, labels: GpuLabels, devices: Mapping[str, CountedDevices]
) -> tuple[dict[str, CountedDevices], str]:
    """The devices that can exist on as many GPUs as GPU feature discovery (GFD) counts, and a problem if
    these are not all: kubelet may continue to list devices of an earlier layout. MIG instances with GFD
    labels, and those of the layout that was applied last, exist; then GPUs count, and then other instances.
    """
    groups: list[list[str]] = [[], [], []]
    applied = node.labels.get(LAYOUT_LABEL, "") if node.labels.get(STATE_LABEL) == "success" else ""
    for name in filter(is_nvidia, devices):
        product = device_labels(node.labels, name.removeprefix(PREFIX)).product
        if name.startswith(MIG_PREFIX) and product and product.base != labels.product:
            return dict(devices), ""  # GPUs of several models: it is unknown which are counted
        is_there = product or applied == f"all-{name.removeprefix(MIG_PREFIX)}"
        groups[1 if name in NVIDIA else 0 if is_there else 2].append(name)
    if not (labels.counted_by_gfd and groups[0] + groups[2]):
        return dict(devices), ""
    found, problems = dict(devices), []
    left = labels.gpu_count - gpus_of_instances([found[name] for name in groups[0]])
    for name in groups[1] + groups[2]:
        if name in groups[2] and gpus_of_instances([devices[name] for name in groups[2]]) <= left:
            break
        count = min(found[name].count, max(left, 0) * found[name].per_gpu)
        if count < found[name].count:
            text = f"{found[name].count} {name} do not fit on {labels.gpu_count} GPUs with those that GPU "
            problems.append(f"{text}feature discovery shows, so {count or 'none'} of them count")
        found[name] = replace(found[name], count=count)
        left -= found[name].gpus_needed
    return {name: counted for name, counted in found.items() if counted.count}, "; ".join(problems)


LAYOUT_LABEL, STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"


DevicesByGpu: TypeAlias = tuple[Mapping[str, int], ...]
"""For each GPU of a node, the number of its devices by resource; () if unknown."""


def applied_layout(node: Node, layouts: MigLayouts | None) -> MigLayout | None:
    """The layout that the MIG manager applied to the node, None if unknown."""
    if layouts is None or node.labels.get(STATE_LABEL) != "success":
        return None
    return layouts.layouts.get(node.labels.get(LAYOUT_LABEL, ""))


def layout_is_due(node: Node, layouts: MigLayouts | None, devices: Mapping[str, CountedDevices]) -> bool:
    """Whether the MIG manager is about to apply a different layout to the node. Until it begins, it has
    written no state."""
    name = node.labels.get(LAYOUT_LABEL, "")
    has = {counted.profile for resource, counted in devices.items() if is_nvidia(resource)}
    if not name or STATE_LABEL in node.labels or not has:
        return False
    if layouts and name in layouts.layouts:
        every = (replace(group, indices=None) for group in layouts.layouts[name])
        return not _sizes(has) <= _sizes(
            profile for group in every for profile in _instances_on_gpu((group,), 0)
        )
    profile = parse_profile(name.removeprefix("all-"))  # in the format of the MIG manager's own layouts
    return _sizes(has) != _sizes([profile]) if profile else (has == {None}) != (name == "all-disabled")


def _sizes(profiles: Iterable[Profile | None]) -> set[tuple[int, int] | None]:
    """The sizes, without attributes, which older device plugins omit."""
    return {(profile.compute, profile.memory_gb) if profile else None for profile in profiles}


def devices_by_gpu(
    node: Node, gpu_count: int, layouts: MigLayouts | None, devices: Mapping[str, CountedDevices]
) -> tuple[DevicesByGpu, str]:
    """NVIDIA's ``devices`` by GPU if the applied layout results in exactly these, otherwise a problem, or "".

    ``gpu_count``: the label of GPU feature discovery, 0 if there is none.
    """
    devices = {name: counted for name, counted in devices.items() if is_nvidia(name)}
    has_instances = any(counted.profile for counted in devices.values())
    layout = applied_layout(node, layouts)
    if layouts is None or layout is None:
        return (), _unknown_layout(node, layouts) if has_instances else ""
    if not devices or not (has_instances or any(group.instances for group in layout)):
        return (), ""  # whole GPUs, or none
    single_strategy = any(c.profile for name, c in devices.items() if name == "nvidia.com/gpu")
    count = 0 if single_strategy or gpu_count > GPUS_PER_NODE else gpu_count  # otherwise it counts instances
    if gpus := _matching_expansion(layout, tuple(sorted(devices.items())), count):
        return gpus, ""
    name = node.labels[LAYOUT_LABEL]
    return (), f"allocatable does not match MIG layout {name} of configmap {layouts.name}, which is ignored"


def _unknown_layout(node: Node, layouts: MigLayouts | None) -> str:
    """The problem if the ConfigMap lacks the node's layout, otherwise ""."""
    name = node.labels.get(LAYOUT_LABEL, "")
    if not name or not layouts or not layouts.layouts or node.labels.get(STATE_LABEL) != "success":
        return ""
    return f"configmap {layouts.name} has no MIG layout {name}"


@lru_cache(maxsize=1024)
def _matching_expansion(
    layout: MigLayout, devices: tuple[tuple[str, CountedDevices], ...], count: int
) -> DevicesByGpu:
    """The devices on each GPU, () if no expansion matches, or several different ones match.

    Cached because nodes of one kind have equal arguments.
    """
    expansions = (_expand(groups, dict(devices), count) for groups in _groups_by_model(layout))
    first, *others = [*filter(None, expansions)] or [()]
    return first if all(other == first for other in others) else ()


def _groups_by_model(layout: MigLayout) -> Iterator[MigLayout]:
    models = dict.fromkeys(model for group in layout for model in group.models)
    of_model = [tuple(g for g in layout if not g.models or model in g.models) for model in (*models, "")]
    yield from dict.fromkeys(of_model)


def instances_by_gpu(layout: MigLayout, gpus: int) -> Iterator[tuple[Mapping[Profile | None, int], ...]]:
    """The instances on each of ``gpus`` GPUs, for each possible GPU model of a node; None stands for the
    whole GPU."""
    for groups in _groups_by_model(layout):
        yield tuple(_instances_on_gpu(groups, index) for index in range(gpus))


def _expand(groups: MigLayout, devices: Mapping[str, CountedDevices], count: int) -> DevicesByGpu:
    """The devices on each of ``count`` GPUs (0: as many as needed), () if they are not ``devices``."""
    left = {name: counted.count for name, counted in devices.items()}
    gpus: list[Mapping[str, int]] = []
    for index in range(count or GPUS_PER_NODE):
        on_gpu = _devices_on_gpu(groups, index, devices)
        if on_gpu is None or sum(n * devices[name].compute_milli for name, n in on_gpu.items()) > WHOLE:
            return ()
        gpus.append(on_gpu)
        left |= {name: left[name] - n for name, n in on_gpu.items()}
        if min(left.values()) < 0:
            return ()
        if not (count or any(left.values())):
            break
    return () if any(left.values()) else tuple(gpus)


def _devices_on_gpu(
    groups: MigLayout, index: int, devices: Mapping[str, CountedDevices]
) -> dict[str, int] | None:
    """Number of devices of each resource on one GPU; None if some are not advertised."""
    on_gpu: dict[str, int] = {}
    by_profile = {counted.profile: name for name, counted in devices.items()}
    for profile, n in _instances_on_gpu(groups, index).items():
        # Older device plugins count instances with an attribute (``1g.10gb+me``) with those without.
        plain = replace(profile, attribute="") if profile else None
        if (name := by_profile.get(profile, by_profile.get(plain))) is None:
            return None
        on_gpu[name] = on_gpu.get(name, 0) + n * devices[name].replicas
    return on_gpu


def _instances_on_gpu(groups: MigLayout, index: int) -> Mapping[Profile | None, int]:
    """Number of instances of each profile on one GPU; a single None if MIG is disabled."""
    group = next((g for g in reversed(groups) if g.indices is None or index in g.indices), None)
    if group is None or group.instances is None:
        return {None: 1}
    instances: Counter[Profile | None] = Counter()
    for name, n in group.instances:
        instances[parse_profile(name.replace("+", ".")) or Profile(0, 0, name)] += n
    return +instances
