"""gpushare: ``aliyun.com/gpu-mem`` of one GPU, or of ``aliyun.com/gpu-count`` GPUs in equal parts.

Facts (AliyunContainerService/gpushare-scheduler-extender at c0b6141, ``pkg/utils/{const,pod}.go`` and
``docs/userguide.md``; gpushare-device-plugin at 45fb8b8, ``pkg/gpu/nvidia``): memory only, summed over the
containers, on one GPU whose index is in ``ALIYUN_COM_GPU_MEM_IDX``. Alibaba Cloud's ACK divides N units over
M GPUs, N/M each and whole (help page "Enable Multi-GPU Sharing with Shared GPU Scheduling"); its pods say M
in a label.

The unit is the device plugin's (GiB unless it runs with ``--memory-unit=MiB``), so a pod's figure means
something on a node only. Memory of such nodes and pods is therefore kept in that unit, where MiB stands.

What is written is what its own scheduler writes before it binds (``PatchPodAnnotationSpec``). The plugin
takes the pending pod of the right size that was assumed first, so two of one size may swap GPUs between
them, whoever binds them. It reads one index: pods on several GPUs are for ACK's closed plugin, which takes
them from another scheduler, so they are not bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extender.dialects.dialect import Claim, Claims, compared, listed, number, positive
from extender.dialects.pod_resources import RequestError, effective
from extender.inventory.sharing import gpushare as nodes
from extender.k8s.objects import Node, Pod, PodSpec
from packing.model.node_spec import NodeSpec
from packing.model.request import Shares

RESOURCE, COUNT = nodes.RESOURCE, nodes.COUNT
READS: frozenset[str] = frozenset()
READS_LABELS = frozenset({COUNT})
INDEX, HELD = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"
OF_GPU, ASSIGNED = "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUMED_AT = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ASSIGNED_BY = frozenset({INDEX, HELD, OF_GPU, ASSIGNED, ASSUMED_AT})


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Dialect.shares``."""
    memory = resources.get(RESOURCE, 0)
    text = said.get(COUNT) or str(resources.get(COUNT) or "")
    if not memory:
        if resources.get(COUNT):
            raise RequestError(f"{COUNT} without {RESOURCE}: how much of each GPU?")
        return None
    count = positive(COUNT, text) if text else 1
    if memory % count:
        raise RequestError(f"{RESOURCE}: {memory} cannot be divided into {count} equal whole parts")
    return Shares(count, 0, memory // count, resource=RESOURCE)


def grantable(pod: Pod, resources: Mapping[str, int]) -> Shares | None:
    """See ``Dialect.grantable``: without a number of GPUs all of the memory is on one."""
    memory = resources.get(RESOURCE, 0)
    if not memory:
        return None
    try:
        return shares(pod.spec, resources, pod.labels)
    except ValueError:
        return Shares(1, 0, memory, resource=RESOURCE)


def claims(pod: Pod) -> Claims | None:
    """See ``Dialect.claims``."""
    index, held = pod.annotations.get(INDEX), pod.annotations.get(HELD, "0")
    if index is None:
        return None
    try:
        asked = shares(pod.spec, effective(pod.spec), pod.labels)
    except RequestError:
        asked = None
    try:
        indices = listed(index)
        each = -(-number(held) // len(indices))
    except ValueError as error:
        return Claims(RESOURCE, complaint=f"{INDEX} or {HELD} cannot be read: {error}")
    found, complaint = compared([Claim(i, memory_mib=each) for i in indices], asked)
    return Claims(RESOURCE, tuple(found), complaint)


def assignment(
    pod: Pod, shape: NodeSpec, chosen: tuple[int, ...], now: float, taken: Mapping[int, int]
) -> dict[str, str]:
    """See ``AssignmentWriter.assignment``."""
    asked = shares(pod.spec, effective(pod.spec), pod.labels)
    if asked is None or len(chosen) != 1:
        raise RequestError("gpushare's device plugin cannot be told of several GPUs for one pod")
    (index,) = chosen
    return {
        INDEX: str(index),
        HELD: str(asked.memory_mib),
        OF_GPU: str(shape.gpus[index].memory_mib),
        ASSIGNED: "false",
        ASSUMED_AT: str(int(now * 1e9)),
    }


def busy(node: Node, others: Iterable[Pod]) -> bool:
    """Never: the plugin tells pods apart by their size."""
    return False
