"""Pods that kube-scheduler may have bound while the API server was away.

A binding whose answer is lost may have happened. kube-scheduler treats it as failed and forgets the pod until
its own watch is back; pods that it binds meanwhile are not on our watch yet. So after an outage both caches
lack pods of the other, and both may over-allocate. For a while Stowage therefore counts the nodes that it
answered as allocated, until its watch shows what became of the pods.
"""

from __future__ import annotations

from collections.abc import Iterator

from extender.k8s.objects import Pod
from extender.source.interface import Interruption
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import KEPT_PODS

_BEFORE_BREAK = 30.0
"""Seconds before a break in which answers may have led to bindings that were lost: requests may queue."""
_UNNOTICED = 1.0
"""Seconds for which a break may go unnoticed."""
_IN_FLIGHT = 10.0
"""Seconds from an answer to the end of its binding, as long as nothing is lost."""
_AFTER_BREAK = 60.0
"""Seconds after a break in which kube-scheduler may still wait for its watch: client-go tries every 30 s."""
_KEPT = 4096
"""Pods whose last answers are kept."""


class UnconfirmedBindings:
    """The node that Stowage answered last for each of the last pods."""

    def __init__(self) -> None:
        self._answers: BoundedMap[str, tuple[Pod, str, float]] = BoundedMap(_KEPT, KEPT_PODS)

    def note(self, pod: Pod, node: str, now: float) -> None:
        """kube-scheduler will most likely bind the pod to this node."""
        size = min(pod.size + len(node), KEPT_PODS // 16)
        self._answers.put(pod.uid, (pod, node, now), size)

    def after(self, interruption: Interruption, now: float) -> Iterator[tuple[Pod, str]]:
        """Pods, and the nodes where they may have been bound, unless the watch has shown otherwise."""
        began, ended = interruption.began_at, interruption.ended_at
        if ended is not None and now - ended > _AFTER_BREAK:
            return
        for pod, node, answered in self._answers.values():
            lost = ended is None and began - _BEFORE_BREAK <= answered <= began + _UNNOTICED
            if lost or answered >= now - _IN_FLIGHT:
                yield pod, node
