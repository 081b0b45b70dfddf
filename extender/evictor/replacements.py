"""Which waiting pods replace interrupted ones, and where room that is free already can be held for them.

kube-scheduler's queue cannot be reordered, but a nominated pod keeps its node from pods of equal and lower
priority, in kube-scheduler as in Stowage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.evictor.book import ATTEMPTS, Book
from extender.evictor.decision import UNSCHEDULABLE, fits_on
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Pod
from extender.verbs.gang_fit import gang_may_fit

MOST_HELD = 32
"""Pods that free room is held for at a time."""
_CHECKED = 10
"""Pods that a round looks for free room for. Requests wait meanwhile."""
_ABOVE = 64
"""Waiting pods of higher priority that are asked whether they need the room. If there are more, none is
held."""


def replacements(state: State, waiting: Iterable[Pod], wall: float) -> frozenset[str]:
    """UIDs of the waiting pods that replace interrupted ones. ``wall`` in Unix seconds."""
    replaces = state.disruptions.replaces_interrupted
    return frozenset(pod.uid for pod in waiting if replaces(pod, wall))


def to_check(state: State, book: Book, replacing: Collection[str], waiting: Iterable[Pod]) -> list[Pod]:
    """The replacements to look for free room for in this round, the most urgent first. If there are many,
    those that were looked at longest ago."""
    room = MOST_HELD - sum(hold.was_free for hold in book.holds.values())
    pods = [pod for pod in waiting if pod.uid in replacing and _may_be_held_for(book, pod)]
    pods.sort(key=lambda pod: (book.checked.get(pod.uid, 0), -pod.priority, pod.created, pod.key))
    chosen = pods[: max(0, min(room, _CHECKED))]
    latest = max(book.checked.values(), default=0)
    book.checked.update((pod.uid, latest + 1) for pod in chosen)
    return sorted(chosen, key=lambda pod: (-pod.priority, pod.created, pod.key))


def _may_be_held_for(book: Book, pod: Pod) -> bool:
    return (
        pod.unscheduled == UNSCHEDULABLE
        and not pod.nominated_node
        and pod.uid not in book.holds
        and book.attempts.get(pod.uid, 0) < ATTEMPTS
    )


def may_take(state: State, pod: Pod, node: str, waiting: Sequence[Pod]) -> bool:
    """Whether free room on a node may be held for the pod: no waiting pod of higher priority fits there, and
    the pod's gang, if it has one, fits as a whole."""
    above = [one for one in waiting if one.priority > pod.priority and _needs_room(state, one)]
    if len(above) > _ABOVE or any(_could_use(state, one, node) for one in above):
        return False
    return gang_may_fit(state, pod, request_of(pod))


def _needs_room(state: State, pod: Pod) -> bool:
    reserved = pod.nominated_node or state.reservations.has(pod.uid, Reserved.EVICTOR)
    return pod.unscheduled == UNSCHEDULABLE and not reserved


def _could_use(state: State, pod: Pod, node: str) -> bool:
    rejected = NodeFilter(pod).rejection(state.nodes[node])
    return not rejected and fits_on(state, pod, node)
