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

from packing.fleet.network import Domains

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


def domains_of(labels: Mapping[str, str]) -> Domains:
    """The domains that a node's labels name: of each level the label and its value; "" for none."""
    return tuple(
        next((f"{label}={labels[label]}" for label in level if labels.get(label)), "") for level in LEVELS
    )
