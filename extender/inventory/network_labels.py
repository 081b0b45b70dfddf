"""Where a node is in the network of its cluster: labels that name NVLink domains and switches.

Sources: topograph (NVIDIA/topograph, docs/reference/node-labels.md: tier 0 is nearest to the node; before
1.0 ``network.topology.nvidia.com/`` with leaf or block, docs/k8s.md), GPU feature discovery
(``nvidia.com/gpu.clique``), GKE (labels gce-topology-block and -subblock; a sub-block of A4X is one NVL72
domain), EKS ("Place distributed AI/ML workloads with network topology labels": layer 1 is the top, 3 the
bottom, or 4 on instance types with four layers), OCI ("Using network locality when running workloads on
OKE" in oracle-quickstart/oci-hpc-oke: local block, network block, HPC island) and CoreWeave ("Node labels").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from packing.fleet.fleet import Fleet

LEVELS: tuple[tuple[str, ...], ...] = (
    (
        *("nvidia.com/gpu.clique", "accelerator.topograph.run/sub-domain"),
        *("accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator"),
        *("topology.k8s.aws/ultraserver-id", "ds.coreweave.com/nvlink.domain"),
    ),
    (
        *("fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf"),
        *("network.topology.nvidia.com/block", "cloud.google.com/gce-topology-subblock"),
        *("topology.k8s.aws/network-node-layer-4", "topology.k8s.aws/network-node-layer-3"),
        *("oci.oraclecloud.com/rdma.local_block_id", "backend.coreweave.cloud/leafgroup"),
    ),
    (
        *("fabric.topograph.run/tier-1", "network.topology.nvidia.com/spine"),
        *("cloud.google.com/gce-topology-block", "topology.k8s.aws/network-node-layer-2"),
        "oci.oraclecloud.com/rdma.network_block_id",
    ),
    (
        *("fabric.topograph.run/tier-2", "network.topology.nvidia.com/core"),
        *("network.topology.nvidia.com/datacenter", "topology.k8s.aws/network-node-layer-1"),
        "oci.oraclecloud.com/rdma.hpc_island_id",
    ),
)
"""From the nearest domain to the farthest: NVLink between nodes, then switches. Of each the first label that
a node has counts."""

Domains = tuple[str, ...]
"""Of each level the label and its value; "" where the node has none."""
NOWHERE: Domains = ("",) * len(LEVELS)


def domains_of(labels: Mapping[str, str]) -> Domains:
    """The domains that a node's labels name."""
    return tuple(
        next((f"{label}={labels[label]}" for label in level if labels.get(label)), "") for level in LEVELS
    )


DomainIds = npt.NDArray[np.int32]
"""(levels, rows of the fleet): equal numbers are the same domain, -1 is none."""


class Network:
    """The domains of all nodes. The array is made when it is asked for after a change."""

    def __init__(self) -> None:
        self._domains: dict[str, Domains] = {}
        self._changes = 0
        self._ids: tuple[object, DomainIds] = None, np.zeros((len(LEVELS), 0), np.int32)

    def put(self, node: str, labels: Mapping[str, str]) -> None:
        domains = domains_of(labels)
        if self._domains.get(node, NOWHERE) != domains:
            self._domains[node] = domains
            self._changes += 1

    def remove(self, node: str) -> None:
        self._changes += self._domains.pop(node, None) is not None

    def of(self, node: str) -> Domains:
        """The domains of a node; "" where it names none."""
        return self._domains.get(node, NOWHERE)

    def ids(self, fleet: Fleet) -> DomainIds:
        """The domains of the nodes in the rows of the fleet."""
        rows, made_for = fleet.rows, (self._changes, fleet.replaced, fleet.arrays.capacity)
        if self._ids[0] != made_for:
            ids = np.full((len(LEVELS), fleet.arrays.capacity), -1, np.int32)
            for level in range(len(LEVELS)):
                numbers: dict[str, int] = {}
                for node, domains in self._domains.items():
                    if domains[level] and node in rows:
                        ids[level, rows[node]] = numbers.setdefault(domains[level], len(numbers))
            self._ids = made_for, ids
        return self._ids[1]
