"""Koordinator: ``koordinator.sh/gpu-core``, ``gpu-memory``, ``gpu-memory-ratio``, ``gpu.shared`` and ``gpu``.

Facts (koordinator-sh/koordinator at a7a1b76b): names and the annotation are in
``apis/extension/device_share.go``, valid combinations in ``pkg/scheduler/plugins/deviceshare/utils.go``, the
division over GPUs in ``devicehandler_gpu.go``, manifests in
``docs/proposals/scheduling/20220629-fine-grained-device-scheduling.md`` and
``20230803-enhance-gpu-share-api.md``. Amounts are for the whole pod: cores and ratio in percent of one GPU,
memory in bytes. ``gpu.shared`` is the number of GPUs over which they are divided. ``gpu: 50`` is 50 of cores
and 50 of ratio. The annotation identifies devices by minor number. A pod with a fraction of a GPU's memory
and the label ``koordinator.sh/gpu-isolation-provider`` runs only on nodes with the same label.

Nodes. ``koordinator.sh/gpu-core`` and ``gpu-memory`` are sums over a node's healthy GPUs. A GPU has 100 of
``gpu-core`` and 100 of ``gpu.shared``, memory is in bytes
(``pkg/slo-controller/noderesource/plugins/gpudeviceresource/plugin.go``), and the model is the label
``node.koordinator.sh/gpu-model``. The Device object with the node's name lists the GPUs with minor number,
UUID, health and resources (``apis/scheduling/v1alpha1/device_types.go``). Without it, the GPUs count as
equal, with minor numbers from 0. ``nvidia.com/gpu`` is a whole GPU among them. The label
``koordinator.sh/gpu-isolation-provider`` names what limits the fractions
(``apis/extension/device_share.go``).

If the Device lists GPUs and the sums are not advertised, Koordinator's pods may still hold shares of them. So
the GPUs remain accounted for, and the node accepts no new pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from extender.dialects.dialect import Claim, Claims, Dialect, check_limits, validate_claims
from extender.dialects.per_device import PERCENT
from extender.dialects.pod_resources import Amounts, RequestError, effective_requests
from extender.dialects.shared_gpus import InventoryError, Parser, SharedGpus, advertises_nvidia
from extender.k8s.objects import KoordinatorDevice, KoordinatorGpu, Node, Pod, PodSpec
from extender.k8s.quantity import mib, whole
from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB, GPUS_PER_NODE, POD_ANNOTATION, quoted
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE, Shares, whole_gpus

RESOURCE, WHOLE_GPU = "koordinator.sh/gpu", "nvidia.com/gpu"
DEVICE = "devices.scheduling.koordinator.sh"
CORE, MEMORY, MODEL = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "node.koordinator.sh/gpu-model"
ISOLATION = "koordinator.sh/gpu-isolation-provider"
_SHARES = 100


def shared_gpus(node: Node, device: KoordinatorDevice | None = None) -> SharedGpus | None:
    """The node's GPUs if Koordinator shares them; ``device`` is the node's Device. Raises InventoryError."""
    core, listed = whole(node.allocatable.get(CORE, "0")), device.gpus if device else ()
    unhealthy = sum(not gpu.healthy for gpu in listed)
    leftover = not core and not (listed and unhealthy == len(listed))
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
        mode=_isolation_mode(node.labels.get(ISOLATION, "")),
        problem=f"{DEVICE} lists GPUs, but {CORE} is not advertised" if leftover else "",
        unhealthy=unhealthy,
    )


def _isolation_mode(provider: str) -> str:
    """The mode in which this provider isolates fractions; "" means no provider."""
    return f"isolation provider {quoted(provider)}" if provider else "no isolation provider"


def _by_minor(listed: tuple[KoordinatorGpu, ...]) -> tuple[Gpu, ...]:
    """GPUs at the index of their minor number, by which pods refer to them. Raises InventoryError."""
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
"""At the index of a minor number that no GPU has; accepts no pods."""


RATIO, SHARED = "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu.shared"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"

_RESOURCES = (RESOURCE, CORE, MEMORY, RATIO, SHARED)
_COMBINATIONS = (
    *({RESOURCE}, {MEMORY}, {RATIO}, {CORE, MEMORY}, {CORE, RATIO}),
    *({SHARED, MEMORY}, {SHARED, RATIO}, {SHARED, CORE, MEMORY}, {SHARED, CORE, RATIO}),
)


def _requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    amounts = {name: resources[name] for name in _RESOURCES if resources.get(name)}
    if not amounts:
        return None
    if set(amounts) not in _COMBINATIONS:
        raise RequestError(f"{', '.join(sorted(amounts))}: Koordinator does not allow this combination")
    both = amounts.get(RESOURCE, 0)
    core, ratio, memory = amounts.get(CORE, both), amounts.get(RATIO, both), amounts.get(MEMORY, 0)
    count = amounts.get(SHARED) or (ratio // 100 if ratio > 100 and ratio % 100 == 0 else 1)
    for name, value in ((CORE, core), (RATIO, ratio)):
        if value % count or value > 100 * count:
            raise RequestError(f"{name}: {value} cannot be divided into {count} equal shares of one GPU")
    return Shares(
        count, core // count * PERCENT, -(-memory // (count << 20)), ratio // count * PERCENT, RESOURCE
    )


def _claims(pod: Pod, requested: Shares | None) -> Claims | None:
    text = pod.annotations.get(ALLOCATED)
    if text is None:
        return None
    try:
        devices = _parse_devices(text)
    except (ValueError, TypeError, AttributeError, KeyError):
        return Claims(RESOURCE, problem=f"{ALLOCATED} cannot be read")
    with suppress(RequestError):
        requested = _requested_here(pod.spec)
    checked, problem = validate_claims(devices, requested)
    return Claims(RESOURCE, checked, problem) if checked else None


def _mode(metadata: Mapping[str, str], shares: Shares | None) -> str:
    """Pods with all of a GPU's memory are not isolated (``Filter`` in
    ``pkg/scheduler/plugins/deviceshare/plugin.go``)."""
    provider = metadata.get(ISOLATION, "")
    isolated = shares and shares.resource == RESOURCE and shares.memory_milli < WHOLE
    return _isolation_mode(provider) if provider and isolated else ""


def _requested_here(spec: PodSpec) -> Shares | None:
    """The pod's request on Koordinator's nodes, where ``nvidia.com/gpu`` is a whole GPU."""
    resources = effective_requests(spec)
    if count := resources.get(WHOLE_GPU, 0):
        return whole_gpus(count, RESOURCE)
    return _requested_shares(spec, resources, {})


def _parse_devices(text: str) -> list[Claim]:
    """Raises ValueError, TypeError, AttributeError or KeyError."""
    if len(text) > POD_ANNOTATION:
        raise ValueError("too long")
    entries = from_json(text).get("gpu") or []
    check_limits(len(entries))
    return [_parse_device(entry) for entry in entries]


def _parse_device(entry: Mapping[str, Any]) -> Claim:
    resources, minor = entry.get("resources") or {}, entry["minor"]
    amounts = {name: str(resources[name]) for name in (CORE, MEMORY, RATIO) if name in resources}
    if not isinstance(minor, int):
        raise ValueError("no minor number")
    ratio = 0 if MEMORY in amounts else whole(amounts.get(RATIO, "0"))
    core, memory = whole(amounts.get(CORE, "0")), mib(amounts.get(MEMORY, "0"))
    return Claim(str(minor), core * PERCENT, memory, ratio * PERCENT)


DIALECT = Dialect(
    "Koordinator", RESOURCE, _requested_shares, _claims, mode=_mode,
    giving=frozenset(_RESOURCES),
    request_labels=frozenset({ISOLATION}), assignment_annotations=frozenset({ALLOCATED}),
)  # fmt: skip
