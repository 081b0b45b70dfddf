"""The victims that preempt has named, until the watch shows that they go.

kube-scheduler evicts them at once, and tries the pod again when they are gone. A watch that is late, or cut
off without a word, still shows them then. The pod would be refused once more, kube-scheduler would look for
other victims, and so on from node to node: in a soak victims were named on 27 nodes for one pod in three
seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.cluster.pod_table import PodTable
from extender.protocol.codec import Candidate
from extender.untrusted.bounded_cache import BoundedMap

STILL_THERE = "nothing fits, and the pods to be evicted for it have not been seen to go yet"

LONGEST = 30.0
"""Seconds for which victims are expected to go: a watch that is cut off looks open for at most 25. Where
kube-scheduler could not evict them, it may look for victims again after that."""
_KEPT = 4096
"""Pods whose victims are kept."""


class NamedVictims:
    """The victims of each of the last pods for which some were named."""

    def __init__(self) -> None:
        self._named: BoundedMap[str, tuple[list[list[str]], float]] = BoundedMap(_KEPT)

    def note(self, uid: str, candidates: Mapping[str, Candidate], now: float) -> None:
        """preempt has answered with these nodes and victims for the pod of this UID. ``now`` in seconds."""
        victims = [candidate.victims for candidate in candidates.values()]
        if victims:
            self._named.put(uid, (victims, now), sum(64 + len(one) for on_node in victims for one in on_node))

    def still_there(self, uid: str, pods: PodTable, now: float) -> bool:
        """Whether on each node that was named for the pod at least one victim is neither gone nor going."""
        if (named := self._named.get(uid)) is None:
            return False
        victims, at = named
        if now - at > LONGEST or any(all(_goes(pods, victim) for victim in on_node) for on_node in victims):
            self._named.pop(uid)
            return False
        return True


def _goes(pods: PodTable, uid: str) -> bool:
    known = pods.by_uid(uid)
    return known is None or known.deleting
