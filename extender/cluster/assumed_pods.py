"""Assumed pods: bindings that were asked of the API server, and that the watch has not shown yet.

The API server makes a binding or refuses it, or its answer is lost; the watch shows it later than the answer.
Until the outcome is known, the pod's resources count as allocated. An assumed pod is forgotten when

- the watch shows the pod bound, deleted or ended;
- the binding has happened, and a list that began later does not have the pod;
- the API server refuses the binding, or makes another one of the same pod;
- it is overdue, and the API server says what it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from extender.k8s.objects import Pod

TIME_TO_LIVE = 60.0
"""Seconds. kube-apiserver gives up a request after as long (``--request-timeout``): a binding that has not
happened by then never will."""
SHOWN_WITHIN = 5.0
"""Seconds after which the API server is asked for a pod whose binding has happened: the watch shows almost
all within milliseconds."""


@dataclass(slots=True)
class AssumedPod:
    """One pod on one node. ``pod`` is as it will be once bound: with its node, and with ``assignment``, the
    annotations that name its GPUs.

    ``since``: when the binding was last asked for or answered, in seconds of the caller's clock.
    ``in_flight``: how many bindings have no answer yet. ``outcome_unknown``: one was never answered, and may
    have happened. ``confirmed``: the binding has happened.
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
    """Assumed pods by UID and node. One pod has several while it is not known which binding happened."""

    def __init__(self) -> None:
        self._by_uid: defaultdict[str, dict[str, AssumedPod]] = defaultdict(dict)
        self._by_key: dict[str, AssumedPod] = {}

    def __iter__(self) -> Iterator[AssumedPod]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    def of(self, uid: str) -> list[AssumedPod]:
        """Those of one pod."""
        return list(self._by_uid.get(uid, {}).values())

    def any_of(self, uid: str) -> bool:
        """Whether there are any of this pod."""
        return bool(self._by_uid.get(uid))

    def on(self, uid: str, node: str) -> AssumedPod | None:
        """The one of this pod on this node."""
        return self._by_uid.get(uid, {}).get(node)

    def by_key(self, key: str) -> AssumedPod | None:
        return self._by_key.get(key)

    def put(self, assumed: AssumedPod) -> None:
        """Add it, or replace the one of this pod on this node."""
        self._by_uid[assumed.pod.uid][assumed.pod.node_name] = assumed
        self._by_key[assumed.key] = assumed

    def remove(self, assumed: AssumedPod) -> None:
        del self._by_key[assumed.key]
        of_pod = self._by_uid[assumed.pod.uid]
        del of_pod[assumed.pod.node_name]
        if not of_pod:
            del self._by_uid[assumed.pod.uid]

    def overdue(self, now: float) -> list[AssumedPod]:
        """Those whose bindings are all answered or given up, for too long without a word from the watch."""
        return [
            one
            for one in self
            if not one.in_flight and now - one.since >= (SHOWN_WITHIN if one.confirmed else TIME_TO_LIVE)
        ]

    def oldest(self, now: float) -> float:
        """Seconds since the oldest was last asked for or answered; 0 without any."""
        return max((now - assumed.since for assumed in self), default=0.0)
