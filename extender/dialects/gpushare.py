"""gpushare: ``aliyun.com/gpu-mem`` of one GPU, or of ``aliyun.com/gpu-count`` GPUs in equal shares.

Facts (AliyunContainerService/gpushare-scheduler-extender at c0b6141, ``pkg/utils/{const,pod}.go`` and
``docs/userguide.md``; gpushare-device-plugin at 45fb8b8, ``pkg/gpu/nvidia``): a pod requests memory only, the
sum of its containers, on one GPU. ``ALIYUN_COM_GPU_MEM_IDX`` is the index of that GPU. Alibaba Cloud's ACK
divides N units over M GPUs, N/M each, an integer (help page "Enable Multi-GPU Sharing with Shared GPU
Scheduling"); its pods specify M in a label.

The device plugin chooses the unit (GiB, or MiB with ``--memory-unit=MiB``), and the pod does not specify it.
Stowage therefore counts the memory of such nodes and pods in that unit, in fields that are MiB elsewhere.

``bind`` writes the same annotations as gpushare's scheduler before it binds (``PatchPodAnnotationSpec``). The
plugin picks the pending pod of the right size that was assumed first. Two pods of the same size may therefore
swap GPUs, whichever scheduler binds them. kubelet calls the plugin for one container at a time, and the
plugin compares that request with the sum of the pod's containers (Allocate in ``allocate.go``). So it
recognizes only pods in which one container, and no init container, requests memory. On a node with one GPU it
does not need to recognize a pod. The plugin reads one index. Pods on several GPUs are for ACK's closed-source
plugin, which reads the annotations of another scheduler, so ``bind`` rejects them.

Nodes have ``aliyun.com/gpu-mem`` units of memory on ``aliyun.com/gpu-count`` equal GPUs: every GPU has total
/ count units and is identified by its index (``pkg/cache/nodeinfo.go`` of the extender).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from extender.dialects.dialect import (
    Chosen,
    Claim,
    Claims,
    Dialect,
    parse_indices,
    parse_number,
    parse_positive,
    validate_claims,
)
from extender.dialects.pod_resources import Amounts, RequestError, parse_quantities
from extender.dialects.shared_gpus import InventoryError, SharedGpus
from extender.k8s.objects import Node, Pod, PodSpec
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB, GPUS_PER_NODE
from packing.model.node_spec import Gpu
from packing.model.request import Shares

RESOURCE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if gpushare shares them. Raises InventoryError."""
    units, gpus = (whole(node.allocatable.get(name, "0")) for name in (RESOURCE, COUNT))
    if not units:  # gpushare was removed from the node: kubelet keeps the count that its plugin wrote
        return None
    if not 0 < gpus <= min(units, GPUS_PER_NODE) or units // gpus > GPU_MIB:
        raise InventoryError(f"{RESOURCE}: {units} units on {gpus} GPUs ({COUNT}) are impossible")
    return SharedGpus(RESOURCE, RESOURCE, (Gpu(units // gpus, divisible=True),) * gpus)


def leftover(node: Node) -> str:
    """Description of what gpushare has left behind on a node that other systems now use, and how to remove
    it; "" if nothing. Raises QuantityError."""
    units, gpus = (whole(node.allocatable.get(name, "0")) for name in (RESOURCE, COUNT))
    if units or not gpus:
        return ""
    patch = json.dumps([{"op": "remove", "path": f"/status/capacity/{COUNT.replace('/', '~1')}"}])
    return (
        f"{COUNT} is left over from gpushare, which no longer runs here. To remove it: "
        f"kubectl patch node {node.name} --subresource=status --type=json -p '{patch}'"
    )


INDEX, POD_MEMORY = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"
GPU_MEMORY, ASSIGNED = "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUMED_AT = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"


def _requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    memory = resources.get(RESOURCE, 0)
    if not memory:
        if resources.get(COUNT):
            raise RequestError(f"{COUNT} requires {RESOURCE}")
        return None
    count_text = metadata.get(COUNT) or str(resources.get(COUNT) or "")
    count = parse_positive(COUNT, count_text) if count_text else 1
    if memory % count:
        raise RequestError(f"{RESOURCE}: {memory} cannot be divided into {count} equal integer shares")
    return Shares(count, 0, memory // count, resource=RESOURCE)


def _claims(pod: Pod, requested: Shares | None) -> Claims | None:
    index, pod_memory = pod.annotations.get(INDEX), pod.annotations.get(POD_MEMORY, "0")
    if index is None:
        return None
    try:
        indices = parse_indices(index)
        memory = -(-parse_number(pod_memory) // len(indices))
    except ValueError as error:
        return Claims(RESOURCE, problem=f"{INDEX} or {POD_MEMORY} cannot be read: {error}")
    return Claims(RESOURCE, *validate_claims([Claim(i, memory_mib=memory) for i in indices], requested))


def _assignment(chosen: Chosen) -> dict[str, str]:
    if len(chosen.gpus) != 1:
        raise RequestError("gpushare's device plugin cannot allocate several GPUs to one pod")
    spec, gpus = chosen.pod.spec, chosen.node.gpus
    requesting = [c for c in spec.all_containers if parse_quantities(c.requests)[RESOURCE]]
    if len(gpus) > 1 and (len(requesting) > 1 or requesting[0] in spec.init_containers):
        raise RequestError(
            "on a node with several GPUs gpushare's device plugin recognizes only pods in which one "
            f"container, and no init container, requests {RESOURCE}"
        )
    (index,) = chosen.gpus
    return {
        INDEX: str(index),
        POD_MEMORY: str(chosen.shares.memory_mib),
        GPU_MEMORY: str(gpus[index].memory_mib),
        ASSIGNED: "false",
        ASSUMED_AT: str(int(chosen.now * 1e9)),
    }


DIALECT = Dialect(
    "gpushare", RESOURCE, _requested_shares, _claims,
    giving=frozenset({RESOURCE}),
    request_labels=frozenset({COUNT}),
    assignment_annotations=frozenset({INDEX, POD_MEMORY, GPU_MEMORY, ASSIGNED, ASSUMED_AT}),
    assignment=_assignment,
)  # fmt: skip
