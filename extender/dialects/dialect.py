"""What a vocabulary is: it reads what waiting pods ask for, and what running pods say they hold.

Annotations of running pods are claims, no more: anyone who may edit the pod may write them. They are compared
with the pod's request and with the node before they enter the books (``extender/cluster/claim_check.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from extender.dialects.pod_resources import RequestError, amounts
from extender.k8s.objects import Node, Pod, PodSpec
from extender.untrusted.limits import CLAIMED_DEVICES, quoted
from packing.model.node_spec import NodeSpec
from packing.model.request import Shares


@dataclass(frozen=True, slots=True)
class Claim:
    """A device that a pod says it holds, and how much of it.

    ``device`` is a UUID or an index, "" where it is not said. ``memory_milli`` is memory as thousandths of
    the device's. ``least`` is what the pod asked for on each device: the larger of both counts. ``stage``
    is 0 for containers, 1 for sidecars and 2 up for each init container, which do not run at the same time.
    ``slices`` are those of a MIG instance, as a mask, 0 where it is none.
    """

    device: str
    compute_milli: int = 0
    memory_mib: int = 0
    memory_milli: int = 0
    least: Shares | None = None
    stage: int = 0
    slices: int = 0


@dataclass(frozen=True, slots=True)
class Claims:
    """All that a pod says it holds of GPUs that are divided as ``resource``.

    ``complaint`` says what is wrong with it by itself; ``node`` is the node that it names, if any.
    ``exact``: more than was asked for is a contradiction, too (not so where a share is rounded up to a
    slice).
    """

    resource: str
    devices: tuple[Claim, ...] = ()
    complaint: str = ""
    node: str = ""
    exact: bool = True


class Dialect(Protocol):
    """One way to ask for parts of GPUs. A module with these names is one."""

    RESOURCE: str
    """The resource that counts its shares; nodes divide their GPUs under this name."""
    READS: frozenset[str]
    """The annotations of a waiting pod that it reads."""
    READS_LABELS: frozenset[str]
    """The labels of a waiting pod that it reads."""
    ASSIGNED_BY: frozenset[str]
    """The annotations that say which GPUs a pod has been given, and when."""

    def shares(self, spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
        """What the pod asks for, None if it does not speak this vocabulary. Raises RequestError.

        ``resources`` are the pod's effective ones, ``said`` its annotations and labels that any reads.
        """
        ...

    def grantable(self, pod: Pod, resources: Mapping[str, int]) -> Shares | None:
        """The most that a bound pod, whose request cannot be read, can have been given; None for nothing.

        What it asks for by annotation does not count, unless it can only ask by annotation. ``resources`` are
        its effective ones; its spec has only quantities that can be read. Never raises.
        """
        ...

    def claims(self, pod: Pod) -> Claims | None:
        """What a bound pod says it holds, None if it says nothing in this vocabulary."""
        ...


class AssignmentWriter(Protocol):
    """A vocabulary in which ``bind`` says which GPUs a pod has. What is written reads back by ``claims``."""

    RESOURCE: str
    """See ``Dialect``."""

    def assignment(
        self, pod: Pod, shape: NodeSpec, chosen: tuple[int, ...], now: float, taken: Mapping[int, int]
    ) -> dict[str, str]:
        """The annotations that give a pod these GPUs (indices) of a node that is divided as ``RESOURCE``.

        ``now`` is in Unix seconds; ``taken`` are the slices of these GPUs that others have, as masks. Raises
        RequestError where the node's device plugin could not read it.
        """
        ...

    def busy(self, node: Node, others: Iterable[Pod]) -> bool:
        """Whether the node's device plugin could not tell a further pod from ``others``, which it has."""
        ...


def stages(spec: PodSpec) -> list[int]:
    """The stage of each container, init containers first (see ``Claim``)."""
    inits = [1 if container.sidecar else 2 + i for i, container in enumerate(spec.init_containers)]
    return inits + [0] * len(spec.containers)


def compared(found: list[Claim], asked: Shares | None, stage: int = 0) -> tuple[list[Claim], str]:
    """A container's claims held against its request, and what is wrong: too few different devices (or MIG
    instances), or others.

    For devices that are missing one claim without a name is added: it could be any of them.
    """
    claims = [
        Claim(c.device, c.compute_milli, c.memory_mib, c.memory_milli, asked, stage, c.slices) for c in found
    ]
    wanted, different = asked.count if asked else 0, len({(claim.device, claim.slices) for claim in found})
    if len(found) == different == wanted:
        return claims, ""
    if different < wanted:
        claims.append(Claim("", least=asked, stage=stage))
    return claims, f"names {different} GPUs where the pod asks for {wanted}"


def most_together(spec: PodSpec, resources: frozenset[str]) -> int:
    """The most devices of one of these resources that a single container asks for, at least 1."""
    each = (amounts(container.requests) for container in (*spec.containers, *spec.init_containers))
    return max((asked[name] for asked in each for name in resources), default=1) or 1


def positive(name: str, text: str) -> int:
    """A whole number from 1, as annotations write it. Raises RequestError."""
    try:
        found = number(text)
    except ValueError:
        found = 0
    if not found:
        raise RequestError(f"{name}: {quoted(text)} is not a whole number from 1")
    return found


def listed(text: str) -> list[str]:
    """Indices of GPUs, separated by commas. Raises ValueError."""
    if text.count(",") >= CLAIMED_DEVICES:
        raise ValueError(f"more than {CLAIMED_DEVICES} devices")
    return [str(number(index)) for index in text.split(",")]


def number(text: str) -> int:
    """A whole number of at most nine digits, as annotations write it. Raises ValueError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{quoted(text)} is not a whole number")
    return int(text)
