"""NodeResourceTopology: the resources of each NUMA node, and the policy of kubelet's Topology Manager.

Facts: k8stopologyawareschedwg/noderesourcetopology-api, ``pkg/apis/topology/v1alpha2/types.go``; NFD's
topology updater writes one object of this kind for each node, with the node's name, and checks it every
minute (kubernetes-sigs/node-feature-discovery, ``nfd-topology-updater``). Policy and scope are in
``attributes``; older objects combine them in one word of ``topologyPolicies``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta, Struct

from extender.k8s.manifest import Int, Manifest, Name, Named
from extender.k8s.quantity import QuantityError, milli, whole
from extender.untrusted.limits import NUMA_RESOURCES, NUMA_ZONES, quoted, shorten
from packing.model.numa import NumaNode, Policy

_OLD: dict[str, tuple[Policy | None, bool]] = {
    "None": ("none", False),
    "SingleNUMANodeContainerLevel": ("single-numa-node", False),
    "SingleNUMANodePodLevel": ("single-numa-node", True),
    "Restricted": ("restricted", False),
    "RestrictedContainerLevel": ("restricted", False),
    "RestrictedPodLevel": ("restricted", True),
    "BestEffort": ("best-effort", False),
    "BestEffortContainerLevel": ("best-effort", False),
    "BestEffortPodLevel": ("best-effort", True),
}
"""Policy, and whether it applies to pods as a whole."""
_NUMBER = re.compile(r"node-(\d|[1-5]\d|6[0-3])", re.ASCII)
"""Names of zones that are NUMA nodes. Kubelet's NUMA bit masks have 64 bits."""


@dataclass(frozen=True, slots=True)
class NodeTopology(Named):
    """The NUMA nodes of the node of this name, in numerical order. ``whole_pods``: the scope is the pod.
    ``version``: the resourceVersion. ``problem``: the unreadable part, "" for none; an unreadable resource
    has no free amount."""

    kind: ClassVar[Literal["NodeResourceTopology"]] = "NodeResourceTopology"
    name: str
    policy: Policy = "none"
    whole_pods: bool = False
    numa: tuple[NumaNode, ...] = ()
    version: str = ""
    problem: str = ""


class _Attribute(Struct, frozen=True, gc=False):
    name: Name = ""
    value: Name = ""


class _Resource(Struct, frozen=True, gc=False):
    """The CRD also accepts numbers as amounts."""

    name: Name = ""
    capacity: str | Int = "0"
    allocatable: str | Int | None = None
    available: str | Int = "0"


class _Zone(Struct, frozen=True, gc=False):
    name: Name = ""
    type: Name = ""
    resources: Annotated[tuple[_Resource, ...], Meta(max_length=NUMA_RESOURCES)] = ()


class NodeTopologyManifest(Manifest, frozen=True, gc=False):
    topologyPolicies: tuple[Name, ...] = ()
    attributes: tuple[_Attribute, ...] = ()
    zones: Annotated[tuple[_Zone, ...], Meta(max_length=NUMA_ZONES)] = ()

    def record(self) -> NodeTopology:
        policy, whole_pods = self._judges()
        problems: list[str] = []
        numbered = [(_NUMBER.fullmatch(zone.name), zone) for zone in self.zones if zone.type == "Node"]
        numa = {int(found[1]): _numa_node(zone, problems) for found, zone in numbered if found}
        in_order = tuple(node for _, node in sorted(numa.items()))
        metadata, problem = self.metadata, shorten(next(iter(problems), ""))
        if policy is None:
            policy, problem = "none", problem or "it names no known policy"
        return NodeTopology(metadata.name, policy, whole_pods, in_order, metadata.resourceVersion, problem)

    def _judges(self) -> tuple[Policy | None, bool]:
        """The policy, None if unknown, and whether its scope is the pod."""
        policy, whole_pods = _OLD.get(next(iter(self.topologyPolicies), ""), (None, False))
        for attribute in self.attributes:
            if attribute.name == "topologyManagerPolicy":
                policy = next((known for known in get_args(Policy) if known == attribute.value), policy)
            elif attribute.name == "topologyManagerScope" and attribute.value in ("container", "pod"):
                whole_pods = attribute.value == "pod"
        return policy, whole_pods


def _numa_node(zone: _Zone, problems: list[str]) -> NumaNode:
    """The minimum number of NUMA nodes depends on all CPUs and devices, but only on allocatable memory."""
    free, total = dict[str, int](), dict[str, int]()
    for resource in zone.resources:
        free[resource.name] = total[resource.name] = 0
        try:
            free[resource.name] = amount_of(resource.name, str(resource.available), round_up=False)
            of_memory = is_memory(resource.name) and resource.allocatable is not None
            total[resource.name] = amount_of(
                resource.name, str(resource.allocatable if of_memory else resource.capacity), round_up=False
            )
        except QuantityError as error:
            problems.append(str(error))
    return NumaNode(tuple(sorted(free.items())), tuple(sorted(total.items())))


def is_memory(resource: str) -> bool:
    """Whether kubelet's memory manager allocates it."""
    return resource == "memory" or resource.startswith("hugepages-")


def amount_of(resource: str, text: str, *, round_up: bool = True) -> int:
    """Milli-CPU, bytes, or devices. Raises ``QuantityError``."""
    try:
        return milli(text, round_up=round_up) if resource == "cpu" else whole(text, round_up=round_up)
    except QuantityError as error:
        raise QuantityError(f"{quoted(resource)}: {error}") from None
