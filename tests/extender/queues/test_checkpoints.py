"""The work that a pod loses: never negative, never more than since its start."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.queues.disruptions import CHECKPOINT_INTERVAL, CHECKPOINTED_AT, lost_seconds
from extender.settings import Queue
from tests.extender.builders import make_pod

START = 1_767_225_600.0
NOW = START + 10_000
PLAIN = Queue()
HOURLY = Queue(checkpoint_interval=3600)


def lost(at: str = "", every: str = "", queue: Queue = PLAIN, now: float = NOW, started: float = START):
    annotations = {CHECKPOINTED_AT: at} if at else {}
    annotations |= {CHECKPOINT_INTERVAL: every} if every else {}
    return lost_seconds(make_pod("a", started=started, annotations=annotations), queue, now)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def test_without_checkpoints_all_is_lost():
    assert lost() == 10_000


def test_a_pod_that_has_not_started_loses_nothing():
    assert lost(started=0.0) == 0
    assert lost(started=NOW + 5) == 0


def test_since_the_last_checkpoint():
    assert lost(at(NOW - 100)) == 100
    assert lost(at(NOW - 100), every="10m", queue=HOURLY) == 100  # what the pod reports counts first
    assert lost(datetime.fromtimestamp(NOW - 100, UTC).isoformat()) == 100


def test_a_clock_may_be_a_little_ahead():
    assert lost(at(NOW + 30)) == 0


@pytest.mark.parametrize(
    "text",
    [
        at(START - 1),
        at(NOW + 3600),
        "2200-01-01T00:00:00Z",
        "2026-01-01T01:00:00",  # no zone
        "yesterday",
        "9" * 100_000,
        "0001-01-01T00:00:00+23:59",
    ],
)
def test_a_checkpoint_before_the_start_in_the_future_or_malformed_does_not_count(text):
    assert lost(text) == 10_000
    assert lost(text, every="3000") == 1000


def test_intervals_count_from_the_start():
    assert lost(every="1h") == 10_000 - 2 * 3600
    assert lost(queue=HOURLY) == 10_000 - 2 * 3600
    assert lost(every="3000s", queue=HOURLY) == 1000
    assert lost(every="0s", queue=HOURLY) == 10_000 - 2 * 3600  # not an interval


@given(st.text(max_size=60), st.text(max_size=20), st.floats(START - 1e6, START + 1e9))
def test_whatever_a_pod_writes_the_loss_is_between_none_and_all(stamp, every, now):
    assert 0 <= lost(stamp, every, now=now) <= max(0.0, now - START)


@given(st.floats(START - 1e5, NOW + 1e5), st.integers(1, 10**7))
def test_a_checkpoint_never_makes_a_loss_larger(saved, interval):
    assert 0 <= lost(at(saved), every=str(interval)) <= lost()


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("3000", 3000),
        ("3000.5", 3000.5),
        ("50m", 3000),
        ("1h10m", 4200),
        ("1.5h", 5400),
        ("300ms", 0.3),
        ("-5m", None),
        ("0", None),
        ("5 minutes", None),
        ("1d", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
        ("9" * 200, None),
        ("1h" * 10_000, None),
    ],
)
def test_an_interval_is_a_duration_or_seconds(text, interval):
    assert lost(every=text) == pytest.approx(10_000 if interval is None else 10_000 % interval)
