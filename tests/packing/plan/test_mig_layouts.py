"""Layouts of a GPU against all sets of windows, and the choice for the nodes against all choices."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.model.gpu_catalogue import find_model, parse_profile, placement_of
from packing.plan.mig_layouts import Demand, Pool, choose_layouts, layouts
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


AMOUNTS = st.lists(st.integers(0, 3), min_size=2, max_size=2)


def exhaustive(pool: Pool, demand: Demand, most: int) -> tuple[float, int, int] | None:
    """The best over all choices of a layout (or today's) for each node: what it serves is worth, pods that
    restart, and nodes that change, both negative; None if none fits what runs."""
    best = None
    nodes = [g for g, count in enumerate(pool.nodes.tolist()) for _ in range(count)]
    kinds = pool.with_layout.shape[1]
    for choice in product(*(range(-1, kinds if pool.free[g] else 0) for g in nodes)):
        if len(set(choice) - {-1}) > most:
            continue
        pairs = list(zip(nodes, choice, strict=True))
        has = np.sum([pool.today[g] if p < 0 else pool.with_layout[g, p] for g, p in pairs], axis=0)
        served = np.minimum(has, demand.wanted)
        if (served < demand.run).any():
            continue
        changed = [g for g, p in pairs if p >= 0]
        worth = float(demand.value @ served), -sum(int(pool.pods[g]) for g in changed), -len(changed)
        best = worth if best is None else max(best, worth)
    return best


@given(
    st.lists(st.tuples(st.integers(1, 2), AMOUNTS, st.booleans(), st.integers(0, 3)), min_size=1, max_size=2),
    st.lists(AMOUNTS, min_size=1, max_size=3),
    AMOUNTS,
    AMOUNTS,
    st.integers(1, 2),
)
@settings(max_examples=examples(60))
def test_no_choice_serves_more(groups, kinds, run, more, most):
    pool = Pool(
        np.array([n for n, *_ in groups]),
        np.array([today for _, today, *_ in groups]),
        np.array([kinds for _ in groups]),
        [free for *_, free, _ in groups],
        np.array([pods for *_, pods in groups]),
    )
    demand = Demand(np.array(run), np.array(run) + np.array(more), np.array([1, 4]))
    best = exhaustive(pool, demand, most)
    found = choose_layouts(pool, demand, most)
    if best is None:
        assert not found.changed.any()
        return
    restarted, changed = int(found.changed.sum(axis=1) @ pool.pods), int(found.changed.sum())
    assert (float(demand.value @ found.served), -restarted, -changed) == best
    assert (found.changed.sum(axis=1) <= pool.nodes).all()
