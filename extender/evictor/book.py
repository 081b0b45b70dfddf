"""What the evictor remembers between two rounds. All of it may be lost: the cluster has what matters.

Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from extender.untrusted.limits import SCHEDULERS

SETTLE = 5.0
"""How long a pod must be unschedulable: kube-scheduler's own preemption comes first."""
ATTEMPTS = 3
"""How often at most the evictor tries to hold free room for a pod."""


@dataclass(slots=True)
class Hold:
    """Room on a node that is held for a pending pod until it is bound there.

    ``leaving``: UIDs of the pods whose end makes the room. ``ends``: the latest end of the hold, also if they
    do not go. ``ours``: the evictor has nominated the pod; else it found the nomination. ``partial``: not all
    victims could be evicted, so a new plan is needed. ``was_free``: nobody had to go for it. ``gone``: since
    when all have gone, None if they have not.
    """

    node: str
    leaving: frozenset[str]
    ends: float
    ours: bool
    partial: bool = False
    was_free: bool = False
    gone: float | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """That these victims on this node should go for a pending pod. Pods by UID."""

    pod: str
    node: str
    victims: frozenset[str]


class Schedulers:
    """The names of the schedulers whose pods the evictor serves: those that asked Stowage, and those of the
    settings."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = set(names)

    def note(self, name: str) -> None:
        """A scheduler asked about one of its pods. The caller is not trusted: the names are bounded."""
        if name not in self._names and len(self._names) < SCHEDULERS:
            self._names.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._names


class Backoff:
    """When to try again by key, in monotonic seconds: each time twice as long after the last time, from
    ``shortest`` to ``longest`` seconds."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._delays: dict[str, tuple[float, float]] = {}  # until when, and for how many seconds

    def may_try(self, key: str, now: float) -> bool:
        return now >= self._delays.get(key, (now, 0.0))[0]

    def delay(self, key: str, now: float, seconds: float | None = None) -> None:
        """Try again in so many ``seconds``, which do not count as a time, or after the next delay."""
        _, last = self._delays.get(key, (now, self._shortest / 2))
        pause = min(self._longest, last * 2)
        self._delays[key] = (now + pause, pause) if seconds is None else (now + seconds, last)

    def keep(self, keys: Collection[str]) -> None:
        """Forget all others."""
        self._delays = {key: delay for key, delay in self._delays.items() if key in keys}


class Book(Backoff):
    """Pending pods by UID: since when they wait, the room that is held for them, and when to try again.

    ``recommended``: the last recommendation. ``stale``: the node of a nomination that led to nothing, which
    counts no longer. ``attempts``: how often free room was to be held for the pod. ``checked``: when it was
    last looked for, as a number that grows.
    """

    def __init__(self) -> None:
        super().__init__(5.0, 300.0)
        self.holds: dict[str, Hold] = {}
        self.recommended: dict[str, Recommendation] = {}
        self.stale: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.checked: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def see(self, waiting: Collection[str], now: float) -> None:
        """These pods wait at ``now``; forget all others but the holds."""
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self.keep(waiting)
        for known in (self.recommended, self.stale, self.attempts, self.checked):
            for uid in [uid for uid in known if uid not in waiting]:
                del known[uid]

    def has_settled(self, uid: str, now: float) -> bool:
        return now - self._since.get(uid, now) >= SETTLE

    def count_attempt(self, uid: str, *, last: bool = False) -> None:
        """Free room was to be held for the pod; ``last``: it is not to be tried again."""
        self.attempts[uid] = ATTEMPTS if last else self.attempts.get(uid, 0) + 1
