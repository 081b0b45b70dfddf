"""The closed set of reasons a node cannot accept a pod.

kube-scheduler groups equal texts in the pod's event ("0/9 nodes are available: 5 not enough free GPUs, ..."),
so a text contains no node names or numbers.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Reason(IntEnum):
    """Code, text, and whether evicting pods from the node could help. ``FITS`` is 0."""

    text: str
    eviction_helps: bool

    def __new__(cls, code: int, text: str = "", eviction_helps: bool = False) -> Reason:
        member = int.__new__(cls, code)
        member._value_, member.text, member.eviction_helps = code, text, eviction_helps
        return member

    FITS = 0, "fits"
    UNKNOWN_NODE = 1, "Stowage has not seen this node yet"
    UNREADABLE = 2, "GPU inventory of the node could not be read"
    REPARTITIONING = 3, "MIG reconfiguration in progress"
    INVALID_LAYOUT = 4, "MIG layout of the node is invalid"
    OVERCOMMITTED = 5, "node is over-committed"
    NO_SUCH_RESOURCE = 6, "node does not offer the requested GPU resource"
    WRONG_MODEL = 7, "GPU model not allowed by the pod"
    TOO_FEW_GPUS = 8, "node has fewer GPUs than requested"
    ISLAND_TOO_SMALL = 9, "no NVLink island is large enough"
    NO_FREE_GPUS = 10, "not enough free GPUs", True
    FRAGMENTED = 11, "no single GPU has enough free compute and memory", True
    NO_FREE_CPU = 12, "not enough free CPU", True
    NO_FREE_MEMORY = 13, "not enough free memory", True
    OLD_DRIVER = 14, "CUDA driver too old or unknown"
    TOO_MANY_REPLICAS = 15, "shared GPU: more slices per container requested than the node allows"
    PLUGIN_BUSY = 16, "device plugin is busy starting another pod"
    NO_FREE_PEERS = 17, "no NVLink island has enough free GPUs", True
    NO_ASSIGNER = 18, "no component can assign the node's shared GPUs to the pod"
    UNHEALTHY_GPU = 19, "node reports an unhealthy GPU"
    PARTS_OF_ONE_GPU = 21, "node would allocate a container several replicas or instances of the same GPU"
    GANG_DOES_NOT_FIT = 23, "the pod's gang does not fit as a whole"
    BELOW_MINIMUM = 24, "requested GPU share is below the minimum"
    LEAVING = 25, "node is about to be terminated"
    ON_SPOT = 26, "node is a spot node, and the pod is not restartable"
    NOT_IN_SHARD = 27, "node is not in the shard of this Stowage"
    SHARES_USED_UP = 28, "the node's GPUs accept no more pods: their split count is used up", True
    WRONG_MODE = 29, "GPUs of the node are in another mode than the pod requests"
    MISALIGNED = 30, "kubelet would reject the pod: its NUMA policy cannot align the free resources", True
    OTHER_WAY = (
        31,
        "GPUs offered through both a device plugin and ResourceSlices are in use through the other",
    )
    GPUS_TOO_SMALL = 32, "GPUs of the node are smaller than the share that the pod requests"
    PART_OF_A_GPU = 33, "node offers fractions of GPUs, and the pod requires whole ones"
    SMALL_DEVICES = 34, "no GPU or fraction on the node is known to have the memory that the pod needs"
    LAYOUT_CHANGES = 35, "MIG layout of the node is about to change"
    AGENTS_NOT_READY = 36, "agents of the GPU sharing system are not ready on the node"
    RESERVED = 37, "node is reserved for a large job"
    OTHER_DOMAIN = 38, "node is outside the topology domain of the pod's gang"
    NO_DOMAIN = 39, "node lacks the label of the topology level that the pod's gang requires"
