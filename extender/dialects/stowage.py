"""Stowage's own annotations, for nodes without a device plugin that shares GPUs.

- ``stowage.dev/gpu-compute``: fraction of a GPU, as a quantity (``300m``, ``0.3``) or in percent (``30%``)
- ``stowage.dev/gpu-memory``: memory as a quantity in bytes (``8Gi``), or in percent of the GPU's memory
- ``stowage.dev/gpus``: number of different GPUs, 1 by default

Compute without memory requests the same fraction of the memory. Memory without compute requests no compute.
``gpus`` alone requests whole GPUs. ``stowage.dev/gpu-indices`` (``0,3``) lists the GPUs of a bound pod, and
``stowage.dev/gpu-share`` (``300m,0Mi,300m``) its share of each: compute, MiB, and fraction of the memory. The
larger of this share and the request counts, because the owner of the pod may edit the request. Only nodes
that are dedicated to Stowage (``inventory/node_inventory.py``) accept such pods: there only the container
itself limits its share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from extender.dialects.dialect import (
    Chosen,
    Claim,
    Claims,
    Dialect,
    parse_indices,
    parse_positive,
    validate_claims,
)
from extender.dialects.pod_resources import Amounts, RequestError
from extender.k8s.objects import Pod, PodSpec
from extender.k8s.quantity import QuantityError, exact, mib
from extender.untrusted.limits import quoted
from packing.model.request import Shares, part_milli, whole_gpus

RESOURCE = "stowage.dev/gpu"
COMPUTE, MEMORY, COUNT = "stowage.dev/gpu-compute", "stowage.dev/gpu-memory", "stowage.dev/gpus"
GPU_UUIDS = "stowage.dev/gpu-uuids"
"""Annotation of a node: the UUIDs of its GPUs by index, separated by commas."""
INDICES = "stowage.dev/gpu-indices"
SHARE = "stowage.dev/gpu-share"


def requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    compute, memory = metadata.get(COMPUTE), metadata.get(MEMORY)
    if compute is None and memory is None and COUNT not in metadata:
        return None
    count = parse_positive(COUNT, metadata[COUNT]) if COUNT in metadata else 1
    if compute is None and memory is None:
        return whole_gpus(count, RESOURCE)
    compute_milli = _parse_part(COMPUTE, compute) if compute is not None else 0
    if memory is None or memory.endswith("%"):
        memory_milli = compute_milli if memory is None else _parse_part(MEMORY, memory)
        return Shares(count, compute_milli, memory_milli=memory_milli, resource=RESOURCE)
    try:
        memory_mib = mib(memory)
    except QuantityError as error:
        raise RequestError(f"{MEMORY}: {error}") from error
    if not memory_mib:
        raise RequestError(f"{MEMORY}: {quoted(memory)} is not a positive amount of memory")
    return Shares(count, compute_milli, memory_mib, resource=RESOURCE)


def claims(pod: Pod, requested: Shares | None) -> Claims | None:
    if INDICES not in pod.annotations:
        return None
    try:
        indices = parse_indices(pod.annotations[INDICES])
    except ValueError as error:
        return Claims(RESOURCE, problem=f"{INDICES} cannot be read: {error}")
    if len(set(indices)) < len(indices):
        return Claims(RESOURCE, problem=f"{INDICES} names a GPU twice")
    size = given_share(pod) or requested or whole_gpus(1)
    devices = [Claim(index, size.compute_milli, size.memory_mib, size.memory_milli) for index in indices]
    return Claims(RESOURCE, *validate_claims(devices, requested))


def assignment(chosen: Chosen) -> dict[str, str]:
    """The GPUs, and the share of each. The container receives the first annotation through the downward API,
    as ``NVIDIA_VISIBLE_DEVICES``."""
    share = f"{chosen.shares.compute_milli}m,{chosen.shares.memory_mib}Mi,{chosen.shares.memory_milli}m"
    return {INDICES: ",".join(map(str, sorted(chosen.gpus))), SHARE: share}


def given_share(pod: Pod) -> Shares | None:
    """The share in the annotation; a whole GPU if it is unreadable, None if there is none."""
    if SHARE not in pod.annotations:
        return None
    with suppress(ValueError):
        compute, mib, milli = map(int, re.findall(r"[0-9]{1,9}", pod.annotations[SHARE], re.ASCII))
        return Shares(1, compute, mib, milli)
    return whole_gpus(1)


def _parse_part(name: str, text: str) -> int:
    try:
        part = exact(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except QuantityError as error:
        raise RequestError(f"{name}: {error}") from error
    if not 0 < part <= 1:
        raise RequestError(f"{name}: {quoted(text)} is not a fraction of one GPU")
    return part_milli(part)


DIALECT = Dialect(
    "Stowage", RESOURCE, requested_shares, claims,
    request_annotations=frozenset({COMPUTE, MEMORY, COUNT}),
    assignment_annotations=frozenset({INDICES, SHARE}), assignment=assignment,
)  # fmt: skip
