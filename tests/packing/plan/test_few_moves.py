"""The search for few moves against all subsets, and its bound."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from packing.plan.few_moves import free_most, most_freed

UNITS = st.lists(st.frozensets(st.integers(0, 7), max_size=4), max_size=6)


class Room:
    """Pods that move need a seat each; units in ``stuck`` never become free."""

    def __init__(self, units, seats, stuck):
        self.units, self.seats, self.stuck = units, seats, stuck
        self.moved = []

    def free(self, unit):
        new = self.units[unit] - frozenset().union(*self.moved)
        if unit in self.stuck or sum(map(len, self.moved)) + len(new) > self.seats:
            return False
        self.moved.append(new)
        return True

    def take_back(self):
        self.moved.pop()


def exhaustive(units, moves, seats, stuck):
    free = [u for u in range(len(units)) if units[u] and u not in stuck]
    return max(
        (
            len(chosen)
            for size in range(len(free) + 1)
            for chosen in combinations(free, size)
            if len(frozenset().union(*(units[u] for u in chosen))) <= min(moves, seats)
        ),
        default=0,
    )


@given(UNITS, st.integers(1, 8), st.integers(0, 8), st.frozensets(st.integers(0, 5)))
def test_exhaustive_search_frees_as_many(units, moves, seats, stuck):
    room = Room(units, seats, stuck)
    found = free_most(units, moves, room, tries=10_000)
    assert room.moved == []  # as it began
    assert len(found.units) == len(set(found.units)) == exhaustive(units, moves, seats, stuck)
    assert len(found.units) <= found.at_most


@given(UNITS, st.integers(1, 8))
def test_the_bound_is_one(units, moves):
    units = [unit for unit in units if unit]
    assert exhaustive(units, moves, 99, frozenset()) <= most_freed(units, moves)


def test_without_tries_nothing_is_freed():
    assert free_most([frozenset("a")], 1, Room([frozenset("a")], 9, ()), tries=0).units == ()
