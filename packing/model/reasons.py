"""Why a node cannot take a pod: the closed set of reasons.

kube-scheduler groups equal texts in the pod's event ("0/9 nodes are available: 5 GPUs are taken, ..."),
so a text names no node and carries no number.
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Code, text, and whether evicting pods of the node could help. ``FITS`` is 0."""

    text: str
    eviction_helps: bool

    def __new__(cls, code: int, text: str = "", eviction_helps: bool = False) -> Reason:
        member = int.__new__(cls, code)
        member._value_ = code
        member.text = text
        member.eviction_helps = eviction_helps
        return member

    FITS = 0, "fits"
    UNKNOWN_NODE = 1, "node is not known to Stowage yet"
    UNREADABLE = 2, "node advertises what cannot be read"
    REPARTITIONING = 3, "GPUs are being re-partitioned"
    INVALID_LAYOUT = 4, "MIG layout of the node is invalid"
    OVERCOMMITTED = 5, "node holds more GPU than it has"
    NO_SUCH_DEVICE = 6, "node has no GPU of the kind asked for"
    WRONG_MODEL = 7, "GPU model is not one that the pod allows"
    TOO_FEW_DEVICES = 8, "node has too few GPUs for the pod even when empty"
    NO_ISLAND = 9, "no NVLink island is large enough"
    DEVICES_TAKEN = 10, "GPUs are taken", True
    FRAGMENTED = 11, "free GPU is in crumbs that are too small", True
    CPU_TAKEN = 12, "too little free CPU", True
    MEMORY_TAKEN = 13, "too little free memory", True
    OLD_DRIVER = 14, "CUDA driver is older than the pod needs, or not known"
    ONE_REPLICA = 15, "node gives a container fewer replicas of a shared GPU at once"
    PLUGIN_BUSY = 16, "device plugin is busy with another pod that starts"
    ISLAND_TAKEN = 17, "no NVLink island has enough free GPUs", True
    NO_ASSIGNER = 18, "no component can assign the node's shared GPUs to the pod"
    SICK_GPU = 19, "a GPU of the node is reported unhealthy"
    BELOW_MINIMUM = 24, "share of a GPU is smaller than the smallest that is allowed"
