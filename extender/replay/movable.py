"""Which running pods may be placed again, and why the others stay where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from extender.dialects import kai
from extender.k8s.objects import Pod
from extender.queues.protection import WhyNot, declares_movable, protection_of


class Stays(StrEnum):
    """Why a pod stays on its node, apart from the words of ``WhyNot`` by which it protects itself."""

    CLOSED_NODE = "its node takes no pods (cordoned, MIG reconfiguration in progress, not readable)"
    TERMINATING = "it is terminating"
    PINNED = "it is a static pod or belongs to a DaemonSet"
    RESERVATION = "it only reserves a GPU (placeholder or reservation pod)"
    CLAIMS = "it has ResourceClaims"
    LOCAL_DATA = "it has data on its node (hostPath)"
    UNREADABLE = "its request cannot be read"
    NO_CONTROLLER = "no controller would create it again"


def why_it_stays(pod: Pod, now: float, *, must_be_created_again: bool = False) -> Stays | WhyNot | None:
    """Why this pod cannot move to another node at ``now`` (Unix seconds), None if it can. This looks at the
    pod alone: neither at its request nor at its node.

    ``must_be_created_again``: for a real move, which evicts the pod; then a pod without a controller stays.
    """
    if pod.scheduling_constraints.pinned_to_node:
        return Stays.PINNED
    if reserves_only(pod):
        return Stays.RESERVATION
    if pod.spec.claims:
        return Stays.CLAIMS
    if pod.deleting:
        return Stays.TERMINATING
    protection = protection_of(pod)
    if protection.reason and now < protection.until:
        return protection.reason
    if pod.has_local_data and not declares_movable(pod):
        return Stays.LOCAL_DATA
    return Stays.NO_CONTROLLER if must_be_created_again and pod.owner is None else None


def reserves_only(pod: Pod) -> bool:
    """Whether the pod does no work: its GPUs are kept for others.

    Pods whose containers only pause keep room for an autoscaler (kubernetes.io/docs, "Overprovision Node
    Capacity For A Cluster"), and KAI holds a GPU that it shares with a pod of its own.
    """
    return pod.only_pauses or kai.is_reservation(pod)


def moment_of(pods: Iterable[Pod]) -> float:
    """The earliest time at which a snapshot with these pods can have been taken, in Unix seconds."""
    return max((max(pod.created, pod.started, pod.disrupted) for pod in pods), default=0.0)


def counted(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason occurs, the most frequent first."""
    return dict(sorted(Counter(map(str, reasons)).items(), key=lambda pair: (-pair[1], pair[0])))
