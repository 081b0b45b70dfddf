"""Stowage's own annotations, for clusters whose device plugin divides no GPUs.

- ``stowage.dev/gpu-compute``: part of a GPU as a quantity (``300m``, ``0.3``) or per cent (``30%``)
- ``stowage.dev/gpu-memory``: memory as a quantity in bytes (``8Gi``), or per cent of the GPU's
- ``stowage.dev/gpus``: on how many different GPUs, 1 unless said

Compute alone is that part of the GPU, memory in the same proportion; memory alone leaves compute to be shared
in time; ``gpus`` alone is whole GPUs. The GPUs that a bound pod has
are in ``stowage.dev/gpu-indices`` (``0,3``). Only nodes that are set aside for it (``inventory/own.py``) take
such pods: nothing but the container's own restraint keeps shares apart there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extender.dialects.dialect import Claim, Claims, compared, listed, positive
from extender.dialects.pod_resources import RequestError
from extender.inventory.sharing import stowage as nodes
from extender.k8s.objects import Node, Pod, PodSpec
from extender.k8s.quantity import QuantityError, mib, milli
from extender.untrusted.limits import quoted
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE, Shares, whole_gpus

RESOURCE = nodes.RESOURCE
COMPUTE, MEMORY, COUNT = "stowage.dev/gpu-compute", "stowage.dev/gpu-memory", "stowage.dev/gpus"
INDICES = "stowage.dev/gpu-indices"
READS = frozenset({COMPUTE, MEMORY, COUNT})
READS_LABELS: frozenset[str] = frozenset()
ASSIGNED_BY = frozenset({INDICES})


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Dialect.shares``."""
    compute, memory = said.get(COMPUTE), said.get(MEMORY)
    if compute is None and memory is None and COUNT not in said:
        return None
    count = positive(COUNT, said[COUNT]) if COUNT in said else 1
    if compute is None and memory is None:
        return whole_gpus(count, RESOURCE)
    part = _part(COMPUTE, compute) if compute is not None else 0
    if memory is None or memory.endswith("%"):
        ratio = part if memory is None else _part(MEMORY, memory)
        return Shares(count, part, memory_milli=ratio, resource=RESOURCE)
    try:
        size = mib(memory)
    except QuantityError as error:
        raise RequestError(f"{MEMORY}: {error}") from error
    if not size:
        raise RequestError(f"{MEMORY}: {quoted(memory)} is no memory at all")
    return Shares(count, part, size, resource=RESOURCE)


def grantable(pod: Pod, resources: Mapping[str, int]) -> Shares | None:
    """See ``Dialect.grantable``. Only ``bind`` gives GPUs, and it always says which."""
    if not assigned(pod):
        return None
    try:
        return shares(pod.spec, {}, pod.annotations)
    except ValueError:
        return whole_ones(pod)


def assigned(pod: Pod) -> bool:
    """Whether something says which GPUs the pod has, be it readable or not."""
    return INDICES in pod.annotations or INDICES in pod.unreadable


def whole_ones(pod: Pod) -> Shares:
    """Whole GPUs, as many as the pod has been given."""
    return whole_gpus(_how_many(pod.annotations.get(INDICES, "")), RESOURCE)


def claims(pod: Pod) -> Claims | None:
    """See ``Dialect.claims``."""
    if INDICES not in pod.annotations:
        return None
    try:
        asked = shares(pod.spec, {}, pod.annotations)
    except RequestError:
        asked = None
    return claims_on(pod.annotations[INDICES], asked)


def claims_on(text: str, asked: Shares | None) -> Claims:
    """What a pod that asks for this has, from the indices of its GPUs."""
    try:
        indices = listed(text)
    except ValueError as error:
        return Claims(RESOURCE, complaint=f"{INDICES} cannot be read: {error}")
    if len(set(indices)) < len(indices):
        return Claims(RESOURCE, complaint=f"{INDICES} names a GPU twice")
    size = asked or whole_gpus(1)
    held = [Claim(i, size.compute_milli, size.memory_mib, size.memory_milli) for i in indices]
    found, complaint = compared(held, asked)
    return Claims(RESOURCE, tuple(found), complaint)


def assignment(
    pod: Pod, shape: NodeSpec, chosen: tuple[int, ...], now: float, taken: Mapping[int, int]
) -> dict[str, str]:
    """See ``AssignmentWriter.assignment``. The container gets it by the downward API as ``NVIDIA_VISIBLE_DEVICES``."""
    return {INDICES: ",".join(map(str, sorted(chosen)))}


def busy(node: Node, others: Iterable[Pod]) -> bool:
    """Never: no device plugin is asked, each container reads its own pod's annotation."""
    return False


def _how_many(text: str) -> int:
    try:
        return len(set(listed(text)))
    except ValueError:
        return 1


def _part(name: str, text: str) -> int:
    percent = text.endswith("%")
    try:
        part = milli(text.removesuffix("%"))
    except QuantityError as error:
        raise RequestError(f"{name}: {error}") from error
    part = -(-part // 100) if percent else part
    if not 0 < part <= WHOLE:
        raise RequestError(f"{name}: {quoted(text)} is not a part of one GPU")
    return part
