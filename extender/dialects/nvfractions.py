"""NvFractions of KAI 0.18: ``nvidia.com/container.<name>.gpu-memory.request`` and ``.limit``, enforced by the
driver.

Facts (kai-scheduler/KAI-Scheduler at 0.18.6: ``docs/gpu-sharing/README.md``, ``pkg/admission/webhook`` plugin
``nvfractions``; kai-scheduler/gpu-fractioning, ``pkg/annotations``, ``driverinfo``, README). Amounts are
quantities of memory of one GPU, at least 1 MiB and rounded up. A request or a limit alone is both. One
container of a pod has them, and no whole GPU beside them. ``gpu-fraction-num-devices`` is the number of GPUs.
``gpu-memory`` may only repeat the request, ``gpu-fraction-container-name`` only the container.

Pods of a GPU take turns (``time-slicing``, the default) or share its SMs (``sm-sharing``), never both. KAI's
documentation calls the annotation ``kai.scheduler/gpu-compute-sharing-mode``, its sources and the agent read
``nvidia.com/container.<name>.gpu-compute.mode``. Both count.

The agent on the node reads ``nvidia.com/container.<name>.gpus.devices``, UUIDs or indices, and the mode when
it starts the container. ``bind`` writes UUIDs, because under CDI indices may not be enforced. They come from
the node's annotation ``stowage.dev/gpu-uuids``. Where the agents are ready, ``bind`` also writes all of this
for KAI's older ``gpu-fraction`` and ``gpu-memory`` (``kai.py``), as KAI's binder does; with the setting
``enforce_shares`` also for Stowage's own shares (``stowage.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from extender.dialects import kai, stowage
from extender.dialects.dialect import (
    Chosen,
    Claim,
    Claims,
    Dialect,
    check_limits,
    is_named,
    parse_number,
    parse_positive,
    validate_claims,
)
from extender.dialects.pod_resources import Amounts, RequestError
from extender.k8s.objects import Node, Pod, PodSpec
from extender.k8s.quantity import QuantityError, exact, mib
from extender.untrusted.limits import quoted
from packing.model.node_spec import NodeSpec
from packing.model.request import Shares

_PREFIX = "nvidia.com/container."
REQUEST, LIMIT = f"{_PREFIX}*.gpu-memory.request", f"{_PREFIX}*.gpu-memory.limit"
MODE, KAI_MODE = f"{_PREFIX}*.gpu-compute.mode", "kai.scheduler/gpu-compute-sharing-mode"
DEVICES, PORTION = f"{_PREFIX}*.gpus.devices", f"{_PREFIX}*.gpu-compute.portion"
_CONTAINER = "gpu-fraction-container-name"
_TURNS, _TOGETHER = "time-slicing", "sm-sharing"
_AMOUNTS, _DEVICES = frozenset({REQUEST, LIMIT}), frozenset({DEVICES})
_OWN = frozenset({stowage.COMPUTE, stowage.MEMORY})
ENFORCED = "Stowage"
"""In ``NodeSpec.agents``: the agents of the node also enforce Stowage's own shares."""
_DRIVER, _OLDEST_DRIVER = "gpu-fractioning.kai.scheduler/nvidia-driver-version.major", 615


def _requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    amounts = any(is_named(_AMOUNTS, key) for key in metadata)
    if not amounts and not metadata.keys() & {kai.FRACTION, kai.MEMORY}:
        return None
    if amounts and (own := metadata.keys() & _OWN):
        if stowage.SHARE not in metadata:
            raise RequestError(f"{min(own)} and {REQUEST} are mutually exclusive")
        return stowage.requested_shares(spec, resources, metadata)  # ``bind`` wrote the amount, too
    container = _container(spec, metadata)
    together = _shares_sms(metadata, container)
    by_bind = kai.FRACTION in metadata and stowage.SHARE in metadata  # then it wrote the amount, too
    if by_bind or not amounts:
        shares = kai.requested_shares(spec, resources, metadata) if by_bind or together else None
        return replace(shares, concurrent=together) if shares else None
    texts = [metadata[key] for key in (_key(REQUEST, container), _key(LIMIT, container)) if key in metadata]
    request, limit = _mib(texts[0]), _mib(texts[-1])
    if request > limit:
        raise RequestError(f"{_key(REQUEST, container)} is greater than the limit")
    if kai.FRACTION in metadata and _key(LIMIT, container) in metadata:
        raise RequestError(f"{kai.FRACTION} and {_key(LIMIT, container)} are mutually exclusive")
    if kai.MEMORY in metadata and parse_positive(kai.MEMORY, metadata[kai.MEMORY]) != request:
        raise RequestError(f"{kai.MEMORY} and {_key(REQUEST, container)} differ")
    gpus = parse_positive(kai.COUNT, metadata.get(kai.COUNT, "1"))
    return Shares(gpus, 0, request, resource=stowage.RESOURCE, concurrent=together)


def _container(spec: PodSpec, metadata: Mapping[str, str]) -> str:
    """The name of the container that has the fraction. Raises RequestError."""
    names = {container.name for container in spec.all_containers}
    listed = sorted({key[len(_PREFIX) :].partition(".")[0] for key in metadata if is_named(_AMOUNTS, key)})
    if len(listed) > 1:
        raise RequestError(f"fractions for several containers: {', '.join(listed)}")
    first = next(iter(listed or (container.name for container in spec.containers)), "")
    said = metadata.get(_CONTAINER, first)
    for name in (said, first):
        if name not in names:
            raise RequestError(f"the pod has no container {quoted(name)}, which its annotations name")
    if listed and said != first:
        raise RequestError(f"{_CONTAINER}: {quoted(said)} is not {first}, which has the fraction")
    return said


def _shares_sms(metadata: Mapping[str, str], container: str) -> bool:
    """Whether the pod shares the SMs of its GPU with others. Raises RequestError."""
    modes = {metadata[key] for key in (_key(MODE, container), KAI_MODE) if key in metadata} or {_TURNS}
    if len(modes) > 1 or not modes <= {_TURNS, _TOGETHER}:
        said = quoted(" and ".join(sorted(modes)))
        raise RequestError(f"{_key(MODE, container)}: {said} is not {_TURNS} or {_TOGETHER}")
    return modes == {_TOGETHER}


def _key(pattern: str, container: str) -> str:
    return pattern.replace("*", container)


def _mib(text: str) -> int:
    try:
        if exact(text) >= 1 << 20:
            return mib(text)
    except QuantityError:
        pass
    raise RequestError(f"GPU memory {quoted(text)} is not a quantity of at least 1Mi")


def _claims(pod: Pod, requested: Shares | None) -> Claims | None:
    texts = [text for key, text in pod.annotations.items() if is_named(_DEVICES, key)]
    if not texts:
        return None
    try:
        check_limits(sum(text.count(",") + 1 for text in texts))
    except ValueError as error:
        return Claims(stowage.RESOURCE, problem=f"{DEVICES} cannot be read: {error}")
    size = stowage.given_share(pod) or requested
    amounts = (size.compute_milli, size.memory_mib, size.memory_milli) if size else ()
    claims = [
        Claim(device.strip().rpartition("=")[2], *amounts) for text in texts for device in text.split(",")
    ]
    return Claims(stowage.RESOURCE, *validate_claims(claims, requested))


def _assignment(chosen: Chosen) -> dict[str, str]:
    """Also Stowage's own annotations, for containers that read them and for the share that counts later."""
    annotations, gpus = chosen.pod.annotations, [chosen.node.gpus[gpu] for gpu in sorted(chosen.gpus)]
    container = _container(chosen.pod.spec, annotations)
    amount = max(chosen.shares.mib_of(gpu.memory_mib) for gpu in gpus)
    asked = any(_key(name, container) in annotations for name in _AMOUNTS)
    return {
        **stowage.assignment(chosen),
        _key(DEVICES, container): ",".join(gpu.uuid for gpu in gpus),
        _key(MODE, container): _TOGETHER if chosen.shares.concurrent else _TURNS,
        **({} if asked else {_key(REQUEST, container): f"{amount}Mi"}),
    }


def _assigns(pod: Pod, node: NodeSpec) -> bool:
    names = _AMOUNTS | {kai.FRACTION, kai.MEMORY} | (_OWN if ENFORCED in node.agents else set())
    return DIALECT.name in node.agents and any(is_named(names, key) for key in pod.annotations)


def _obstacle(node: Node) -> str:
    if not node.annotations.get(stowage.GPU_UUIDS):
        return f"annotation {stowage.GPU_UUIDS} of the node, the UUIDs of its GPUs, is missing"
    driver = node.labels.get(_DRIVER, "")
    try:
        is_old = bool(driver) and parse_number(driver) < _OLDEST_DRIVER
    except ValueError:
        is_old = True
    return f"label {_DRIVER} is {quoted(driver)}, not at least {_OLDEST_DRIVER}" if is_old else ""


DIALECT = Dialect(
    "NvFractions", stowage.RESOURCE, _requested_shares, _claims, precedence=1,
    request_annotations=frozenset({REQUEST, LIMIT, MODE, KAI_MODE, _CONTAINER, stowage.SHARE}),
    assignment_annotations=_DEVICES | {PORTION},
    assignment=_assignment, assigns=_assigns,
    conditions=("gpu-fractioning.nvidia.com/Ready", "gpu-sharing.nvidia.com/Ready"), obstacle=_obstacle,
)  # fmt: skip
