"""Pod -> Request: what a pod asks for, in the words that clusters already use, one file per vocabulary.

Counted devices (``counted.py``) are asked for by resource name alone; parts of GPUs in one of the
vocabularies of ``DIALECTS``. A pod speaks one of them at most. Contradictory or impossible requests
raise ``RequestError`` with a text for the pod's owner; nothing is guessed.

The same ``nvidia.com/gpu: 1`` is a whole GPU on a plain node and a device of HAMi's on a HAMi node: the
request stays one value, and ``packing.model.node_spec.resolve_on`` says what it is on a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from extender.dialects import constraints, counted
from extender.dialects.dialect import AssignmentWriter, Claims, Dialect, most_together
from extender.dialects.pod_resources import RequestError, amounts, effective
from extender.dialects.sharing import gpushare, hami, kai, koordinator, vgpu_manager, volcano
from extender.dialects.sharing import stowage as own
from extender.k8s.objects import Container, Pairs, Pod, PodSpec
from extender.untrusted.bounded_cache import cached_with_owner
from extender.untrusted.limits import POD_ANNOTATION, shorten
from packing.model.request import ANY, Request, Shares

__all__ = [
    "ASSIGNED_BY",
    "DIALECTS",
    "READS",
    "READS_LABELS",
    "WRITERS",
    "Held",
    "RequestError",
    "claims_of",
    "held_by",
    "request_of",
]

DIALECTS: tuple[Dialect, ...] = (hami, vgpu_manager, volcano, koordinator, gpushare, kai, own)
WRITERS: Mapping[str, AssignmentWriter] = {writer.RESOURCE: writer for writer in (hami, gpushare, own)}
"""By what a node's GPUs are divided as: who can tell its device plugin which of them a pod has."""
READS = constraints.READS.union(*(vocabulary.READS for vocabulary in DIALECTS))
"""The annotations that say what a pod asks for."""
READS_LABELS = frozenset[str]().union(*(vocabulary.READS_LABELS for vocabulary in DIALECTS))
"""The labels that do."""
ASSIGNED_BY = frozenset[str]().union(*(vocabulary.ASSIGNED_BY for vocabulary in DIALECTS))
"""The annotations that say what a pod has been given."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a bound pod has taken at most.

    ``problem`` is why its request cannot be read, "" where it can. Then ``request`` is what its spec alone
    takes (CPU, memory and counted devices), and ``possible`` the most that each sharing system can have given
    it: which one it is depends on the node.
    """

    request: Request
    possible: tuple[Shares, ...] = ()
    problem: str = ""


def request_of(pod: Pod) -> Request:
    """What a pod asks for. Raises RequestError, also where what it says of that exceeds a limit."""
    if pod.problem or pod.unreadable:
        _check_limits(pod)
    said = {key: pod.annotations[key] for key in pod.annotations.keys() & READS}
    said |= {key: pod.labels[key] for key in pod.labels.keys() & READS_LABELS}
    return _request(pod.spec, tuple(sorted(said.items())))


def _check_limits(pod: Pod) -> None:
    if pod.problem:
        raise RequestError(pod.problem)
    for name in pod.unreadable:
        if name in READS or name in READS_LABELS:
            raise RequestError(f"{name}: more than {POD_ANNOTATION} characters, or too much beside it")


def held_by(pod: Pod) -> Held:
    """What a bound pod has taken, whatever its annotations say. Never raises.

    Which GPUs it must or must not have (models, UUIDs, NVLink, CUDA) does not matter any more.
    """
    try:
        return Held(request_of(pod))
    except RequestError as error:
        problem = shorten(str(error))
    try:
        resources = effective(pod.spec)
    except RequestError:
        pod = replace(pod, spec=_readable(pod.spec))
        resources = effective(pod.spec)
    possible = [vocabulary.grantable(pod, resources) for vocabulary in DIALECTS]
    cpu, memory = resources.pop("cpu", 0), resources.pop("memory", 0)
    request = Request(cpu_milli=cpu, memory_bytes=memory, devices=counted.devices(resources))
    return Held(request, tuple(filter(None, possible)), problem)


def claims_of(pod: Pod) -> Claims | None:
    """What a bound pod says it holds of GPUs that are divided, None if it says nothing.

    kubelet's own report (``pod.devices``) is not asked: the plugins that divide GPUs let kubelet choose
    among interchangeable stand-ins and hand out what the annotations say.
    """
    for vocabulary in DIALECTS if pod.unreadable else ():
        for name in pod.unreadable:
            if name in vocabulary.ASSIGNED_BY:
                return Claims(vocabulary.RESOURCE, complaint=f"{name} is too long to be read")
    if not pod.annotations:
        return None
    found = (vocabulary.claims(pod) for vocabulary in DIALECTS)
    return next((claims for claims in found if claims), None)


@cached_with_owner(weigh=lambda said: 64 + sum(64 + len(key) + len(text) for key, text in said))
def _request(spec: PodSpec, said: Pairs) -> Request:
    # Pods come from few templates whose specs are shared, so most pods cost one look-up.
    resources, words = effective(spec), dict(said)
    cpu, memory = resources.pop("cpu", 0), resources.pop("memory", 0)
    shares = _shares(spec, resources, words)
    if shares:
        resources.pop(shares.resource, None)
    devices = counted.devices(resources)
    if shares and devices:
        names = ", ".join(name for name, _ in devices)
        raise RequestError(f"parts of GPUs (by {shares.resource}) beside {names}: ask in one way only")
    uuids = constraints.uuids(words)
    if uuids != ANY and devices:
        raise RequestError("GPUs are named by UUID, but a plugin that counts devices chooses them itself")
    return Request(
        cpu_milli=cpu,
        memory_bytes=memory,
        devices=devices,
        shares=shares,
        products=constraints.products(words),
        uuids=ANY if uuids == ANY else uuids,
        cuda=constraints.cuda(words),
        island=constraints.island(words),
        together=most_together(spec, frozenset(name for name, _ in devices)) if devices else 1,
        mode=constraints.mode(words),
    )


def _shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    found: Shares | None = None
    for vocabulary in DIALECTS:
        try:
            shares = vocabulary.shares(spec, resources, said)
            if shares and found:
                raise RequestError(f"asks for parts of GPUs by {found.resource} and by {shares.resource}")
        except RequestError:
            raise
        except ValueError as error:  # Shares: more of a GPU than one has, or nothing of it
            raise RequestError(f"{vocabulary.RESOURCE}: {error}") from error
        found = found or shares
    return found


def _readable(spec: PodSpec) -> PodSpec:
    """The spec without the quantities that cannot be read: the API server lets none of them through."""
    return replace(
        spec,
        containers=tuple(map(_readable_container, spec.containers)) or (Container(),),
        init_containers=tuple(map(_readable_container, spec.init_containers)),
        requests=_readable_pairs(spec.requests),
        overhead=_readable_pairs(spec.overhead),
    )


def _readable_container(container: Container) -> Container:
    return replace(container, requests=_readable_pairs(container.requests))


def _readable_pairs(pairs: Pairs) -> Pairs:
    return tuple(pair for pair in pairs if _is_readable(pair))


def _is_readable(pair: tuple[str, str]) -> bool:
    try:
        amounts((pair,))
    except RequestError:
        return False
    return True
