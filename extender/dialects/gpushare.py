"""gpushare: ``aliyun.com/gpu-mem`` of one GPU, or of ``aliyun.com/gpu-count`` GPUs in equal parts.

Facts (AliyunContainerService/gpushare-scheduler-extender at c0b6141, ``pkg/utils/{const,pod}.go`` and
``docs/userguide.md``; gpushare-device-plugin at 45fb8b8, ``pkg/gpu/nvidia``): memory only, summed over the
containers, on one GPU whose index is in ``ALIYUN_COM_GPU_MEM_IDX``. Alibaba Cloud's ACK divides N units over
M GPUs, N/M each and whole (help page "Enable Multi-GPU Sharing with Shared GPU Scheduling"); its pods say M
in a label.

The unit is the device plugin's (GiB unless it runs with ``--memory-unit=MiB``), so a pod's figure means
something on a node only. Memory of such nodes and pods is therefore kept in that unit, where MiB stands.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.dialects.effective import RequestError, effective
from extender.dialects.vocabulary import Claim, Claims, compared
from extender.inventory import gpushare as nodes
from extender.objects import Pod, PodSpec
from packing.request import Shares

RESOURCE, COUNT = nodes.RESOURCE, nodes.COUNT
READS: frozenset[str] = frozenset()
READS_LABELS = frozenset({COUNT})
INDEX, HELD = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Vocabulary.shares``."""
    memory = resources.get(RESOURCE, 0)
    text = said.get(COUNT) or str(resources.get(COUNT) or "")
    if not memory:
        if resources.get(COUNT):
            raise RequestError(f"{COUNT} without {RESOURCE}: how much of each GPU?")
        return None
    if text and (not text.isdecimal() or int(text) < 1):
        raise RequestError(f"{COUNT}: {text!r} is not a number of GPUs")
    count = int(text or 1)
    if memory % count:
        raise RequestError(f"{RESOURCE}: {memory} cannot be divided into {count} equal whole parts")
    return Shares(count, 0, memory // count, resource=RESOURCE)


def claims(pod: Pod) -> Claims | None:
    """See ``Vocabulary.claims``."""
    index, held = pod.annotations.get(INDEX), pod.annotations.get(HELD, "0")
    if index is None:
        return None
    try:
        asked = shares(pod.spec, effective(pod.spec), pod.labels)
    except RequestError:
        asked = None
    indices = index.split(",")
    if not all(i.isdecimal() for i in indices) or not held.isdecimal():
        return Claims(RESOURCE, complaint=f"{INDEX} or {HELD} cannot be read")
    each = -(-int(held) // len(indices))
    found, complaint = compared([Claim(i, memory_mib=each) for i in indices], asked)
    return Claims(RESOURCE, tuple(found), complaint)
