"""The victims that preempt has named, until the watch shows that they go.

kube-scheduler evicts them at once, and tries the pod again when they are gone. A watch that is late, or cut
off without a word, still shows them then. The pod would be refused once more, kube-scheduler would look for
other victims, and so on from node to node: in a soak victims were named on 27 nodes for one pod in three
seconds.

Nor are they named for a second pod meanwhile. kube-scheduler 1.36 evicts in the background, and holds the pod
back for a moment when it begins. If the victims end in that moment, because they were evicted for the first
pod, nothing wakes the second one. That is the likely reason why in one run of tests/e2e/test_contest.py one
pod of 300 had no node after five minutes, beside a free GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.cluster.pod_table import PodTable
from extender.protocol.codec import Candidate
from extender.untrusted.bounded_cache import BoundedMap

STILL_THERE = "nothing fits, and the pods to be evicted for it have not been seen to go yet"
GO_FOR_ANOTHER = "the pods to evict were named for another pod just now"

LONGEST = 30.0
"""Seconds for which victims are expected to go: a watch that is cut off looks open for at most 25. Where
kube-scheduler could not evict them, it may look for victims again after that."""
JUST_NOW = 2.0
"""Seconds after which victims that were named for another pod, and are still there, may be named again."""
_KEPT = 4096
"""Pods whose victims are kept, and victims."""


class NamedVictims:
    """The victims of each of the last pods for which some were named."""

    def __init__(self) -> None:
        self._named: BoundedMap[str, tuple[list[list[str]], float]] = BoundedMap(_KEPT)
        self._named_for: BoundedMap[str, tuple[str, float]] = BoundedMap(_KEPT)

    def note(self, uid: str, candidates: Mapping[str, Candidate], now: float) -> None:
        """preempt has answered with these nodes and victims for the pod of this UID. ``now`` in seconds."""
        victims = [candidate.victims for candidate in candidates.values()]
        if victims:
            self._named.put(uid, (victims, now), sum(64 + len(one) for on_node in victims for one in on_node))
        for victim in victims[0] if len(victims) == 1 else ():  # of several nodes kube-scheduler chooses one
            self._named_for.put(victim, (uid, now), 64 + len(victim) + len(uid))

    def go_for_another(
        self, uid: str, candidates: Mapping[str, Candidate], pods: PodTable, now: float
    ) -> bool:
        """Whether all these victims were named just now for another pod, which is nominated, and have not
        been seen to go yet. Their end wakes this pod, too."""
        victims = [victim for candidate in candidates.values() for victim in candidate.victims]
        return bool(victims) and all(
            (named := self._named_for.get(victim)) is not None
            and named[0] != uid
            and now - named[1] <= JUST_NOW
            and pods.reservations.node_of(named[0])
            and not _goes(pods, victim)
            for victim in victims
        )

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
