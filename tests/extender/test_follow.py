"""How long to wait before the next try. (Threads and connections: test_kube.py.)"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extender.follow import Backoff


def test_backoff_doubles_to_thirty_seconds_and_has_jitter() -> None:
    def pauses(fraction: float) -> list[float]:
        backoff = Backoff(lambda: fraction)
        return [backoff.pause(0.0, clean=False) for _ in range(8)]

    assert pauses(1.0) == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses(0.0) == [0.5, 1, 2, 4, 8, 15, 15, 15]


def test_a_healthy_minute_ends_the_backoff() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.pause(0.0, clean=False) for _ in range(3)] == [1, 2, 4]
    backoff.answered(100.0)
    assert backoff.pause(159.0, clean=False) == 8
    backoff.answered(200.0)
    backoff.answered(230.0)  # health counts from the first answer on
    assert backoff.pause(260.0, clean=False) == 1


def test_a_watch_that_ran_its_time_is_reopened_at_once_and_a_brief_one_is_not() -> None:
    backoff = Backoff(lambda: 1.0)
    for start in range(0, 300, 30):  # as behind a proxy that allows half a minute
        backoff.answered(start)
        assert backoff.pause(start + 30.0, clean=True) == 0
    assert Backoff(lambda: 1.0).pause(0.0, clean=True) == 1
    hasty = Backoff(lambda: 1.0)
    hasty.answered(10.0)
    assert hasty.pause(10.5, clean=True) == 1
    hasty.answered(12.0)
    assert hasty.pause(12.5, clean=True) == 2


def test_a_new_list_comes_at_once_but_not_over_and_over() -> None:
    backoff = Backoff(lambda: 1.0)
    for _ in range(3):
        backoff.pause(0.0, clean=False)  # a server that was away, say, and has forgotten our version
    assert backoff.anew(10.0) == 0
    assert [backoff.anew(11.0), backoff.anew(70.0)] == [8, 16]
    assert backoff.anew(130.0) == 0


@given(st.lists(st.tuples(st.floats(0, 400), st.booleans(), st.booleans()), max_size=30), st.floats(0, 1))
def test_any_pause_is_bounded(history: list[tuple[float, bool, bool]], chance: float) -> None:
    backoff, now = Backoff(lambda: chance), 0.0
    for seconds, answered, clean in history:
        if answered:
            backoff.answered(now)
        now += seconds
        pause = backoff.pause(now, clean=clean)
        assert 0.5 <= pause <= 30 or (pause == 0 and clean and answered)
