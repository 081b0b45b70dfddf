"""How long a pod may run before its equals may take over."""

from hypothesis import given
from hypothesis import strategies as st

from packing.victims.rights import longest_run, rounds_of


def test_each_round_doubles_the_duration_up_to_a_bound():
    assert [longest_run(600.0, rounds) for rounds in (0, 1, 2, 3)] == [600.0, 1200.0, 2400.0, 4800.0]
    assert longest_run(600.0, 10**6) == longest_run(600.0, 30) == 600.0 * 2**30
    assert longest_run(float("inf"), 3) == float("inf")


def rounds_by_groups(times, apart):
    """Cut off all that is within ``apart`` of the first time, and count how often that can be done."""
    times = sorted(times)
    return 1 + rounds_by_groups([at for at in times if at >= times[0] + apart], apart) if times else 0


@given(st.lists(st.integers(0, 100).map(float), max_size=12), st.integers(1, 40).map(float))
def test_preemptions_that_follow_each_other_closely_count_once(times, apart):
    assert rounds_of(sorted(times), apart) == rounds_by_groups(times, apart)
