"""Where kube-scheduler was about to bind pods when the API server went away.

A binding whose answer is lost may have happened. kube-scheduler takes it for failed and forgets the pod until
its own watch is back, while pods that it binds meanwhile are not yet on ours. Each of the two books then has
pods that the other one lacks, and both find room that is not there. So for a while Stowage counts what it
answered as taken, as long as its watch has not shown what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from extender.k8s.objects import Pod
from extender.source.interface import Interruption
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import KEPT_PODS

_LOST = 30.0
"""Seconds before a break in which answers may have led to bindings unseen: requests may queue."""
_UNNOTICED = 1.0
"""Seconds for which a break may go unnoticed."""
_ON_ITS_WAY = 10.0
"""Seconds from an answer to the end of its binding, as long as nothing is lost."""
_AFTERMATH = 60.0
"""Seconds after a break in which kube-scheduler may still wait for its watch: client-go tries every 30 s."""
_KEPT = 4096


class UnconfirmedBindings:
    """The last answer for each of the last pods."""

    def __init__(self) -> None:
        self._answers: BoundedMap[str, tuple[Pod, str, float]] = BoundedMap(_KEPT, KEPT_PODS)

    def note(self, pod: Pod, node: str, now: float) -> None:
        """The pod will most likely go to this node."""
        size = min(pod.size + len(node), KEPT_PODS // 16)
        self._answers.put(pod.uid, (pod, node, now), size)

    def after(self, interruption: Interruption, now: float) -> Iterator[tuple[Pod, str]]:
        """Pods and the nodes where they may have been bound, unless the watch has shown otherwise."""
        began, ended = interruption.began_at, interruption.ended_at
        if ended is not None and now - ended > _AFTERMATH:
            return
        for pod, node, answered in self._answers.values():
            lost = ended is None and began - _LOST <= answered <= began + _UNNOTICED
            if lost or answered >= now - _ON_ITS_WAY:
                yield pod, node
