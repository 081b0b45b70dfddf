"""AssumedPod holds: what ``bind`` has assumed, or found on the API server, and the watch has not shown yet.

A binding that was asked for has happened, has not, or may have: the answer can be lost, and the watch comes
later than the answer. Until it is known the room counts as taken. What ends a hold is the truth: the watch
shows the pod bound, gone or ended; the API server refuses the binding, or takes another one for the same pod;
or, once the hold is older than ``TIME_TO_LIVE``, the API server is asked what it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from extender.k8s.objects import Pod

TIME_TO_LIVE = 60.0
"""Seconds. kube-apiserver gives a request up after as long (``--request-timeout``), so a binding that has not
happened by then never will."""


@dataclass(slots=True)
class AssumedPod:
    """One pod on one node. ``pod`` is as it will be: with its node, and with ``assignment``, the annotations
    that name its GPUs.

    ``since``: when it was last asked for or answered, in seconds of the caller's clock. ``in_flight``:
    bindings without an answer yet. ``outcome_unknown``: one stayed without, it may have happened. ``confirmed``: it has.
    """

    pod: Pod
    since: float
    assignment: Mapping[str, str] = field(default_factory=dict)
    in_flight: int = 0
    outcome_unknown: bool = False
    confirmed: bool = False

    @property
    def key(self) -> str:
        """What it goes by in the ledger: no pod's key, since it is held beside what the watch shows."""
        return f"{self.pod.key} {self.pod.uid}@{self.pod.node_name}"


class AssumedPods:
    """AssumedPod holds by UID and node: a pod has several while it is not known which binding happened."""

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

    def on(self, uid: str, node: str) -> AssumedPod | None:
        """The one of this pod on this node."""
        return self._by_uid.get(uid, {}).get(node)

    def by_key(self, key: str) -> AssumedPod | None:
        """The one with this key of the ledger."""
        return self._by_key.get(key)

    def put(self, one: AssumedPod) -> None:
        """Add it, or replace the one of this pod on this node."""
        self._by_uid[one.pod.uid][one.pod.node_name] = one
        self._by_key[one.key] = one

    def remove(self, one: AssumedPod) -> None:
        """Take it out."""
        del self._by_key[one.key]
        of_pod = self._by_uid[one.pod.uid]
        del of_pod[one.pod.node_name]
        if not of_pod:
            del self._by_uid[one.pod.uid]

    def overdue(self, now: float) -> list[AssumedPod]:
        """Those that have outlived their time and that no answer is awaited for."""
        return [one for one in self if not one.in_flight and now - one.since >= TIME_TO_LIVE]

    def oldest(self, now: float) -> float:
        """Seconds since the oldest was last asked for or answered; 0 where there is none."""
        return max((now - one.since for one in self), default=0.0)
