"""Maps and caches with a bound on size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extender.untrusted.bounded_cache import BoundedMap, bounded_cache
from extender.untrusted.limits import PROBLEM, QUOTED, quoted, shorten


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), max_size=60))
def test_both_bounds_hold_and_the_newest_entries_stay(puts: list[tuple[int, int]]) -> None:
    kept: BoundedMap[int, tuple[int, int]] = BoundedMap(entries=5, size=160)
    for number, (key, size) in enumerate(puts):
        kept.put(key, (number, size), size)
        values = list(kept.values())
        assert len(kept) == len(values) <= 5
        assert sum(size for _, size in values) <= 160
        assert [number for number, _ in values] == sorted(number for number, _ in values)
        assert kept.get(key) == ((number, size) if size <= 10 else None)


def test_a_cache_keeps_small_results_and_not_large_ones() -> None:
    asked: list[str] = []

    @bounded_cache(entries=4, weigh=len, size=160)
    def upper(text: str) -> str:
        asked.append(text)
        return text.upper()

    assert [upper("a"), upper("a"), upper("b" * 11), upper("b" * 11)] == ["A", "A", "B" * 11, "B" * 11]
    assert asked == ["a", "b" * 11, "b" * 11]


def test_untrusted_text_is_cut_and_escaped() -> None:
    assert shorten("short") == "short"
    assert len(shorten("x" * 1000)) == PROBLEM
    assert shorten("x" * 1000).endswith("...")
    assert quoted("a\n") == r"'a\n'"
    assert len(quoted("x" * 1000)) == QUOTED + 2
