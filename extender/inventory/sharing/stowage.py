"""Nodes set aside for Stowage's own shares: the label ``stowage.dev/gpu-sharing: "true"``.

Nothing on such a node divides a GPU: the container gets the index and restrains itself. The plain device
plugin must not hand out the same GPUs, so the node takes no pods that ask for ``nvidia.com/gpu``; one that
runs there all the same may be on any of them, and counts on each.

Where that plugin advertises fewer GPUs than the label ``nvidia.com/gpu.count`` has, some are sick. Which ones
is not known, so the node takes nothing new.
"""

from __future__ import annotations

from extender.inventory import gfd_labels as gfd
from extender.inventory.shared_gpus import InventoryError, SharedGpus
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPUS_PER_NODE
from packing.model.node_spec import Gpu
from packing.model.reasons import Reason

RESOURCE, WHOLE_GPU = "stowage.dev/gpu", "nvidia.com/gpu"
LABEL = "stowage.dev/gpu-sharing"


def divided(node: Node, memory_mib: int) -> SharedGpus | None:
    """The node's GPUs if it is set aside; ``memory_mib`` of each, 0 if not known. Raises InventoryError."""
    if node.labels.get(LABEL) != "true":
        return None
    card = gfd.card(node.labels)
    if card.replicas > 1 or (card.product and (card.product.shared or card.product.profile)):
        raise InventoryError(f"{LABEL}: the device plugin divides the GPUs already")
    advertised, labelled = whole(node.allocatable.get(WHOLE_GPU, "0")), gfd.gpu_count(node.labels)
    gpus = labelled or advertised
    if not 0 < gpus <= GPUS_PER_NODE or advertised > gpus or not memory_mib:
        raise InventoryError(f"{LABEL}: the number or the memory of the node's GPUs is not known")
    closed = f"{advertised} of {gpus} GPUs are advertised, and which ones is not known"
    return SharedGpus(
        RESOURCE,
        LABEL,
        (Gpu(memory_mib, divisible=True),) * gpus,
        whole=WHOLE_GPU,
        open=False,
        replaces=frozenset({WHOLE_GPU}),
        closed=closed if 0 < advertised < gpus else "",
        reason=Reason.UNHEALTHY_GPU,
    )
