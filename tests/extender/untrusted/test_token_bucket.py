"""The token bucket never allows more than the setting, and always allows something in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extender.untrusted.token_bucket import TokenBucket

steps = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 8)), max_size=60)


@given(steps, st.integers(1, 100), st.integers(1, 20))
def test_no_minute_has_more_evictions_than_allowed(
    steps: list[tuple[float, int]], per_minute: int, burst: int
) -> None:
    bucket, now, taken = TokenBucket(per_minute / 60, burst), 0.0, []
    for pause, count in steps:
        now += pause
        if bucket.allows(count, now):
            bucket.take(count, now)
            taken.append((now, count))
    for at, _ in taken:
        within = [count for other, count in taken if at <= other < at + 60]
        # What a minute allows, the burst, and the last one, which may begin with too few tokens left.
        assert sum(within[:-1]) <= per_minute + burst + 1e-6


def test_a_gang_leaves_as_a_whole_and_is_made_up_for() -> None:
    bucket = TokenBucket(per_second=0.1, burst=2)
    assert bucket.allows(5, 0.0)
    bucket.take(5, 0.0)
    assert not bucket.allows(1, 39.9)
    assert bucket.allows(1, 40.0)
    assert not bucket.allows(2, 40.0)
    assert bucket.allows(2, 50.0)


def test_time_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(per_second=1, burst=1)
    bucket.take(1, 10.0)
    assert not bucket.allows(1, 10.0)
    assert not bucket.allows(1, 5.0)
    assert bucket.allows(1, 11.0)
