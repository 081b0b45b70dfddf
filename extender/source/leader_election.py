"""Who leads: how replicas share one Lease. No I/O here, and no clock.

The rules are those of client-go (``k8s.io/client-go/tools/leaderelection``, v0.36), so that a Lease can be
read with the usual tools. Clocks of different machines are never compared: how long a holder is to be
respected counts from when its record was *seen* here to have changed, and how long a leader may believe in
itself from when it *asked* for its last renewal. The first is longer, so the old leader stops before a new
one can start, as long as clocks run at about the same speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says. Times are text, for people: nothing is decided by them."""

    holder: str = ""
    seconds: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


class Election:
    """Where one candidate stands. ``now`` is in seconds of a monotonic clock, ``today`` the time in words."""

    def __init__(self, identity: str, lease_seconds: int) -> None:
        """``identity`` is of this process alone. The other durations keep client-go's proportions to the
        lease's: 15 s, of which a leader that cannot renew leads 10 s, and a try every 2 s."""
        self.identity = identity
        self.retry_seconds = lease_seconds * 2 / 15
        self.term = 0
        """Counts how often this candidate has come to lead."""
        self._lease = lease_seconds
        self._deadline = lease_seconds * 2 / 3
        self._seen = Record()
        self._seen_at = -math.inf
        self._renewed_at = -math.inf
        self._resigned = False

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen, "" for nobody."""
        return self._seen.holder

    def leads(self, now: float) -> bool:
        """Whether this candidate leads. Without renewal it ends by itself."""
        return not self._resigned and now < self._renewed_at + self._deadline

    def write_deadline(self, now: float) -> float:
        """Seconds in which what a leader writes must have arrived, for nobody else leads before; 0 unless
        it leads."""
        return self._renewed_at + self._lease - now if self.leads(now) else 0.0

    def seen(self, record: Record, now: float) -> None:
        """The Lease was read; an empty record where there is none."""
        if record != self._seen:
            self._seen, self._seen_at = record, now

    def claim(self, now: float, today: str) -> Record | None:
        """What to write in order to lead on, or to begin; None while it is another's, or after ``resign``."""
        held = self._seen
        ours = held.holder == self.identity
        if self._resigned or (held.holder and not ours and now < self._seen_at + held.seconds):
            return None
        if ours:
            return replace(held, seconds=self._lease, renewed=today)
        transitions = held.transitions + bool(held.renewed)  # 0 for the first holder ever
        return Record(self.identity, self._lease, today, today, transitions)

    def written(self, record: Record, asked_at: float, now: float) -> None:
        """The API server took what ``claim`` gave; it was asked at ``asked_at``."""
        if not self.leads(now):
            self.term += 1
        self._renewed_at = asked_at
        self.seen(record, now)

    def resign(self) -> None:
        """Lead no more, from now on and for good."""
        self._resigned = True


def released(record: Record, today: str) -> Record:
    """What a holder that resigns writes: the next one need not wait."""
    return Record("", 1, today, today, record.transitions)
