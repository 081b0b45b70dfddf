"""There are never two leaders, whatever happens to requests, answers and clocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.server.leader_elector import Election, LeaseRecord, released

LEASE = 15
TIMESTAMP = "2026-01-01T00:00:00.000000Z"


def led(identity: str = "a", at: float = 100.0) -> tuple[Election, LeaseRecord]:
    """A candidate that leads, and the record that it wrote."""
    election = Election(identity, LEASE)
    record = election.record_to_write(at, TIMESTAMP)
    assert record is not None
    election.written(record, at, at + 0.1)
    return election, record


def test_a_missing_lease_is_acquired_at_once() -> None:
    election, record = led()
    assert record == LeaseRecord("a", LEASE, TIMESTAMP, TIMESTAMP, 0)
    assert election.holds_lease(100.2)
    assert election.term == 1


def test_a_leader_that_cannot_renew_stops_before_another_may_start() -> None:
    leader, record = led(at=100.0)
    other = Election("b", LEASE)
    other.observe(record, 0.0)  # its clock shows another time, and its first look is late
    assert leader.holds_lease(109.9)
    assert not leader.holds_lease(110.0)
    assert other.record_to_write(14.9, TIMESTAMP) is None
    assert other.record_to_write(15.0, TIMESTAMP) == LeaseRecord("b", LEASE, TIMESTAMP, TIMESTAMP, 1)


def test_a_write_may_take_until_another_may_lead() -> None:
    leader, _ = led(at=100.0)
    assert leader.write_deadline(109.0) == 6.0
    assert leader.write_deadline(110.0) == 0.0  # nobody else leads yet, but it has stopped leading


def test_a_renewal_keeps_holder_and_acquire_time() -> None:
    leader, record = led()
    renewal = leader.record_to_write(102.0, "later")
    assert renewal == LeaseRecord("a", LEASE, record.acquired, "later", 0)
    leader.written(renewal, 102.0, 102.1)
    assert leader.holds_lease(111.9)
    assert leader.term == 1


def test_a_renewed_lease_is_respected_again_and_an_old_one_expires() -> None:
    _, record = led("a")
    other = Election("b", LEASE)
    other.observe(record, 0.0)
    other.observe(LeaseRecord("a", LEASE, record.acquired, "later", 0), 14.0)
    assert other.record_to_write(28.9, TIMESTAMP) is None
    assert other.record_to_write(29.0, TIMESTAMP) is not None


def test_the_duration_of_the_holder_counts() -> None:
    other = Election("b", 3)
    other.observe(LeaseRecord("a", 60, TIMESTAMP, TIMESTAMP), 0.0)
    assert other.record_to_write(59.0, TIMESTAMP) is None
    assert other.record_to_write(60.0, TIMESTAMP) is not None


def test_a_released_lease_is_free_at_once() -> None:
    leader, record = led()
    leader.resign()
    assert not leader.holds_lease(100.2)
    assert leader.write_deadline(100.2) == 0.0
    assert leader.record_to_write(100.2, TIMESTAMP) is None
    other = Election("b", LEASE)
    other.observe(record, 0.0)
    other.observe(released(record, TIMESTAMP), 0.1)
    assert other.record_to_write(0.1, TIMESTAMP) == LeaseRecord("b", LEASE, TIMESTAMP, TIMESTAMP, 1)


def test_a_late_answer_makes_nobody_the_leader() -> None:
    election = Election("a", LEASE)
    record = election.record_to_write(100.0, TIMESTAMP)
    assert record is not None
    election.written(record, 100.0, 111.0)
    assert not election.holds_lease(111.0)


def test_leading_again_is_a_new_term() -> None:
    leader, _ = led(at=100.0)
    renewal = leader.record_to_write(120.0, TIMESTAMP)  # nobody took it meanwhile
    assert renewal is not None
    leader.written(renewal, 120.0, 120.1)
    assert leader.holds_lease(121.0)
    assert leader.term == 2


@pytest.mark.parametrize(("lease", "retry"), [(15, 2.0), (3, 0.4), (150, 20.0)])
def test_durations_have_the_proportions_of_client_go(lease: int, retry: float) -> None:
    assert Election("a", lease).retry_seconds == pytest.approx(retry)


@dataclass
class Candidate:
    """A candidate whose own clock runs up to 15 % too fast or too slow."""

    election: Election
    offset: float
    rate: float
    version: int = 0  # of the Lease, as it was last read or written
    sent: tuple[int, LeaseRecord, float] | None = None  # version, what was written, when (own clock)
    committed: bool = False

    def clock(self, now: float) -> float:
        return self.offset + self.rate * now


@dataclass
class Server:
    """A Lease, and requests that may still arrive after their callers have given up."""

    record: LeaseRecord = field(default_factory=LeaseRecord)
    version: int = 0
    stray: list[tuple[int, LeaseRecord]] = field(default_factory=list)

    def write(self, version: int, record: LeaseRecord) -> bool:
        if version != self.version:
            return False
        self.version, self.record = version + 1, record
        return True


class Elections(RuleBasedStateMachine):
    """Three candidates; requests arrive late or never, answers get lost, time passes unevenly."""

    @initialize(
        offsets=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
        rates=st.lists(st.floats(0.87, 1.13), min_size=3, max_size=3),
    )
    def begin(self, offsets: list[float], rates: list[float]) -> None:
        self.now = 0.0
        self.server = Server()
        self.candidates = [
            Candidate(Election(name, LEASE), offset, rate)
            for name, offset, rate in zip("abc", offsets, rates, strict=True)
        ]

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=st.integers(0, 2))
    def read(self, who: int) -> None:
        one = self.candidates[who]
        if one.sent is None:
            one.version = self.server.version
            one.election.observe(self.server.record, one.clock(self.now))

    @rule(who=st.integers(0, 2))
    def send(self, who: int) -> None:
        one = self.candidates[who]
        clock = one.clock(self.now)
        if one.sent is None and (record := one.election.record_to_write(clock, f"at {self.now}")):
            one.sent, one.committed = (one.version, record, clock), False

    @rule(who=st.integers(0, 2))
    def arrive(self, who: int) -> None:
        one = self.candidates[who]
        if one.sent is not None and not one.committed:
            version, record, _ = one.sent
            if self.server.write(version, record):
                one.committed = True
            else:
                one.sent = None  # a conflict: it will read again

    @rule(who=st.integers(0, 2))
    def answer(self, who: int) -> None:
        one = self.candidates[who]
        if one.sent is not None and one.committed:
            version, record, asked_at = one.sent
            one.election.written(record, asked_at, one.clock(self.now))
            one.version, one.sent = version + 1, None

    @rule(who=st.integers(0, 2))
    def give_up(self, who: int) -> None:
        one = self.candidates[who]
        if one.sent is not None:
            if not one.committed:
                self.server.stray.append(one.sent[:2])
            one.sent = None

    @precondition(lambda self: self.server.stray)
    @rule()
    def arrive_late(self) -> None:
        self.server.write(*self.server.stray.pop())

    @rule(who=st.integers(0, 2))
    def resign(self, who: int) -> None:
        one = self.candidates[who]
        one.election.resign()
        if one.sent is None and self.server.record.holder == one.election.identity:
            self.server.write(self.server.version, released(self.server.record, f"at {self.now}"))

    @rule(who=st.integers(0, 2))
    def restart(self, who: int) -> None:
        one = self.candidates[who]
        if one.sent is None:
            one.election = Election(f"{one.election.identity}'", LEASE)

    @invariant()
    def one_leads_at_most(self) -> None:
        leaders = [one for one in self.candidates if one.election.holds_lease(one.clock(self.now))]
        assert len(leaders) <= 1


TestElections = Elections.TestCase
