"""The peaks of demand that a node must still cover after its MIG layout has changed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.evictor.book import Peaks
from tests.examples import examples


@given(
    st.lists(st.tuples(st.integers(0, 7200), st.sampled_from("ab"), st.integers(0, 9)), max_size=20),
    st.integers(0, 20),
    st.integers(0, 9),
)
@settings(max_examples=examples(100))
def test_a_node_gives_up_nothing_that_was_asked_for_within_the_last_hour(seen, total, has):
    peaks, now = Peaks(), 7200.0
    for at, name, amount in sorted(seen):
        peaks.see({name: amount}, at)
    peaks.see({}, now)
    lately = [amount for at, name, amount in seen if name == "a" and at >= now - 3600]
    if peaks.leaves_enough({"a": total}, {"a": has}, {}) and has:
        assert all(total - has >= amount for amount in lately)
    if total >= has and all(total - has >= amount for _, name, amount in seen if name == "a"):
        assert peaks.leaves_enough({"a": total}, {"a": has}, {})


def test_a_node_keeps_what_the_new_layout_has_too():
    peaks = Peaks()
    peaks.see({"a": 8}, 0)
    assert peaks.leaves_enough({"a": 8}, {"a": 4}, {"a": 4, "b": 2})
    assert not peaks.leaves_enough({"a": 8}, {"a": 4}, {"a": 3, "b": 2})


def test_a_node_gives_up_all_that_nobody_asked_for_and_no_instance_more():
    peaks = Peaks()
    peaks.see({"a": 0, "b": 8}, 0)
    assert peaks.leaves_enough({"a": 4}, {"a": 4}, {})
    assert peaks.leaves_enough({"b": 9}, {"b": 1}, {})
    assert not peaks.leaves_enough({"b": 8}, {"b": 1}, {})
