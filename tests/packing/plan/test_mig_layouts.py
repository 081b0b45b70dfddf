"""Layouts of a GPU against all sets of windows, what one serves, and when a node should get another."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from packing.model.gpu_catalog import find_model, parse_profile, placement_of
from packing.plan.mig_layouts import ChangeRule, Wanted, layouts, served
from tests.examples import examples

H100 = find_model("NVIDIA-H100-80GB-HBM3")
assert H100 is not None
assert H100.geometry is not None
PROFILES = {
    name: placement_of(H100.geometry, parse_profile(name), H100.memory_mib)
    for name in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
}


def all_layouts(placements) -> set[tuple[tuple[str, int], ...]]:
    """Every set of windows that do not overlap and to which nothing can be added, as counts that no other
    set contains."""
    starts = [(name, one.size, start) for name, one in placements.items() for start in one.starts]
    windows = [(name, frozenset(range(start, start + size))) for name, size, start in starts]
    found = set()
    for size in range(1, 8):
        for chosen in combinations(windows, size):
            slices = [s for _, one in chosen for s in one]
            if len(slices) == len(set(slices)):
                names = [name for name, _ in chosen]
                found.add(tuple(sorted((name, names.count(name)) for name in set(names))))
    counts = [dict(one) for one in found]
    return {tuple(one.items()) for one in counts if not any(contains(other, one) for other in counts)}


def contains(larger, layout) -> bool:
    return larger != layout and all(larger.get(name, 0) >= n for name, n in layout.items())


@given(st.sets(st.sampled_from(sorted(PROFILES)), min_size=1, max_size=4))
@settings(max_examples=examples(15))
def test_layouts_are_those_to_which_nothing_can_be_added(names):
    placements = {name: PROFILES[name] for name in names}
    assert {tuple(sorted(one.items())) for one in layouts(placements)} == all_layouts(placements)


def test_known_layouts_are_among_them():
    found = layouts(PROFILES)
    assert {"1g.10gb": 7} in found
    assert {"3g.40gb": 1, "4g.40gb": 1} in found
    assert {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1} in layouts(PROFILES)


SHAPES = st.builds(
    Wanted,
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1, max_size=1).map(
        lambda devices: tuple(devices.items())
    ),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(1, 3),
)
DEVICES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 6))


def most_served(devices: dict[str, int], wanted: list[Wanted]) -> float:
    """The best of all numbers of pods of each shape."""
    best = 0.0
    for counts in product(*(range(shape.pods + 1) for shape in wanted)):
        taken = Counter[str]()
        for count, shape in zip(counts, wanted, strict=True):
            taken.update({name: amount * count for name, amount in shape.devices})
        if all(devices.get(name, 0) >= amount for name, amount in taken.items()):
            best = max(best, sum(count * shape.gpus for count, shape in zip(counts, wanted, strict=True)))
    return best


@given(DEVICES, st.lists(SHAPES, max_size=3))
@settings(max_examples=examples(100))
def test_what_is_served_finds_its_devices(devices, wanted):
    found, best = served(devices, wanted), most_served(devices, wanted)
    assert found <= best
    assert (found > 0) == (best > 0)


@given(DEVICES, st.lists(SHAPES, max_size=3), st.sampled_from("abc"))
@settings(max_examples=examples(50))
def test_the_pods_of_one_shape_are_all_served_that_find_their_devices(devices, wanted, name):
    alone = [shape for shape in wanted if shape.devices[0][0] == name][:1]
    assert served(devices, alone) == most_served(devices, alone)


RULE = ChangeRule(seconds=100, price=2, after=60, nodes=2, per_hour=3)


def test_a_change_is_worth_what_waiting_has_cost():
    lost = RULE.lost(8, restarts=0, since_last=1e9)
    assert lost == 800
    assert not RULE.is_worth(lost, [(8, 49), (8, 40)])  # they have not waited for long enough
    assert not RULE.is_worth(lost, [(4, 99)])
    assert RULE.is_worth(lost, [(4, 100)])
    assert RULE.is_worth(lost, [(2, 100), (2, 100)])


def test_restarts_and_a_change_within_a_day_count():
    assert RULE.lost(8, restarts=50, since_last=1e9) == 850
    assert RULE.lost(8, restarts=50, since_last=3600) == 1650


def test_only_so_many_nodes_change_at_a_time_and_in_an_hour():
    assert RULE.may_begin([], 1, 0)
    assert not RULE.may_begin([], 2, 0)
    assert not RULE.may_begin([0, 10, 20], 0, 3000)
    assert RULE.may_begin([0, 10, 20], 0, 3601)
