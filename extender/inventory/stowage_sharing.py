"""Nodes whose GPUs Stowage itself shares: those with the label ``stowage.dev/gpu-sharing: "true"``.

Nothing on such a node divides a GPU: the container gets an index and must limit itself. NVIDIA's device
plugin must not hand out the same GPUs, so the node accepts no pods that request ``nvidia.com/gpu``. If such
a pod runs there all the same, it may have any GPU, so it counts on each.

If that plugin advertises fewer GPUs than the label ``nvidia.com/gpu.count`` says, some are unhealthy. It does
not say which, so the node takes no new pods.
"""

from __future__ import annotations

from extender.dialects import stowage
from extender.dialects.shared_gpus import InventoryError, SharedGpus
from extender.inventory.gpu_labels import SAY_MEMORY, UNKNOWN_MEMORY, GpuLabels
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPUS_PER_NODE
from packing.model.gpu_catalogue import find_model
from packing.model.node_spec import Gpu
from packing.model.reasons import Reason

WHOLE_GPU = "nvidia.com/gpu"
LABEL = "stowage.dev/gpu-sharing"


def shared_gpus(node: Node, labels: GpuLabels) -> SharedGpus | None:
    """The node's GPUs if it has the label. Raises InventoryError."""
    if node.labels.get(LABEL) != "true":
        return None
    product = labels.device.product
    if labels.device.replicas > 1 or (product and (product.shared or product.profile)):
        raise InventoryError(f"{LABEL}: the device plugin divides the GPUs already")
    memory_mib = labels.memory_mib(find_model(labels.product))
    advertised = whole(node.allocatable.get(WHOLE_GPU, "0"))
    gpus = labels.gpu_count or advertised
    if not 0 < gpus <= GPUS_PER_NODE or advertised > gpus:
        raise InventoryError(
            f"{LABEL}: the number of the node's GPUs is not known: set the label nvidia.com/gpu.count"
        )
    problem, reason = "", Reason.UNHEALTHY_GPU
    if 0 < advertised < gpus:
        problem = f"{advertised} of {gpus} GPUs are advertised, and which ones is not known"
    if not memory_mib:
        problem, reason = f"{UNKNOWN_MEMORY}: {SAY_MEMORY}", Reason.UNREADABLE
    return SharedGpus(
        stowage.RESOURCE,
        LABEL,
        (Gpu(memory_mib, divisible=True),) * gpus,
        whole_gpu=WHOLE_GPU,
        whole_gpu_allowed=False,
        replaced=frozenset({WHOLE_GPU}),
        problem=problem,
        reason=reason,
    )
