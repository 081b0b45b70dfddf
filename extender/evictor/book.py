"""What the evictor remembers between two rounds. All of it may be lost: the essentials are in the cluster.

Times are seconds of one clock, monotonic in the service.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from extender.untrusted.limits import SCHEDULERS
from packing.plan.move_rule import MoveRule

SETTLE = 5.0
"""Seconds that a pod must be unschedulable: kube-scheduler's own preemption comes first."""
ATTEMPTS = 3
"""Maximum attempts to reserve free room for a pod."""
_MINUTE, _HOUR = 60.0, 3600.0


@dataclass(slots=True)
class Hold:
    """Room on a node that is reserved for a pending pod until it is bound there.

    ``leaving``: UIDs of the pods whose end makes the room. ``ends``: when the hold expires, even if these
    pods still exist. ``ours``: the evictor has nominated the pod; else it found the nomination. ``partial``:
    not all victims could be evicted, so a new plan is needed. ``was_free``: no pod had to be evicted.
    ``gone``: when the last of these pods ended, None if some still exist.
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
    """A recommendation to evict these victims on this node for a pending pod. Pods by UID."""

    pod: str
    node: str
    victims: frozenset[str]


class Schedulers:
    """Names of the schedulers whose pods the evictor serves: those that called Stowage, and those in the
    settings."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = set(names)

    def note(self, name: str) -> None:
        """Note a scheduler that called Stowage. Callers are untrusted, so the number of names is bounded."""
        if name not in self._names and len(self._names) < SCHEDULERS:
            self._names.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._names


class KeyedBackoff:
    """Exponential backoff by key, in monotonic seconds: each delay is twice the last one, from ``shortest``
    to ``longest`` seconds."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._delays: dict[str, tuple[float, float]] = {}  # end, and length in seconds

    def may_try(self, key: str, now: float) -> bool:
        return now >= self._delays.get(key, (now, 0.0))[0]

    def delay(self, key: str, now: float, seconds: float | None = None) -> None:
        """Retry after the next delay, or in ``seconds``, which leave the next delay unchanged."""
        _, last = self._delays.get(key, (now, self._shortest / 2))
        pause = min(self._longest, last * 2)
        self._delays[key] = (now + pause, pause) if seconds is None else (now + seconds, last)

    def keep(self, keys: Collection[str]) -> None:
        """Forget all other keys."""
        self._delays = {key: delay for key, delay in self._delays.items() if key in keys}


class Book(KeyedBackoff):
    """Pending pods by UID: the start of their wait, the room reserved for them, and when to retry.

    ``recommended``: the last recommendation of evictions. ``said``: the last recommendation by the reason of
    its Event and the pod ("": headroom). ``stale``: the node of a nomination without effect, which is
    ignored. ``attempts``: attempts to reserve free room for the pod. ``checked``: when it was last searched
    for, as an increasing number.
    """

    def __init__(self) -> None:
        super().__init__(5.0, 300.0)
        self.holds: dict[str, Hold] = {}
        self.recommended: dict[str, Recommendation] = {}
        self.said: dict[tuple[str, str], object] = {}
        self.stale: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.checked: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def see(self, waiting: Collection[str], now: float) -> None:
        """These pods are pending at ``now``; forget all others, except their holds."""
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self.keep(waiting)
        self.said = {key: what for key, what in self.said.items() if not key[1] or key[1] in waiting}
        for known in (self.recommended, self.stale, self.attempts, self.checked):
            for uid in [uid for uid in known if uid not in waiting]:
                del known[uid]

    def has_settled(self, uid: str, now: float) -> bool:
        return now - self._since.get(uid, now) >= SETTLE

    def count_attempt(self, uid: str, *, last: bool = False) -> None:
        """Count an attempt to reserve free room for the pod; ``last``: do not retry."""
        self.attempts[uid] = ATTEMPTS if last else self.attempts.get(uid, 0) + 1


class LossBudget:
    """The GPU-seconds that moves have lost in the last hour. ``spent``: the time and GPU-seconds of each
    loss; entries older than an hour are removed."""

    def __init__(self, rule: MoveRule, spent: list[tuple[float, float]] | None = None) -> None:
        self._rule, self._spent = rule, [] if spent is None else spent

    def left(self, gpus: float, now: float) -> float:
        """GPU-seconds that may still be lost in a fleet of this many GPUs."""
        self._spent[:] = [(at, lost) for at, lost in self._spent if at > now - _HOUR]
        most = max(self._rule.lost_share * gpus * _HOUR, self._rule.least_lost)
        return most - sum(lost for _, lost in self._spent)

    def spend(self, lost: float, now: float) -> None:
        """Record the GPU-seconds lost by moves."""
        self._spent.append((now, lost))


class SmallWaits:
    """Whether small jobs have recently waited for long. A job counts when it starts, so a job that can never
    start does not block moves."""

    def __init__(self, rule: MoveRule) -> None:
        self._rule, self._last = rule, -math.inf

    def started(self, gpus: float, waited: float, now: float) -> None:
        """Record that a job of this many GPUs has started after waiting this many seconds."""
        if gpus < self._rule.gpus and waited >= self._rule.small_wait:
            self._last = now

    def lately(self, now: float) -> bool:
        """Whether pods should not be moved now."""
        return now - self._last < self._rule.calm


class WaitClock:
    """The time that each job has waited while at least its number of GPUs was free in total."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[float, float, bool]] = {}  # seconds, as of when, whether it is counting

    def look(self, job: str, now: float, *, enough: bool) -> float:
        """The seconds up to ``now``. ``enough``: whether enough GPUs are free from now on."""
        seconds, until, counts = self._jobs.get(job, (0.0, now, False))
        seconds += (now - until) * counts
        self._jobs[job] = seconds, now, enough
        return seconds

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all other jobs."""
        self._jobs = {job: known for job, known in self._jobs.items() if job in jobs}


class Peaks:
    """The maximum amount of each resource that was in use or requested within the last hour, by minute."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[float, dict[str, int]]] = deque()

    def see(self, amounts: Mapping[str, int], now: float) -> None:
        """Record the amounts in use or requested now."""
        if not self._minutes or now - self._minutes[-1][0] >= _MINUTE:
            self._minutes.append((now, {}))
        last = self._minutes[-1][1]
        last.update({name: max(n, last.get(name, 0)) for name, n in amounts.items()})
        while now - self._minutes[0][0] > _HOUR:
            self._minutes.popleft()

    def leaves_enough(
        self, total: Mapping[str, int], today: Mapping[str, int], then: Mapping[str, int]
    ) -> bool:
        """Whether a node may have ``then`` instead of ``today``: the rest of ``total`` must cover the
        peaks."""
        return all(
            total.get(name, 0) - count + then.get(name, 0)
            >= max((minute.get(name, 0) for _, minute in self._minutes), default=0)
            for name, count in today.items()
            if then.get(name, 0) < count
        )
