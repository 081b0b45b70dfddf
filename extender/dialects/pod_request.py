"""Pod -> Request: a pod's request, in any dialect that clusters already use.

Counted devices (``nvidia.com/gpu: 2``) are requested by resource name. Fractions of GPUs are requested in one
of the ``DIALECTS``; a pod uses at most one of them. A contradictory or impossible request raises
``RequestError`` with a text for the pod's owner. Stowage does not guess.

The same ``nvidia.com/gpu: 1`` is a whole GPU on a plain node and a HAMi device on a HAMi node. The request is
the same value for all nodes, and ``packing.model.node_spec`` resolves it on a node.

Requirements on a pod's GPUs: model, UUID, sharing mode, CUDA version, NVLink island, separate GPUs. The model
lists of HAMi, Volcano and vgpu-manager match any part of the GPU's name, case-insensitively
(``pkg/device/devices.go`` CheckType in Project-HAMi/HAMi at 4707fb02; README of coldzerofear/vgpu-manager at
3d7f66d): ``A10`` also matches an A100. Stowage's own lists match whole words, so there ``A10`` does not match
an A100. Separators do not matter: GPU feature discovery writes ``NVIDIA-A100-SXM4-40GB`` for the driver's
``NVIDIA A100-...``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Literal

from extender.dialects import gpushare, hami, kai, koordinator, nvfractions, stowage, vgpu_manager, volcano
from extender.dialects.dialect import Claims, Dialect, GpuLists, is_named
from extender.dialects.pod_resources import (
    Amounts,
    RequestError,
    effective_requests,
    max_per_container,
    requested_devices,
)
from extender.dialects.shared_gpus import MIG_PREFIX, NVIDIA, amd_mode
from extender.k8s.manifest import Pairs, read_also
from extender.k8s.objects import Node, Pod, PodSpec
from extender.k8s.quantity import QuantityError, mib
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import LISTED_NAMES, NAME, POD_ANNOTATION, quoted, shorten
from packing.model.node_spec import FOR_MACHINES
from packing.model.request import (
    ANY,
    WHOLE,
    ModelName,
    Models,
    NameFilter,
    Request,
    SeparateGpus,
    Shares,
    whole_gpus,
)

MODELS, NOT_MODELS = "stowage.dev/gpu-models", "stowage.dev/gpu-models-not"
CUDA, NVLINK = "stowage.dev/min-cuda", "stowage.dev/nvlink"
SEPARATE = "stowage.dev/separate-gpus"
DEVICE_MEMORY, WHOLE_GPU = "stowage.dev/min-gpu-memory", "stowage.dev/whole-gpu"
_KUBEVIRT = "kubevirt.io"
"""Label of the pods of KubeVirt, ``virt-launcher`` of those that run a virtual machine (AppLabel in
``staging/src/kubevirt.io/api/core/v1/types.go`` of kubevirt/kubevirt)."""
_SEPARATE: Mapping[str, SeparateGpus] = {"required": "require", "preferred": "prefer", "none": "ignore"}

DIALECTS: tuple[Dialect, ...] = (
    hami.DIALECT,
    vgpu_manager.DIALECT,
    volcano.DIALECT,
    koordinator.DIALECT,
    gpushare.DIALECT,
    nvfractions.DIALECT,
    kai.DIALECT,
    stowage.DIALECT,
)
_BY_PRECEDENCE = sorted(DIALECTS, key=lambda dialect: -dialect.precedence)

_LISTS = (GpuLists("", "", MODELS, NOT_MODELS), *(lists for dialect in DIALECTS for lists in dialect.lists))
MODEL_LISTS = tuple(name for lists in _LISTS for name in (lists.allow_models, lists.deny_models) if name)
"""Annotations that allow or exclude models of GPUs."""
_CONSTRAINTS = frozenset({CUDA, NVLINK, SEPARATE, DEVICE_MEMORY, WHOLE_GPU, *filter(None, chain(*_LISTS))})
REQUEST_ANNOTATIONS = _CONSTRAINTS.union(*(dialect.request_annotations for dialect in DIALECTS))
"""Annotations that change a pod's request, ``*`` for the name of a container."""
REQUEST_LABELS = frozenset({_KUBEVIRT}).union(*(dialect.request_labels for dialect in DIALECTS))
"""Labels that change a pod's request."""
ASSIGNMENT_ANNOTATIONS = frozenset[str]().union(*(dialect.assignment_annotations for dialect in DIALECTS))
"""Annotations that describe what a pod was allocated, ``*`` for the name of a container."""
AGENT_CONDITIONS = frozenset(name for dialect in DIALECTS for name in dialect.conditions)
"""Conditions of nodes that say whether a dialect's agents are ready there."""
read_also(REQUEST_ANNOTATIONS | ASSIGNMENT_ANNOTATIONS)
is_request: Callable[[str], bool] = partial(is_named, REQUEST_ANNOTATIONS)
is_assignment: Callable[[str], bool] = partial(is_named, ASSIGNMENT_ANNOTATIONS)


def system_name(resource: str) -> str:
    """The name of the system by which nodes share their GPUs under this name, or the resource's."""
    names = (dialect.name for dialect in reversed(DIALECTS) if dialect.resource == resource)
    return next(names, resource)


def writers_on(resource: str) -> tuple[Dialect, ...]:
    """The dialects in which ``bind`` assigns GPUs that nodes share under this name."""
    return tuple(dialect for dialect in DIALECTS if dialect.assignment and dialect.resource == resource)


def agents_problems(node: Node, resource: str) -> dict[str, str]:
    """By the name of each dialect that needs agents on nodes which share their GPUs under this name: why it
    has none that serve pods there, "" if it has."""
    with_agents = (dialect for dialect in DIALECTS if dialect.conditions and dialect.resource == resource)
    return {dialect.name: dialect.not_ready(node) for dialect in with_agents}


_REQUESTS_OF_SPEC = 4096
"""Maximum number of cached requests per spec: one for each different set of annotations."""


def request_of(pod: Pod) -> Request:
    """The request of a pod. Raises RequestError, also if its spec, annotations or labels exceed a limit."""
    known: Request | None = getattr(pod, "request_memo", None)
    if known is None:
        known = _read_request(pod)
        object.__setattr__(pod, "request_memo", known)
    return known


def request_or_none(pod: Pod) -> Request | None:
    """As ``request_of``; None if the request cannot be read."""
    with suppress(RequestError):
        return request_of(pod)
    return None


def _read_request(pod: Pod) -> Request:
    if pod.problem:
        raise RequestError(pod.problem)
    for name in pod.unreadable:
        if is_request(name) or name in REQUEST_LABELS:
            raise RequestError(f"{name}: more than {POD_ANNOTATION} characters, or too many in total")
    metadata = {key: text for key, text in pod.annotations.items() if is_request(key)}
    metadata |= {key: pod.labels[key] for key in pod.labels.keys() & REQUEST_LABELS}
    return _request(pod.spec, tuple(sorted(metadata.items())))


def _request(spec: PodSpec, pairs: Pairs) -> Request:
    """Pods are created from few templates and share their specs, so for most pods this is one lookup."""
    known: BoundedMap[Pairs, Request | ValueError] | None = getattr(spec, "requests_memo", None)
    if known is None:
        known = BoundedMap(_REQUESTS_OF_SPEC)
        object.__setattr__(spec, "requests_memo", known)
    if (found := known.get(pairs)) is None:
        try:
            found = _parsed_request(spec, pairs)
        except ValueError as error:
            found = copy(error)  # without the traceback, whose frames refer to the spec
        known.put(pairs, found, 64 + sum(64 + len(key) + len(text) for key, text in pairs))
    if isinstance(found, ValueError):
        raise copy(found)
    return found


def _parsed_request(spec: PodSpec, pairs: Pairs) -> Request:
    resources, metadata = effective_requests(spec), dict(pairs)
    cpu, memory = resources.pop("cpu", 0), resources.pop("memory", 0)
    dialect, shares = _requested(spec, resources, metadata) or (None, None)
    if shares:
        resources.pop(shares.resource, None)
    devices = requested_devices(resources)
    if shares and devices:
        names = ", ".join(name for name, _ in devices)
        raise RequestError(f"requests fractions of GPUs (by {shares.resource}) and {names}: use one of them")
    uuids = _uuids(metadata)
    if uuids is not ANY and devices:
        raise RequestError("names GPUs by UUID, but requests devices that the device plugin chooses")
    wish = _nvlink(metadata)
    if wish == "required" and spec.claims and not (devices or shares):
        raise RequestError(
            f"{NVLINK}: required, but kube-scheduler chooses the devices of resource claims, and "
            "does not consider NVLink"
        )
    device_mib, is_whole = _sizes(metadata, devices, shares)
    if (device_mib or is_whole) and spec.claims and not (devices or shares):
        raise RequestError(f"{DEVICE_MEMORY} and {WHOLE_GPU} do not apply to resource claims: set them there")
    several = sum(count for _, count in devices) + (shares.count if shares else 0) > 1
    together = max_per_container(spec, [name for name, _ in devices]) if devices else 1
    separate = _separate_gpus(metadata)
    return Request(
        cpu_milli=cpu,
        memory_bytes=memory,
        devices=devices,
        shares=shares,
        products=_products(metadata),
        uuids=uuids,
        cuda=_cuda(metadata),
        island=wish == "required",
        scattered=several and wish == "none",
        together=together,
        separate=separate if together > 1 else None,
        mode=_mode(metadata, shares),
        agents=dialect.name if dialect and dialect.conditions else "",
        device_mib=device_mib,
        whole=is_whole,
    )


def _requested(
    spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]
) -> tuple[Dialect, Shares] | None:
    """The dialect and the shares that the pod requests, None for no shares. Raises RequestError."""
    requested: tuple[Dialect, Shares] | None = None
    for dialect in _BY_PRECEDENCE:
        if requested and dialect.precedence < requested[0].precedence:
            break
        try:
            shares = dialect.requested_shares(spec, resources, metadata)
        except RequestError:
            raise
        except ValueError as error:  # from Shares: more than one GPU has, or nothing
            raise RequestError(f"{dialect.resource}: {error}") from error
        if shares and requested:
            names = f"{requested[1].resource} and by {shares.resource}"
            raise RequestError(f"requests fractions of GPUs by {names}")
        requested = (dialect, shares) if shares else requested
    return requested


@dataclass(frozen=True, slots=True)
class BoundRequest:
    """The most that a bound pod can have been allocated.

    ``problem``: why its request is unreadable, "" if it is readable. If unreadable, ``request`` covers only
    the spec (CPU, memory and counted devices), and ``possible_shares`` is the most that each sharing system
    can have allocated to the pod; the node determines which of these counts. ``obscure``: it may hold more.
    """

    request: Request
    possible_shares: tuple[Shares, ...] = ()
    problem: str = ""
    obscure: bool = False


def bound_request(pod: Pod) -> BoundRequest:
    """The resources of a bound pod, which an in-place resize may not have changed yet. Never raises.

    Requirements on the GPUs (models, UUIDs, NVLink, CUDA) do not matter after binding.
    """
    if pod.resized is not None:
        pod = replace(pod, spec=pod.resized, resized=None)
    try:
        return BoundRequest(request_of(pod))
    except RequestError as error:
        problem, obscure = shorten(str(error)), pod.is_obscure
    try:
        resources = effective_requests(pod.spec)
    except RequestError:
        resources, obscure = {}, obscure or bool(pod.spec.containers)
    possible = _possible_shares(pod, resources)
    cpu, memory = resources.pop("cpu", 0), resources.pop("memory", 0)
    request = Request(cpu_milli=cpu, memory_bytes=memory, devices=requested_devices(resources))
    return BoundRequest(request, possible, problem, obscure)


def _possible_shares(pod: Pod, resources: Amounts) -> tuple[Shares, ...]:
    """The shares that its spec requests, a whole GPU if that is contradictory. Annotations count if only
    ``bind`` allocates GPUs, because it always writes them."""
    names = list(filter(is_assignment, (*pod.annotations, *pod.unreadable)))
    assigned: dict[str, Shares] = {}
    possible: dict[str, Shares] = {}
    for dialect in DIALECTS:
        whole = whole_gpus(1, dialect.resource)
        if by_bind := not dialect.giving:
            if not any(is_named(dialect.assignment_annotations, name) for name in names):
                continue
            assigned[dialect.resource] = whole
        try:
            shares = dialect.requested_shares(pod.spec, resources, pod.annotations if by_bind else pod.labels)
        except ValueError:
            shares = whole if by_bind or dialect.giving & resources.keys() else None
        if shares:
            possible.setdefault(dialect.resource, shares)
    return tuple((assigned | possible).values())


def claims_of(pod: Pod) -> Claims | None:
    """A bound pod's claims on shared GPUs, None if it has none.

    kubelet's report (``pod.devices``) does not count here: with a sharing device plugin, kubelet chooses
    among interchangeable placeholder devices, and the plugin follows the annotations.
    """
    for dialect in DIALECTS if pod.unreadable else ():
        for name in pod.unreadable:
            if is_named(dialect.assignment_annotations, name):
                return Claims(dialect.resource, problem=f"{name} is too long to be read")
    if not any(map(is_assignment, pod.annotations)):
        return None
    bound = bound_request(pod)
    known = bound.possible_shares if bound.problem else filter(None, [bound.request.shares])
    # A whole GPU may stand for shares that cannot be read.
    requested = {part.resource: part for part in known if not bound.problem or part.memory_milli < WHOLE}
    by_dialect = (dialect.claims(pod, requested.get(dialect.resource)) for dialect in DIALECTS)
    return next(filter(None, by_dialect), None)


def _products(annotations: Mapping[str, str]) -> Models:
    """The GPU models that the pod allows. Raises RequestError."""
    allow = (frozenset(_model_names(annotations, lists.allow_models)) for lists in _LISTS)
    deny = frozenset(name for lists in _LISTS for name in _model_names(annotations, lists.deny_models))
    return Models(tuple(filter(None, allow)), deny)


def _uuids(annotations: Mapping[str, str]) -> NameFilter:
    """The GPUs that the pod allows, by UUID; ``ANY`` for all. Raises RequestError, also if no GPU is left."""
    allow = tuple(filter(None, (frozenset(_listed(annotations, lists.allow_uuids)) for lists in _LISTS)))
    deny = frozenset(uuid for lists in _LISTS for uuid in _listed(annotations, lists.deny_uuids))
    if any(group <= deny for group in allow):
        raise RequestError("every GPU that the pod names by UUID is also excluded by the pod")
    return NameFilter(allow, deny) if allow or deny else ANY


def _cuda(annotations: Mapping[str, str]) -> int:
    """The CUDA version that the driver must support: 12004 for 12.4, 0 for any. Raises RequestError."""
    text = annotations.get(CUDA)
    if text is None:
        return 0
    match = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3}))?", text.strip(), re.ASCII)
    if match is None:
        raise RequestError(f"{CUDA}: {quoted(text)} is not a CUDA version such as 12.4")
    return int(match[1]) * 1000 + int(match[2] or 0)


def _nvlink(annotations: Mapping[str, str]) -> Literal["required", "preferred", "none"]:
    """Whether all GPUs must or should be NVLink peers, or need not. Raises RequestError."""
    match annotations.get(NVLINK, "preferred"):
        case "required" | "preferred" | "none" as wish:
            return wish
        case text:
            raise RequestError(f"{NVLINK}: {quoted(text)} is invalid; expected required, preferred or none")


def _separate_gpus(annotations: Mapping[str, str]) -> SeparateGpus | None:
    """Whether several devices of a container must be on different GPUs; None if the pod does not specify it.
    Raises RequestError."""
    text = annotations.get(SEPARATE)
    if text is not None and text not in _SEPARATE:
        raise RequestError(f"{SEPARATE}: {quoted(text)} is invalid; expected {', '.join(_SEPARATE)}")
    return None if text is None else _SEPARATE[text]


def _sizes(
    annotations: Mapping[str, str], devices: tuple[tuple[str, int], ...], shares: Shares | None
) -> tuple[int, bool | None]:
    """The memory in MiB that each GPU or fraction must have, and whether each must be a whole GPU; None if
    the pod does not specify it. Raises RequestError."""
    text = annotations.get(WHOLE_GPU)
    if text not in (None, "true", "false"):
        raise RequestError(f'{WHOLE_GPU}: {quoted(text)} is invalid; expected "true" or "false"')
    try:
        size = mib(annotations.get(DEVICE_MEMORY, "0"))
    except QuantityError as error:
        raise RequestError(f"{DEVICE_MEMORY}: {error}") from error
    part = shares.resource if shares and shares.memory_milli < WHOLE else ""
    if text == "true" and (named := part or next((name for name, _ in devices if _is_part(name)), "")):
        raise RequestError(f"{WHOLE_GPU}: the pod requests a fraction of a GPU by {named}")
    if shares and not shares.memory_milli and shares.memory_mib < size:
        raise RequestError(f"{DEVICE_MEMORY}: the pod requests less of each GPU by {shares.resource}")
    return size, None if text is None else text == "true"


def _is_part(resource: str) -> bool:
    return resource.startswith((MIG_PREFIX, f"{NVIDIA[0]}.")) or amd_mode(resource) not in ("", "spx")


@lru_cache(maxsize=4096)
def as_whole(request: Request) -> Request:
    """The request, with whole GPUs if it does not specify the kind of GPU."""
    says = request.whole is not None or request.device_mib or request.shares
    named = says or not request.devices or any(_is_part(name) for name, _ in request.devices)
    return request if named else replace(request, whole=True)


def _mode(metadata: Mapping[str, str], shares: Shares | None) -> str:
    """The names of the modes of GPUs that the pod allows, "" for all that pods share. Raises RequestError."""
    machine = FOR_MACHINES if metadata.get(_KUBEVIRT) == "virt-launcher" else ""
    modes = (dialect.mode(metadata, shares) for dialect in DIALECTS)
    return ", ".join(filter(None, (*modes, machine)))


def _model_names(annotations: Mapping[str, str], key: str) -> list[ModelName]:
    whole = key in (MODELS, NOT_MODELS)
    names = _listed(annotations, key)
    try:
        return [ModelName.of(name, whole=whole) for name in names]
    except ValueError as error:
        raise RequestError(f"{key}: {error}") from None


def _listed(annotations: Mapping[str, str], key: str) -> list[str]:
    """The names in a comma-separated list. Raises RequestError if there are too many, or one is too long."""
    names = [name for part in annotations.get(key, "").split(",") if (name := part.strip())]
    if len(names) > LISTED_NAMES:
        raise RequestError(f"{key}: more than {LISTED_NAMES} names")
    if any(len(name) > NAME for name in names):
        raise RequestError(f"{key}: a name of more than {NAME} characters")
    return names
