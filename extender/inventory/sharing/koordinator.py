"""GPUs of a Koordinator node: ``koordinator.sh/gpu-core`` and ``gpu-memory`` are sums over its healthy GPUs.

Facts (koordinator-sh/koordinator at a7a1b76b): a GPU has 100 of ``gpu-core`` and 100 of ``gpu.shared``,
memory is in bytes (``pkg/slo-controller/noderesource/plugins/gpudeviceresource/plugin.go``), and the model is
the label ``node.koordinator.sh/gpu-model``. The Device object with the node's name lists the GPUs with minor
number, UUID, health and resources (``apis/scheduling/v1alpha1/device_types.go``). Without it the GPUs count
as equal, with minor numbers from 0. ``nvidia.com/gpu`` is a whole GPU among them. The label
``koordinator.sh/gpu-isolation-provider`` says what limits the parts (``apis/extension/device_share.go``).

If the Device lists GPUs and the sums are not advertised, Koordinator's pods may still hold parts of them. So
the GPUs stay accounted for, and the node takes no new pods.
"""

from __future__ import annotations

from extender.inventory.shared_gpus import InventoryError, Parser, SharedGpus, advertises_nvidia
from extender.k8s.device_objects import KoordinatorDevice, KoordinatorGpu
from extender.k8s.objects import Node
from extender.k8s.quantity import mib, whole
from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB, GPUS_PER_NODE, quoted
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE

RESOURCE, WHOLE_GPU = "koordinator.sh/gpu", "nvidia.com/gpu"
DEVICE = "devices.scheduling.koordinator.sh"
CORE, MEMORY, MODEL = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "node.koordinator.sh/gpu-model"
ISOLATION = "koordinator.sh/gpu-isolation-provider"
_SHARES = 100


def shared_gpus(node: Node, device: KoordinatorDevice | None = None) -> SharedGpus | None:
    """The node's GPUs if Koordinator shares them; ``device`` is the node's Device. Raises InventoryError."""
    core, listed = whole(node.allocatable.get(CORE, "0")), device.gpus if device else ()
    leftover = not core
    if leftover and not (listed and advertises_nvidia(node)):
        return None
    memory, gpus = mib(node.allocatable.get(MEMORY, "0"), round_up=False), core // 100
    if not leftover and (core % 100 or gpus > GPUS_PER_NODE or not gpus <= memory <= gpus * GPU_MIB):
        raise InventoryError(f"{CORE}: {core} with {memory} MiB ({MEMORY}) is impossible")
    model = node.labels.get(MODEL, "")
    return SharedGpus(
        RESOURCE,
        DEVICE if listed else CORE,
        _by_minor(listed) if listed else (Gpu(memory // gpus, True, WHOLE, _SHARES),) * gpus,
        Parser(MODEL).products([model] if model else []),
        whole_gpu=WHOLE_GPU,
        replaced=frozenset({WHOLE_GPU}),
        mode=isolation_mode(node.labels.get(ISOLATION, "")),
        problem=f"{DEVICE} lists GPUs, but {CORE} is not advertised" if leftover else "",
        lists_unhealthy_gpus=not all(gpu.healthy for gpu in listed),
    )


def isolation_mode(provider: str) -> str:
    """How this provider isolates parts, "" being none."""
    return f"isolation provider {quoted(provider)}" if provider else "no isolation provider"


def _by_minor(listed: tuple[KoordinatorGpu, ...]) -> tuple[Gpu, ...]:
    """GPUs at the index of their minor number, by which pods name them. Raises InventoryError."""
    minors = {gpu.minor for gpu in listed}
    if len(minors) < len(listed) or not 0 <= min(minors) <= max(minors) < GPUS_PER_NODE:
        raise InventoryError(f"{DEVICE}: the minor numbers of the GPUs are impossible")
    by_minor = {gpu.minor: _gpu(gpu) for gpu in listed}
    return tuple(by_minor.get(minor, _ABSENT) for minor in range(max(by_minor) + 1))


def _gpu(gpu: KoordinatorGpu) -> Gpu:
    resources = dict(gpu.resources)
    memory, core = mib(resources.get(MEMORY, "0"), round_up=False), whole(resources.get(CORE, "0"))
    if memory > GPU_MIB or core > DEVICES_PER_NODE:
        raise InventoryError(f"{DEVICE}: {core} of {CORE} with {memory} MiB on one GPU is impossible")
    return Gpu(memory, gpu.healthy and memory > 0, core * 10, _SHARES, Parser(DEVICE).text(gpu.uuid))


_ABSENT = Gpu(0)
"""At the index of a minor number that no GPU has: takes no pods."""
