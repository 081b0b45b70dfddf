"""When another replica may have bound pods that the watch has not shown yet. No I/O here, and no clock.

Beside kube-scheduler each replica is asked by the scheduler of its own pod, and only the scheduler that leads
asks. So a replica that is asked after a pause may have taken over, and what the one before it bound last may
still be on its way here. What a node holds is then to be read from the API server before it is given more.
"""

from __future__ import annotations

import math

_PAUSE = 1.0
"""Seconds without a question in which another replica may have been asked. It takes more than that to lose
the lead and win it back: kube-scheduler ends when it has lost it, and starts anew."""
_TAIL = 5.0
"""Seconds after a pause in which what the one before had begun may still come through. A binding takes 3 at
most, its waits included (``extender/verbs/bind.py``, ``Timeouts.bind``)."""


class Takeover:
    """Which nodes to read before a binding: each one once after a pause, and at first every time."""

    def __init__(self) -> None:
        self._began = self._asked = -math.inf
        self._read: dict[str, float] = {}

    def asked(self, now: float) -> None:
        """A binding is asked for at ``now``, in seconds of a monotonic clock."""
        if now - self._asked > _PAUSE:
            self._began = now
            self._read.clear()  # all of it too early, and nodes come and go
        self._asked = now

    def needs_relist(self, node: str) -> bool:
        """Whether the books may lack what others have bound to this node."""
        return self._read.get(node, -math.inf) < self._began + _TAIL

    def read(self, node: str, now: float) -> None:
        """The node was read, from ``now`` on."""
        self._read[node] = now
