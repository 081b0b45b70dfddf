"""The GPUs of a node, and the devices or fractions in which they are allocated: one ``NodeSpec`` per node.

Only ``allocatable`` is required: without labels a node has GPUs of an unknown model, and packing treats them
neutrally. If a sharing system divides the GPUs (``shared_gpus.py``), its register lists them. Otherwise
``devices.py`` counts them, and the MIG manager's layout determines the instances of each GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from extender.data import facts
from extender.dialects import gpushare, hami, koordinator, stowage, vgpu_manager, volcano
from extender.dialects.pod_request import AGENT_CONDITIONS, agents_problems
from extender.dialects.shared_gpus import (
    AMD_GPU,
    MIG_PREFIX,
    NVIDIA,
    InventoryError,
    SharedGpus,
    is_gpu_resource,
    is_nvidia,
)
from extender.inventory.devices import (
    CountedDevices,
    DevicesByGpu,
    counted_devices,
    devices_by_gpu,
    gpus_of_instances,
    layout_is_due,
    without_leftovers,
)
from extender.inventory.gpu_labels import (
    AMD_MEMORY,
    AMD_PRODUCT,
    INSTANCE_TYPE,
    PRODUCT,
    SAY_MEMORY,
    UNKNOWN_MEMORY,
    GpuLabels,
    cuda_version,
    label_number,
    read_gpu_labels,
    reconfiguring,
)
from extender.inventory.node_state import is_leaving, is_spot, other_allocator, passes_through
from extender.k8s import gpu_health
from extender.k8s.objects import KoordinatorDevice, MigLayouts, Node
from extender.k8s.quantity import QuantityError, milli, whole
from extender.untrusted.limits import GPUS_PER_NODE, NAME, RESOURCES, quoted, shorten
from packing.fleet.network import Domains
from packing.model.gpu_catalog import Model, find_model, unknown_model
from packing.model.node_spec import FOR_MACHINES, Gpu, NodeSpec, Pool
from packing.model.nvlink import Islands, parse_islands, reference_islands
from packing.model.reasons import Reason
from packing.model.request import WHOLE

STOWAGE_SHARING = "stowage.dev/gpu-sharing"
_REQUIRED = {
    *(hami.REGISTER, hami.AMD_REGISTER, hami.HANDSHAKE, hami.CORDON, volcano.REGISTER),
    *(vgpu_manager.REGISTER, vgpu_manager.CONFIG, koordinator.MODEL, koordinator.ISOLATION),
    *(STOWAGE_SHARING, stowage.GPU_UUIDS),
    *(gpu_health.IGNORE_LABEL, INSTANCE_TYPE, *gpu_health.LABELS),
}
"""Annotations and labels from which the inventory is read. If one of them is too large, the inventory is
unknown."""
_REGISTERS = {hami.REGISTER, hami.AMD_REGISTER, vgpu_manager.REGISTER, volcano.REGISTER}
_NVLINK = "nvlink.feature.node.kubernetes.io/"
_ISLANDS = _NVLINK + "islands"
_CLIQUE = "nvidia.com/gpu.clique"
_DIRECT = frozenset({"bridge", "mesh"})
_MOST_DIRECT = 4
"""Maximum number of GPUs of an island in the catalog with direct links to each other; larger ones have a
switch."""
LEVELS: list[list[str]] = facts("network")["levels"]
"""From the nearest domain to the farthest: NVLink between nodes, then switches. At each level, the first
label that a node has counts."""
_REQUIRED_PREFIXES = (
    *("nvidia.com/gpu.", "nvidia.com/mig", "amd.com/gpu.", "cloud.google.com/gke-", _NVLINK),
    *("karpenter.", "eks.amazonaws.com/instance-gpu-", "aliyun.accelerator/", "doks.digitalocean.com/gpu-"),
)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a node's inventory: names of labels, annotations or resources, "" if there is none.

    ``truth`` is ``placement`` if annotations of pods list their GPUs, ``counts`` if only the device plugin
    knows them. ``layout``: source of the devices of each GPU; "" if they are guessed. ``islands``: source of
    the NVLink islands, a label or the catalog of GPU models.
    """

    devices: str
    model: str
    truth: Literal["placement", "counts"]
    layout: str = ""
    islands: str = ""


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """The inventory of a node. ``problem``: why it accepts no new pods, or what was ignored or truncated; ""
    if nothing. ``unoffered``: the number of its GPUs in addition to those that it offers; 0: an unknown
    number; None: none that are known. ``unhealthy``: the number of GPUs that the sharing system lists as
    unhealthy. ``counted_as``: the resource of its shares where Stowage reads another one. ``layout_problem``:
    why its MIG layout is not used."""

    spec: NodeSpec
    sources: Sources
    problem: str = ""
    unoffered: int | None = None
    unhealthy: int = 0
    counted_as: str = ""
    layout_problem: str = ""


def inventory_of(
    node: Node,
    device: KoordinatorDevice | None = None,
    layouts: MigLayouts | None = None,
    *,
    is_new: bool = True,
    layout_changes: bool = False,
    spot_marks: Collection[str] = (),
) -> NodeInventory:
    """Read a node, together with its Koordinator Device and its MIG layouts. ``is_new``: the MIG manager may
    not have started there yet. ``layout_changes``: Stowage is about to change the node's MIG layout.
    ``spot_marks``: see ``is_spot``.

    Raises QuantityError or InventoryError if something that it advertises is unreadable.
    """
    _check_readable(node)
    if device and device.problem:
        raise InventoryError(f"Koordinator's Device: {device.problem}")
    labels = read_gpu_labels(node.labels)
    shared = _shared_gpus(node, labels, device)
    advertised = sum(whole(node.allocatable.get(name, "0")) for name in NVIDIA)  # GPUs or their replicas
    labels, several_models = (labels, "") if shared else labels.of_one_model(advertised)
    first, *others = shared.products if shared and shared.products else [""]
    product = "" if others else labels.product or first
    model = find_model(product)
    sized_as = model or unknown_model(labels.memory_mib(None), _profiles(node))
    devices = counted_devices(node, labels, sized_as, shared.replaced if shared else ())
    by_gpu, layout_problem = devices_by_gpu(node, labels.gpu_count, None if shared else layouts, devices)
    devices, leftovers = (devices, "") if by_gpu else without_leftovers(node, labels, devices)
    gpus = _Gpus(labels, shared, devices, by_gpu)
    reason, blocked_by = _blocked(node, labels, shared, devices)
    if reason is Reason.FITS and is_new and layout_is_due(node, layouts, devices):
        reason = Reason.REPARTITIONING
    if reason is Reason.FITS and layout_changes:
        reason = Reason.LAYOUT_CHANGES
    whole_gpus = all(pool.compute_milli == WHOLE for pool in gpus.pools) and bool(gpus.pools or shared)
    peers = nvlink_islands(node.labels, len(gpus.gpus), model if whole_gpus else None)
    problems_of_agents = agents_problems(node, shared.resource) if shared else {}
    spec = NodeSpec(
        node.name,
        milli(node.allocatable.get("cpu", "0")),  # rounded up, as kube-scheduler does (Resource.Add)
        whole(node.allocatable.get("memory", "0")),
        tuple(gpus.gpus),
        tuple(gpus.pools),
        model.name if model else None,
        peers.islands,
        reason,
        product,
        cuda_version(node.labels),
        shared.resource if shared else "",
        FOR_MACHINES if passes_through(node) else shared.mode if shared else "",
        is_spot(node, spot_marks),
        agents=frozenset(name for name, lacks in problems_of_agents.items() if not lacks),
        no_nvlink=bool(peers.source and not peers.islands),
        plugin_keeps_islands=peers.plugin_keeps,
    )
    layout = f"configmap {layouts.name}" if layouts and by_gpu else ""
    unsaid = several_models or _unlabeled_replicas(labels, devices)
    no_memory = "" if several_models else _unknown_memory(gpus.gpus, shared, devices)
    problems = blocked_by, unsaid, no_memory, layout_problem, leftovers, gpushare.leftover(node)
    problem = shorten("; ".join(filter(None, (*problems, peers.problem, node.problem))))
    sources = replace(_sources(node, labels, shared, layout), islands=peers.source)
    beside = _unoffered(node, labels, model, shared, spec)
    of_system = (shared.unhealthy, shared.counted_as) if shared else (0, "")
    return NodeInventory(spec, sources, problem, beside, *of_system, layout_problem)


def known_gpus(node: Node) -> int:
    """Number of GPUs of a node with an unreadable inventory: by its labels, otherwise as many as it
    advertises; 0 if unknown."""
    labels = read_gpu_labels(node.labels)
    count = _labeled_gpus(labels)
    of_parts = labels.device.replicas > 1 or bool(_REGISTERS & {*node.annotations, *node.unreadable})
    if not count and not of_parts and len(node.allocatable) <= RESOURCES:
        amounts = {**node.allocatable, **node.capacity}.items()
        gpus = (text for name, text in amounts if is_gpu_resource(name) and not name.startswith(MIG_PREFIX))
        try:
            count = sum(map(whole, gpus))
        except QuantityError:
            return 0
    return count if count <= GPUS_PER_NODE else 0


def _labeled_gpus(labels: GpuLabels) -> int:
    """Number of GPUs according to the labels; 0 if they count none, or MIG instances."""
    product = labels.device.product
    return 0 if product and product.profile else min(labels.gpu_count, GPUS_PER_NODE)


def _unoffered(
    node: Node, labels: GpuLabels, model: Model | None, shared: SharedGpus | None, spec: NodeSpec
) -> int | None:
    """Number of GPUs that are in ``capacity`` or in the labels, and not in ``allocatable``; 0: an unknown
    number. None if there are none, or if MIG instances or shares make the comparison meaningless."""
    counted = max(_labeled_gpus(labels), labels.cloud_count)
    has_some = labels.product_label not in ("", PRODUCT)
    has_some |= node.labels.get("nvidia.com/gpu.present") == "true"
    other = None if spec.gpus else other_allocator(node)
    if not spec.gpus and (counted or has_some or other):
        return counted or (other.gpus if other else 0)
    product = labels.device.product
    if shared or (product and product.profile) or any(MIG_PREFIX in pool.resource for pool in spec.pools):
        return None
    whole_node = replace(node, allocatable={**node.allocatable, **node.capacity})
    try:
        gpus = _Gpus(labels, None, counted_devices(whole_node, labels, model, ()), ()).gpus
    except (InventoryError, QuantityError):
        return None
    return max(0, min(max(len(gpus), counted), counted or GPUS_PER_NODE) - len(spec.gpus)) or None


def _check_readable(node: Node) -> None:
    """Raises InventoryError if something from which the inventory is read is missing or too large."""
    for name in node.unreadable:
        if name.startswith("."):
            raise InventoryError(node.problem)
        if name in _REQUIRED or name.startswith(_REQUIRED_PREFIXES):
            raise InventoryError(f"{quoted(name)} is too long to be read")
    if (count := len(node.allocatable)) > RESOURCES:
        raise InventoryError(f"allocatable has {count} resources: at most {RESOURCES} are read")
    for label in (PRODUCT, AMD_PRODUCT):
        if len(node.labels.get(label, "")) > NAME:
            raise InventoryError(f"label {label} has more than {NAME} characters")


def _unlabeled_replicas(labels: GpuLabels, devices: Mapping[str, CountedDevices]) -> str:
    """Description of devices that count as replicas because there are more of them than GPUs; "" if there are
    none."""
    if labels.device.replicas > 1 or not labels.counted_by_gfd:
        return ""
    unsaid = [name for name, counted in devices.items() if name == NVIDIA[0] and counted.replicas > 1]
    if not unsaid or (labels.device.product and labels.device.product.shared):
        return ""
    count = devices[unsaid[0]].count
    return f"{count} {unsaid[0]} on {labels.gpu_count} GPUs count as replicas, which no label declares"


def _unknown_memory(
    gpus: Iterable[Gpu], shared: SharedGpus | None, devices: Mapping[str, CountedDevices]
) -> str:
    """How to declare the memory of GPUs if it is unknown; "" if it is known, or if there is no label for
    it."""
    if shared or all(gpu.memory_mib for gpu in gpus):
        return ""
    if any(map(is_nvidia, devices)):
        return f"{UNKNOWN_MEMORY}: {SAY_MEMORY}"
    return f"{UNKNOWN_MEMORY}: set the label {AMD_MEMORY} (for example 192G)" if AMD_GPU in devices else ""


def _shared_gpus(node: Node, labels: GpuLabels, device: KoordinatorDevice | None) -> SharedGpus | None:
    """The GPUs that a sharing system divides, None without a sharing system. Two on one node are an error."""
    of_systems = [system.shared_gpus(node) for system in (hami, vgpu_manager, volcano, gpushare)]
    of_systems += [hami.amd_gpus(node), koordinator.shared_gpus(node, device), _stowage_gpus(node, labels)]
    found = [shared for shared in of_systems if shared]
    for empty in (shared for shared in found if not shared.gpus):
        raise InventoryError(f"{empty.source} lists no GPU")
    if len(found) > 1:
        raise InventoryError(f"GPUs are shared as {' and as '.join(shared.resource for shared in found)}")
    return found[0] if found else None


def _profiles(node: Node) -> frozenset[str]:
    """The MIG profiles of the node's instances (strategy mixed)."""
    names = (name for name, text in node.allocatable.items() if name.startswith(MIG_PREFIX) and text != "0")
    return frozenset(name.removeprefix(MIG_PREFIX).removesuffix(".shared") for name in names)


class _Gpus:
    def __init__(
        self,
        labels: GpuLabels,
        shared: SharedGpus | None,
        devices: Mapping[str, CountedDevices],
        by_gpu: DevicesByGpu,
    ) -> None:
        self.gpus: list[Gpu] = []
        self.pools: list[Pool] = []
        if shared:
            self._add_shared(shared)
        if by_gpu:
            self._add_by_gpu(devices, by_gpu)
            devices = {name: counted for name, counted in devices.items() if not is_nvidia(name)}
        self._add_counted(labels, devices)

    def _add_shared(self, shared: SharedGpus) -> None:
        """Add the GPUs of a sharing system, and the pool of those that can be allocated whole."""
        self.gpus.extend(shared.gpus)
        whole = [
            index
            for index, gpu in enumerate(shared.gpus)
            if gpu.divisible and not (gpu.instances and gpu.compute_milli < WHOLE)
        ]
        if shared.whole_gpu and whole:
            total = len(whole) if shared.whole_gpu_allowed else 0
            memory = max(shared.gpus[index].memory_mib for index in whole)
            self.pools.append(Pool(shared.whole_gpu, total, tuple(whole), WHOLE, memory))

    def _add_by_gpu(self, devices: Mapping[str, CountedDevices], by_gpu: DevicesByGpu) -> None:
        """Add GPUs with a known number of devices on each."""
        first, largest = len(self.gpus), max(counted.gpu_memory_mib for counted in devices.values())
        for on_gpu in by_gpu:
            self.gpus.append(Gpu(max((devices[name].gpu_memory_mib for name in on_gpu), default=largest)))
        for name in sorted({name for on_gpu in by_gpu for name in on_gpu}):
            counts = [(first + i, on_gpu[name]) for i, on_gpu in enumerate(by_gpu) if name in on_gpu]
            indices, each = zip(*counts, strict=True)
            self._add_pool(name, devices[name], indices, each)

    def _add_counted(self, labels: GpuLabels, devices: Mapping[str, CountedDevices]) -> None:
        """Add GPUs for the devices. All MIG profiles share GPUs, every other resource has separate GPUs."""
        for name, counted in devices.items():
            if not name.startswith(MIG_PREFIX):
                self._add_group({name: counted}, counted.gpus_needed)
        instances = {name: counted for name, counted in devices.items() if name.startswith(MIG_PREFIX)}
        if instances:
            # GPUs in MIG mode: the remaining GPUs of the label, and at least as many as the instances need.
            needed = gpus_of_instances(instances.values())
            self._add_group(instances, max(labels.gpu_count - len(self.gpus), needed))

    def _add_group(self, devices: Mapping[str, CountedDevices], count: int) -> None:
        """Add ``count`` GPUs over which these devices are distributed. Raises InventoryError."""
        first = len(self.gpus)
        if first + count > GPUS_PER_NODE:
            names = quoted(", ".join(devices))
            raise InventoryError(f"{names}: {first + count} GPUs on one node are impossible")
        memory = max(counted.gpu_memory_mib for counted in devices.values())
        compute = max(counted.gpu_compute_milli for counted in devices.values())
        self.gpus.extend([Gpu(memory, compute_milli=compute)] * count)
        for name, counted in devices.items():
            self._add_pool(name, counted, range(first, first + count), ())

    def _add_pool(
        self, name: str, counted: CountedDevices, gpus: Iterable[int], each: tuple[int, ...]
    ) -> None:
        size = counted.compute_milli, counted.memory_mib
        profile = str(counted.profile) if counted.profile and counted.replicas == 1 else ""
        most, separate = counted.per_container, counted.separate(name)
        parts = counted.replicas if counted.replicas > 1 and not counted.profile else 0
        parts = counted.count if counted.is_many_gpus else parts
        self.pools.append(Pool(name, counted.count, tuple(gpus), *size, most, each, separate, profile, parts))


def _blocked(
    node: Node, labels: GpuLabels, shared: SharedGpus | None, devices: Mapping[str, CountedDevices]
) -> tuple[Reason, str]:
    """Reason the node accepts no new pods (``FITS`` if it does), with details where needed."""
    if is_leaving(node):
        return Reason.LEAVING, ""
    if reconfiguring(node.labels):
        return Reason.REPARTITIONING, ""
    product = labels.device.product
    if product and product.profile == "INVALID":
        return Reason.INVALID_LAYOUT, ""
    if shared and (problem := shared.problem or _advertised_twice(labels, shared, devices)):
        return shared.reason, f"node accepts no new pods: {problem}"
    sign = "" if shared and shared.unhealthy else gpu_health.unhealthy_gpu_sign(node, AGENT_CONDITIONS)
    return (Reason.UNHEALTHY_GPU, f"node accepts no new pods: {sign}") if sign else (Reason.FITS, "")


def _advertised_twice(labels: GpuLabels, shared: SharedGpus, devices: Mapping[str, CountedDevices]) -> str:
    """The problem if NVIDIA's plugin may also advertise the shared GPUs, "" if there are enough GPUs for
    both."""
    needed = {name: counted.gpus_needed for name, counted in devices.items() if name in NVIDIA}
    if not needed or labels.gpu_count >= len(shared.gpus) + sum(needed.values()):
        return ""
    return f"{' and '.join(needed)} may be the GPUs that are shared as {shared.resource}"


def _stowage_gpus(node: Node, labels: GpuLabels) -> SharedGpus | None:
    """The node's GPUs if Stowage itself shares them, by the label ``stowage.dev/gpu-sharing: "true"``. Raises
    InventoryError.

    Nothing on such a node divides a GPU: the container receives an index and must limit itself. NVIDIA's
    device plugin must not allocate the same GPUs, so the node accepts no pods that request
    ``nvidia.com/gpu``. If such a pod runs there nevertheless, it may have any GPU, so it counts on each. If
    that plugin advertises fewer GPUs than the label ``nvidia.com/gpu.count``, some are unhealthy. It does not
    report which, so the node accepts no new pods.
    """
    if node.labels.get(STOWAGE_SHARING) != "true":
        return None
    product = labels.device.product
    if labels.device.replicas > 1 or (product and (product.shared or product.profile)):
        raise InventoryError(f"{STOWAGE_SHARING}: the device plugin already divides the GPUs")
    memory_mib = labels.memory_mib(find_model(labels.product))
    advertised = whole(node.allocatable.get(NVIDIA[0], "0"))
    gpus = labels.gpu_count or advertised
    if not 0 < gpus <= GPUS_PER_NODE or advertised > gpus:
        raise InventoryError(
            f"{STOWAGE_SHARING}: the number of the node's GPUs is unknown: set the label nvidia.com/gpu.count"
        )
    problem, reason = "", Reason.UNHEALTHY_GPU
    if 0 < advertised < gpus:
        problem = f"{advertised} of {gpus} GPUs are advertised, and it is unknown which ones"
    if not memory_mib:
        problem, reason = f"{UNKNOWN_MEMORY}: {SAY_MEMORY}", Reason.UNREADABLE
    return SharedGpus(
        stowage.RESOURCE,
        STOWAGE_SHARING,
        tuple(Gpu(memory_mib, divisible=True, uuid=uuid) for uuid in _gpu_uuids(node, gpus)),
        whole_gpu=NVIDIA[0],
        whole_gpu_allowed=False,
        replaced=frozenset({NVIDIA[0]}),
        problem=problem,
        reason=reason,
    )


def _gpu_uuids(node: Node, gpus: int) -> list[str]:
    """The UUIDs of the node's GPUs by index, "" if unknown. Raises InventoryError."""
    text = node.annotations.get(stowage.GPU_UUIDS, "")
    uuids = [uuid.strip() for uuid in text.split(",")]
    if text and not (len(uuids) == len(set(uuids)) == gpus and all(0 < len(uuid) <= NAME for uuid in uuids)):
        raise InventoryError(f"{stowage.GPU_UUIDS} does not name each of the {gpus} GPUs once")
    return uuids if text else [""] * gpus


def _sources(node: Node, labels: GpuLabels, shared: SharedGpus | None, layout: str) -> Sources:
    if shared:
        register = shared.source if shared.products else ""
        return Sources(shared.source, labels.product_label or register, "placement")
    devices = "allocatable" if any(map(is_gpu_resource, node.allocatable)) else ""
    return Sources(devices, labels.product_label, "counts", layout)


# NVLink islands of a node, from the first known of these: topology labels, catalog, clique label; and the
# domains of the network between nodes to which it belongs. No tool publishes NVLink topology as node labels,
# so the labels are Stowage's own, in a namespace that Node Feature Discovery accepts.
# deploy/nvlink-labeller writes them. Only pods that require an island are filtered by it.


@dataclass(frozen=True, slots=True)
class NvlinkIslands:
    """Groups of GPUs that are NVLink peers, and ``source``: the label, or the catalog; "" if unknown.

    ``plugin_keeps``: the device plugin allocates GPUs of one island to a pod if possible. NVIDIA's plugin
    counts NVLinks only between GPUs, not to a switch (NVIDIA/go-gpuallocator, internal/links/device.go), so
    on a switch with a degraded GPU it allocates that GPU together with others. ``problem``: why the label was
    ignored.
    """

    islands: Islands = ()
    source: str = ""
    plugin_keeps: bool = True
    problem: str = ""


def nvlink_islands(labels: Mapping[str, str], gpus: int, model: Model | None) -> NvlinkIslands:
    """The islands among ``gpus`` GPUs. ``model`` is None if it is unknown or the GPUs are partitioned."""
    problem = ""
    if _ISLANDS in labels and gpus:
        try:
            islands = _labeled_islands(labels, gpus)
            return NvlinkIslands(islands, _ISLANDS, labels.get(_NVLINK + "fabric") in _DIRECT)
        except ValueError as error:
            problem = f"label {_ISLANDS} is ignored: {error}"
    if model is not None:
        islands, direct = reference_islands(gpus, model.island), model.island <= _MOST_DIRECT
        return NvlinkIslands(islands, "catalog", direct, problem)
    if labels.get(_CLIQUE) and gpus:
        return NvlinkIslands(reference_islands(gpus, gpus), _CLIQUE, problem=problem)
    return NvlinkIslands(problem=problem)


def _labeled_islands(labels: Mapping[str, str], gpus: int) -> Islands:
    """The islands of the label. Raises ValueError if it is malformed or describes another number of GPUs."""
    counted = label_number(labels, _NVLINK + "gpus")
    if counted != gpus:
        raise ValueError(f"it describes {counted or 'an unknown number of'} GPUs, but the node has {gpus}")
    try:
        islands = parse_islands(labels[_ISLANDS])
    except ValueError as error:
        raise ValueError(quoted(str(error))) from None
    if any(gpu >= gpus for island in islands for gpu in island):
        raise ValueError(f"it names GPUs above {gpus - 1}")
    return islands


def domains_of(labels: Mapping[str, str]) -> Domains:
    """The domains in a node's labels: for each level the label and its value; "" if there is none."""
    return tuple(
        next((f"{label}={labels[label]}" for label in level if labels.get(label)), "") for level in LEVELS
    )
