"""The interface of a sharing system's module, and claims: a bound pod's GPUs according to its annotations.

``pod_request.DIALECTS`` and ``pod_request.WRITERS`` list the modules. Anyone who can edit a pod can write its
annotations, so ``extender/cluster/claim_check.py`` compares claims with the pod's request and its node before
they count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from extender.dialects.pod_resources import Amounts, RequestError
from extender.k8s.objects import Node, Pod, PodSpec
from extender.untrusted.limits import CLAIMED_DEVICES, CONTAINERS, quoted
from packing.model.node_spec import NodeSpec
from packing.model.request import Shares


class Dialect(Protocol):
    """One sharing system's notation for requests of fractions of GPUs, and for the GPUs that a pod has."""

    RESOURCE: str
    """The extended resource that counts the shares. A node shares its GPUs under this name."""
    REQUEST_ANNOTATIONS: frozenset[str]
    """Annotations of a pending pod that change its request."""
    GIVING: frozenset[str]
    """Extended resources that imply a GPU for a bound pod that requests any of them, whatever contradicts it;
    none if only ``bind`` allocates GPUs."""
    ASSIGNMENT_ANNOTATIONS: frozenset[str]
    """Annotations with the GPUs that a pod was allocated, and when."""

    def requested_shares(
        self, spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]
    ) -> Shares | None:
        """The pod's request, None if it does not use this dialect. Raises ValueError or RequestError.

        ``resources`` are the pod's ``effective_requests``, ``metadata`` the annotations and labels that any
        dialect reads.
        """
        ...

    def claims(self, pod: Pod) -> Claims | None:
        """The claims of a bound pod, None if it has none in this dialect. Never raises."""
        ...


class AssignmentWriter(Protocol):
    """A dialect in which ``bind`` writes the GPUs of a pod. ``Dialect.claims`` reads them back."""

    RESOURCE: str

    def assignment(
        self, pod: Pod, node_spec: NodeSpec, gpus: tuple[int, ...], now: float, taken: Mapping[int, int]
    ) -> dict[str, str]:
        """The annotations that assign these GPUs (indices) of a node that shares them as ``RESOURCE`` to a
        pod.

        ``now`` is in Unix seconds. ``taken``: the memory slices that other pods have on each of these GPUs,
        as masks. Raises RequestError if the node's device plugin could not follow these annotations.
        """
        ...

    def plugin_may_confuse(self, node: Node, others: Iterable[Pod]) -> bool:
        """Whether the device plugin could confuse a new pod with one that is still starting.

        ``others``: the pods on the node.
        """
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A device that a pod claims, and how much of it.

    ``device`` is a UUID or an index, "" if unknown. ``memory_milli`` is memory in thousandths of the device's
    memory, in addition to ``memory_mib``. ``requested`` is the pod's request of each device; the larger of
    claim and request counts. ``stage`` is 0 for containers, and numbers the init containers from 1, which run
    one after another; it is negative for sidecars, which continue to run. ``slices`` is the mask of a MIG
    instance's memory slices, 0 if there is none.
    """

    device: str
    compute_milli: int = 0
    memory_mib: int = 0
    memory_milli: int = 0
    requested: Shares | None = None
    stage: int = 0
    slices: int = 0


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims of a pod on GPUs that are shared as ``resource``.

    ``problem``: why the annotations are unusable, or what they contradict in the pod's spec; "" if nothing.
    ``node``: the node that they name, if any. ``exact``: claiming more than requested is also a problem;
    False if the sharing system rounds up to a MIG instance.
    """

    resource: str
    devices: tuple[Claim, ...] = ()
    problem: str = ""
    node: str = ""
    exact: bool = True


def container_stages(spec: PodSpec) -> list[int]:
    """The stage of each container (see ``Claim``), init containers first."""
    inits = [-i if container.sidecar else i for i, container in enumerate(spec.init_containers, 1)]
    return inits + [0] * len(spec.containers)


def validate_claims(
    claims: list[Claim], requested: Shares | None, stage: int = 0
) -> tuple[tuple[Claim, ...], str]:
    """The claims of one container with its request and stage, and a problem if their number is wrong.

    If devices are missing, one claim without a device is added: it could be any device of the node.
    """
    devices = len({(claim.device, claim.slices) for claim in claims})
    count = requested.count if requested else 0
    unknown = [Claim("")] if devices < count else []
    checked = tuple(replace(claim, requested=requested, stage=stage) for claim in claims + unknown)
    if len(claims) == devices == count:
        return checked, ""
    return checked, f"names {devices} GPUs, but the pod requests {count}"


def parse_number(text: str) -> int:
    """A whole number of at most nine digits. Raises ValueError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{quoted(text)} is not a whole number")
    return int(text)


def parse_positive(name: str, text: str) -> int:
    """A whole number of at least 1, from the annotation or label ``name``. Raises RequestError."""
    try:
        number = parse_number(text)
    except ValueError:
        number = 0
    if not number:
        raise RequestError(f"{name}: {quoted(text)} is not a whole number of at least 1")
    return number


def parse_indices(text: str) -> list[str]:
    """GPU indices, separated by commas. Raises ValueError."""
    check_limits(text.count(",") + 1)
    return [str(parse_number(index)) for index in text.split(",")]


def check_limits(devices: int, containers: int = 0) -> None:
    """Raises ValueError if annotations name more devices or containers than Stowage reads."""
    if devices > CLAIMED_DEVICES:
        raise ValueError(f"{devices} devices are more than {CLAIMED_DEVICES}")
    if containers > 2 * CONTAINERS:
        raise ValueError(f"{containers} containers are more than {2 * CONTAINERS}")
