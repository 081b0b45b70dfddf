"""Clusters of 20 nodes as GKE, EKS, AKS and OKE label and taint them.

On AKS and OKE the vendor's device plugin runs without GPU feature discovery, except where GPUs are
partitioned. Their labels are those of nodes in public reports: Azure/AKS#1449, kubernetes-sigs/kueue#5039.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from extender.cluster.state import State
from extender.k8s.affinity import Taint
from extender.k8s.objects import Node

from ..extender.builders import make_pod, make_state

GPU = "nvidia.com/gpu"
GKE, EKS = "cloud.google.com/gke-", "eks.amazonaws.com/"
SPOT = "kubernetes.azure.com/scalesetpriority"
TAINT = {
    **{"gke": Taint(GPU, "present", "NoSchedule"), "eks": Taint(GPU, "true", "NoSchedule")},
    **{"aks": Taint(GPU, "present", "NoSchedule"), "oke": Taint(GPU, "present", "NoSchedule")},
}
INSTANCES = {
    "aks": {"h100": "Standard_ND96isr_H100_v5", "a100": "Standard_ND96asr_v4", "l4": "Standard_NC64as_T4_v3"},
    "oke": {"h100": "BM.GPU.H100.8", "a100": "BM.GPU4.8", "l4": "BM.GPU.A10.4"},
}
Pool: TypeAlias = tuple[str, int, int, str, str, str, str, str, str]
# (pool, nodes, GPUs, CPUs, memory, accelerator of GKE, instance type, product of GPU feature discovery, MiB)
POOLS: list[Pool] = [
    ("h100", 4, 8, "200", "1800Gi", "nvidia-h100-80gb", "p5.48xlarge", "NVIDIA-H100-80GB-HBM3", "81559"),
    ("a100", 2, 8, "90", "1100Gi", "nvidia-tesla-a100", "p4d.24xlarge", "NVIDIA-A100-SXM4-40GB", "40960"),
    ("l4", 5, 4, "47", "180Gi", "nvidia-l4", "g6.12xlarge", "NVIDIA-L4", "23034"),
    ("spot", 3, 4, "47", "180Gi", "nvidia-l4", "g6.12xlarge", "NVIDIA-L4", "23034"),
    ("mig", 2, 7, "11", "80Gi", "nvidia-tesla-a100", "", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "4864"),
    ("cpu", 4, 0, "15", "60Gi", "", "m7i.4xlarge", "", ""),
]


@cache  # nobody changes it
def cloud(name: str) -> State:
    """One of four H100 nodes is full, and so is one of five with L4."""
    nodes = [node(name, pool, number) for pool in POOLS for number in range(pool[1])]
    full = [make_pod(f"full-{at}", gpus, node_name=at) for at, gpus in (("h100-0", 8), ("l4-0", 4))]
    return make_state(*nodes, *full)


def node(cloud: str, pool: Pool, number: int) -> Node:
    name, _, gpus, cpu, memory, accelerator, instance, product, mib = pool
    labels = {"kubernetes.io/hostname": f"{name}-{number}", "pool": name}
    if cloud == "gke":
        labels |= {f"{GKE}nodepool": name}
        labels |= {f"{GKE}accelerator": accelerator, f"{GKE}accelerator-count": str(gpus)} if gpus else {}
        labels |= (
            {f"{GKE}gpu-partition-size": "1g.5gb", f"{GKE}accelerator-count": "1"} if name == "mig" else {}
        )
        labels |= {f"{GKE}spot": "true"} if name == "spot" else {}
    else:
        labels |= of_provider(cloud, name, instance)
        of_gpu = {
            f"{GPU}.product": product,
            f"{GPU}.count": str(gpus),
            f"{GPU}.memory": mib,
            f"{GPU}.replicas": "1",
        }
        of_gpu |= {"nvidia.com/mig.strategy": "single", f"{GPU}.count": "7"} if name == "mig" else {}
        labels |= of_gpu if gpus and (cloud == "eks" or name == "mig") else {}
    taints = [TAINT[cloud]] if gpus else []
    taints += [Taint(f"{GKE}spot", "true", "NoSchedule")] if (cloud, name) == ("gke", "spot") else []
    taints += [Taint(SPOT, "spot", "NoSchedule")] if (cloud, name) == ("aks", "spot") else []
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    return Node(
        f"{name}-{number}", f"{name}-{number}", labels=labels, taints=tuple(taints), allocatable=allocatable
    )


def of_provider(cloud: str, pool: str, instance: str) -> dict[str, str]:
    """The labels that tell EKS, AKS and OKE from each other."""
    if cloud == "eks":
        own = {f"{EKS}nodegroup": pool} | ({f"{EKS}capacityType": "SPOT"} if pool == "spot" else {})
    elif cloud == "aks":
        own = {"kubernetes.azure.com/cluster": "MC_ml_ml_eastus", "kubernetes.azure.com/agentpool": pool}
        own |= {SPOT: "spot"} if pool == "spot" else {}
    else:
        own = {"oke.oraclecloud.com/node.info.private_subnet": "true", "node.info.ds_proxymux_client": "true"}
    if cloud in INSTANCES:
        instance = INSTANCES[cloud].get("l4" if pool == "spot" else pool, "")
    return own | ({"node.kubernetes.io/instance-type": instance} if instance else {})
