"""What a sharing system's module defines, and claims: a bound pod's GPUs according to its annotations.

``pod_request.DIALECTS`` lists them. Anyone who can edit a pod can write its annotations, so
``extender/cluster/claim_check.py`` compares claims with the pod's request and its node before they count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from extender.dialects.pod_resources import Amounts, RequestError
from extender.k8s.objects import Node, Pod, PodSpec
from extender.untrusted.limits import CLAIMED_DEVICES, CONTAINERS, quoted
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE, Shares


@dataclass(frozen=True, slots=True)
class Chosen:
    """GPUs (indices) of a node, chosen for the shares that a pod requests there.

    ``now`` is in Unix seconds. ``taken``: the memory slices that other pods have on each of these GPUs, as
    masks.
    """

    pod: Pod
    node: NodeSpec
    shares: Shares
    gpus: tuple[int, ...]
    now: float = 0
    taken: Mapping[int, int] = field(default_factory=dict)


class GpuLists(NamedTuple):
    """Annotations that list the UUIDs and models of GPUs that a pod allows and denies, "" for none."""

    allow_uuids: str = ""
    deny_uuids: str = ""
    allow_models: str = ""
    deny_models: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One sharing system's notation for requests of fractions of GPUs, and for the GPUs that a pod has.

    - ``resource``: the extended resource that counts the shares. A node shares its GPUs under this name.
    - ``requested_shares``: the request of a pod, by its spec, its ``effective_requests``, and the annotations
      and labels that any dialect reads; None if it does not use this dialect. Raises ValueError or
      RequestError.
    - ``claims``: the claims of a bound pod that requests these shares, as far as that can be read, None if it
      has none in this dialect. Never raises.
    - ``giving``: extended resources that imply a GPU for a bound pod that requests any of them, whatever
      contradicts it; none if only ``bind`` allocates GPUs.
    - ``request_annotations``, ``request_labels``: they change a pod's request. ``assignment_annotations``:
      the GPUs that a pod was allocated, and when. In names of annotations ``*`` is the name of a container.
    - ``mode``: the modes of GPUs that a pod with this metadata and these shares permits, "" for any.
    - ``precedence``: a pod that requests shares in several dialects uses the highest.
    - ``assignment``: the annotations by which ``bind`` assigns GPUs; ``claims`` reads them back. Raises
      RequestError if the node's device plugin could not follow them. None if ``bind`` cannot assign them.
    - ``assigns``: for which pods, on which nodes. Of several dialects the first in ``DIALECTS`` assigns.
    - ``plugin_may_confuse``: whether the node's device plugin could confuse a new pod with one of the pods on
      the node that is still starting.
    - ``conditions``: conditions of nodes, the newest name first. The first that a node has must be True where
      pods use this dialect, and none of them closes the node for others.
    - ``obstacle``: what else prevents such pods on a node, "" if nothing does.
    """

    name: str
    resource: str
    requested_shares: Callable[[PodSpec, Amounts, Mapping[str, str]], Shares | None]
    claims: Callable[[Pod, Shares | None], Claims | None]
    giving: frozenset[str] = frozenset()
    request_annotations: frozenset[str] = frozenset()
    request_labels: frozenset[str] = frozenset()
    assignment_annotations: frozenset[str] = frozenset()
    lists: tuple[GpuLists, ...] = ()
    mode: Callable[[Mapping[str, str], Shares | None], str] = field(default=lambda metadata, shares: "")
    precedence: int = 0
    assignment: Callable[[Chosen], dict[str, str]] | None = None
    assigns: Callable[[Pod, NodeSpec], bool] = field(default=lambda pod, node: True)
    plugin_may_confuse: Callable[[Node, Iterable[Pod]], bool] = field(default=lambda node, others: False)
    conditions: tuple[str, ...] = ()
    obstacle: Callable[[Node], str] = field(default=lambda node: "")

    def not_ready(self, node: Node) -> str:
        """Why the node cannot serve pods of this dialect, "" if it can."""
        known = dict(node.conditions)
        name = next((name for name in self.conditions if name in known), *self.conditions[:1])
        if known.get(name) != "True":
            return f"condition {name} is {quoted(known[name]) if name in known else 'missing'}"
        return self.obstacle(node)


def is_named(names: frozenset[str], name: str) -> bool:
    """Whether this is one of the names, in which ``*`` stands for the name of a container."""
    if name in names:
        return True
    starts, pattern = _of_containers(names)
    return name.startswith(starts) and pattern.fullmatch(name) is not None


@lru_cache(maxsize=64)
def _of_containers(names: frozenset[str]) -> tuple[tuple[str, ...], re.Pattern[str]]:
    open_names = [name for name in names if "*" in name]
    patterns = (re.escape(name).replace(r"\*", "[a-z0-9-]+") for name in open_names)
    return tuple({name.partition("*")[0] for name in open_names}), re.compile("|".join(patterns))


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

    If devices are missing, one claim without a device is added: it could be any device of the node. Without a
    known request, a claim without an amount is a whole GPU.
    """
    if requested is None:
        whole = Claim("", WHOLE, memory_milli=WHOLE)
        claims = [replace(whole, device=c.device) if c == Claim(c.device) else c for c in claims]
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
