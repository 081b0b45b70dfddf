"""Pods that ``bind`` binds and that the watch does not show as bound yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from extender.k8s.objects import Pod

TIME_TO_LIVE = 60.0
"""Seconds after which an assumed pod is looked up. kube-apiserver aborts a request after the same time
(``--request-timeout``): a binding that has not happened by then never will."""
SHOWN_WITHIN = 5.0
"""The same for a pod with a confirmed binding: the watch shows almost all within milliseconds."""


@dataclass(slots=True)
class AssumedPod:
    """One pod on one node. ``pod`` is the pod as bound: with its node, and with ``assignment``, the
    annotations that name its GPUs.

    ``since``: when the binding was last requested or answered, in seconds of the caller's clock.
    ``in_flight``: number of bindings without an answer yet. ``outcome_unknown``: a binding was never
    answered, and may have happened. ``confirmed``: the binding has happened.
    """

    pod: Pod
    since: float
    assignment: Mapping[str, str] = field(default_factory=dict)
    in_flight: int = 0
    outcome_unknown: bool = False
    confirmed: bool = False

    @property
    def key(self) -> str:
        """Its key in ``Allocations``, which differs from the key of the pod that the watch shows."""
        return f"{self.pod.key} {self.pod.uid}@{self.pod.node_name}"


class AssumedPods:
    """Bindings that were requested of the API server and that the watch does not show yet. A pod has several
    while it is unknown which of them happened.

    The API server makes a binding or rejects it, or its answer is lost; the watch shows a binding after the
    answer. An assumed pod is forgotten when

    - the watch shows the pod bound, deleted or ended;
    - the binding has happened, and a list that began later does not contain the pod;
    - the API server rejects the binding, or makes another binding of the same pod;
    - it is overdue, and a lookup at the API server shows the state of the pod.
    """

    def __init__(self) -> None:
        self._by_uid: defaultdict[str, dict[str, AssumedPod]] = defaultdict(dict)
        self._by_key: dict[str, AssumedPod] = {}

    def __iter__(self) -> Iterator[AssumedPod]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    def of_pod(self, uid: str) -> list[AssumedPod]:
        return list(self._by_uid[uid].values()) if uid in self._by_uid else []

    def on_node(self, uid: str, node: str) -> AssumedPod | None:
        return self._by_uid[uid].get(node) if uid in self._by_uid else None

    def by_key(self, key: str) -> AssumedPod | None:
        return self._by_key.get(key)

    def insert(self, assumed: AssumedPod) -> None:
        """Add an assumed binding, or replace the one of this pod to this node."""
        self._by_uid[assumed.pod.uid][assumed.pod.node_name] = assumed
        self._by_key[assumed.key] = assumed

    def delete(self, assumed: AssumedPod) -> None:
        del self._by_key[assumed.key]
        del self._by_uid[assumed.pod.uid][assumed.pod.node_name]
        if not self._by_uid[assumed.pod.uid]:
            del self._by_uid[assumed.pod.uid]

    def overdue(self, now: float) -> list[AssumedPod]:
        """Assumed pods without bindings in flight that the watch has not shown for too long."""
        return [
            assumed
            for assumed in self
            if not assumed.in_flight
            and now - assumed.since >= (SHOWN_WITHIN if assumed.confirmed else TIME_TO_LIVE)
        ]

    def oldest(self, now: float) -> float:
        """Seconds since the oldest was last requested or answered; 0 if there are none."""
        return max((now - assumed.since for assumed in self), default=0.0)
