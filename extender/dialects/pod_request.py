"""Pod -> Request: what a pod requests, in any dialect that clusters use already.

Counted devices (``nvidia.com/gpu: 2``) are requested by resource name. Parts of GPUs are requested in one of
the ``DIALECTS``; a pod uses at most one of them. A contradictory or impossible request raises
``RequestError`` with a text for the pod's owner. Stowage does not guess.

The same ``nvidia.com/gpu: 1`` is a whole GPU on a plain node and a HAMi device on a HAMi node. The request is
the same value for all nodes, and ``packing.model.node_spec`` resolves it on a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace

from extender.dialects import constraints, gpushare, hami, kai, koordinator, stowage, vgpu_manager, volcano
from extender.dialects.dialect import AssignmentWriter, Claims, Dialect
from extender.dialects.pod_resources import (
    Amounts,
    RequestError,
    effective_requests,
    max_per_container,
    parse_quantities,
    requested_devices,
)
from extender.k8s.manifest import Pairs
from extender.k8s.objects import Container, Pod, PodSpec
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import POD_ANNOTATION, shorten
from packing.model.request import ANY, Request, Shares

DIALECTS: tuple[Dialect, ...] = (hami, vgpu_manager, volcano, koordinator, gpushare, kai, stowage)
WRITERS: Mapping[str, AssignmentWriter] = {writer.RESOURCE: writer for writer in (hami, gpushare, stowage)}
"""By sharing resource of the node: the dialect that tells its device plugin which GPUs a pod has."""
REQUEST_ANNOTATIONS = constraints.ANNOTATIONS.union(*(dialect.REQUEST_ANNOTATIONS for dialect in DIALECTS))
"""The annotations that change what a pod requests."""
REQUEST_LABELS = gpushare.REQUEST_LABELS | koordinator.REQUEST_LABELS
"""The labels that change what a pod requests."""
ASSIGNMENT_ANNOTATIONS = frozenset[str]().union(*(dialect.ASSIGNMENT_ANNOTATIONS for dialect in DIALECTS))
"""The annotations that say what a pod has been given."""


_REQUESTS_OF_SPEC = 4096
"""Requests that are remembered with one spec: as many as there are different annotations."""


def request_of(pod: Pod) -> Request:
    """What a pod requests. Raises RequestError, also if its spec, annotations or labels exceed a limit."""
    known: Request | None = getattr(pod, "request_memo", None)
    if known is None:
        known = _read_request(pod)
        object.__setattr__(pod, "request_memo", known)
    return known


def _read_request(pod: Pod) -> Request:
    if pod.problem:
        raise RequestError(pod.problem)
    for name in pod.unreadable:
        if name in REQUEST_ANNOTATIONS or name in REQUEST_LABELS:
            raise RequestError(f"{name}: more than {POD_ANNOTATION} characters, or too much beside it")
    metadata = {key: pod.annotations[key] for key in pod.annotations.keys() & REQUEST_ANNOTATIONS}
    metadata |= {key: pod.labels[key] for key in pod.labels.keys() & REQUEST_LABELS}
    return _request(pod.spec, tuple(sorted(metadata.items())))


def _request(spec: PodSpec, pairs: Pairs) -> Request:
    """Pods come from few templates and share their specs, so for most pods this is one look-up."""
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
    shares = _requested_shares(spec, resources, metadata)
    if shares:
        resources.pop(shares.resource, None)
    devices = requested_devices(resources)
    if shares and devices:
        names = ", ".join(name for name, _ in devices)
        raise RequestError(f"requests parts of GPUs (by {shares.resource}) and {names}: use one of them")
    uuids = constraints.uuids(metadata)
    if uuids is not ANY and devices:
        raise RequestError("names GPUs by UUID, but requests devices that the device plugin chooses")
    wish = constraints.nvlink(metadata)
    if wish == "required" and spec.claims and not (devices or shares):
        raise RequestError(
            f"{constraints.NVLINK}: required, but kube-scheduler chooses the devices of resource claims, and "
            "knows no NVLink"
        )
    several = sum(count for _, count in devices) + (shares.count if shares else 0) > 1
    together = max_per_container(spec, [name for name, _ in devices]) if devices else 1
    separate = constraints.separate_gpus(metadata)
    return Request(
        cpu_milli=cpu,
        memory_bytes=memory,
        devices=devices,
        shares=shares,
        products=constraints.products(metadata),
        uuids=uuids,
        cuda=constraints.cuda(metadata),
        island=wish == "required",
        scattered=several and wish == "none",
        together=together,
        separate=separate if together > 1 else None,
        mode=constraints.mode(metadata, shares),
    )


def _requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    requested: Shares | None = None
    for dialect in DIALECTS:
        try:
            shares = dialect.requested_shares(spec, resources, metadata)
        except RequestError:
            raise
        except ValueError as error:  # from Shares: more of a GPU than one has, or nothing of it
            raise RequestError(f"{dialect.RESOURCE}: {error}") from error
        if shares and requested:
            raise RequestError(f"requests parts of GPUs by {requested.resource} and by {shares.resource}")
        requested = requested or shares
    return requested


@dataclass(frozen=True, slots=True)
class BoundRequest:
    """The most that a bound pod can have taken.

    ``problem`` says why its request cannot be read, "" if it can. If it cannot, ``request`` is what the spec
    alone takes (CPU, memory and counted devices), and ``possible_shares`` the most that each sharing system
    can have given to the pod. Which of them counts depends on the node.
    """

    request: Request
    possible_shares: tuple[Shares, ...] = ()
    problem: str = ""


def bound_request(pod: Pod) -> BoundRequest:
    """What a bound pod has taken, which an in-place resize may not have changed yet. Never raises.

    Requirements on the GPUs (models, UUIDs, NVLink, CUDA) do not matter after binding.
    """
    if pod.resized is not None:
        pod = replace(pod, spec=pod.resized, resized=None)
    try:
        return BoundRequest(request_of(pod))
    except RequestError as error:
        problem = shorten(str(error))
    try:
        resources = effective_requests(pod.spec)
    except RequestError:
        pod = replace(pod, spec=_without_unreadable_quantities(pod.spec))
        resources = effective_requests(pod.spec)
    possible = [dialect.max_granted_shares(pod, resources) for dialect in DIALECTS]
    cpu, memory = resources.pop("cpu", 0), resources.pop("memory", 0)
    request = Request(cpu_milli=cpu, memory_bytes=memory, devices=requested_devices(resources))
    return BoundRequest(request, tuple(filter(None, possible)), problem)


def _without_unreadable_quantities(spec: PodSpec) -> PodSpec:
    """The API server accepts no such quantity, so nothing real is lost."""

    def readable(pairs: Pairs) -> Pairs:
        return tuple(filter(_is_readable, pairs))

    def readable_containers(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(replace(container, requests=readable(container.requests)) for container in containers)

    return replace(
        spec,
        containers=readable_containers(spec.containers) or (Container(),),
        init_containers=readable_containers(spec.init_containers),
        requests=readable(spec.requests),
        overhead=readable(spec.overhead),
    )


def _is_readable(pair: tuple[str, str]) -> bool:
    try:
        parse_quantities((pair,))
    except RequestError:
        return False
    return True


def claims_of(pod: Pod) -> Claims | None:
    """What a bound pod says it has of shared GPUs, None if it says nothing.

    kubelet's report (``pod.devices``) does not count here: with a sharing device plugin kubelet chooses among
    interchangeable placeholder devices, and the plugin follows the annotations.
    """
    for dialect in DIALECTS if pod.unreadable else ():
        for name in pod.unreadable:
            if name in dialect.ASSIGNMENT_ANNOTATIONS:
                return Claims(dialect.RESOURCE, problem=f"{name} is too long to be read")
    if not pod.annotations:
        return None
    return next((claims for dialect in DIALECTS if (claims := dialect.claims(pod))), None)
