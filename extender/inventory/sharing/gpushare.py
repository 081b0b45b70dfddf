"""GPUs of a gpushare node: ``aliyun.com/gpu-mem`` units of memory on ``aliyun.com/gpu-count`` equal GPUs.

Facts (AliyunContainerService/gpushare-scheduler-extender at c0b6141, ``pkg/cache/nodeinfo.go``; the plugin at
45fb8b8, ``pkg/gpu/nvidia``): every GPU has total / count units and is named by its index. The plugin's
configuration says whether a unit is a GiB or a MiB. Here memory is counted in this unit, as in
``dialects/sharing/gpushare.py``.
"""

from __future__ import annotations

from extender.inventory.shared_gpus import InventoryError, SharedGpus, advertises_nvidia
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB, GPUS_PER_NODE
from packing.model.node_spec import Gpu

RESOURCE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if gpushare shares them. Raises InventoryError."""
    units, gpus = (whole(node.allocatable.get(name, "0")) for name in (RESOURCE, COUNT))
    if not units:
        if gpus and advertises_nvidia(node):
            raise InventoryError(f"{COUNT} is advertised without {RESOURCE}, beside NVIDIA's devices")
        return None
    if not 0 < gpus <= min(units, GPUS_PER_NODE) or units // gpus > GPU_MIB:
        raise InventoryError(f"{RESOURCE}: {units} units on {gpus} GPUs ({COUNT}) are impossible")
    return SharedGpus(RESOURCE, RESOURCE, (Gpu(units // gpus, divisible=True),) * gpus)
