"""The search for devices: against every choice there is, and against the counters."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.dra.allocator import MOST, NoAnswer, Offer, Option, Rule, Want, first_fit

counters = st.sampled_from(["a", "b", "c"])
amounts = st.dictionaries(counters, st.integers(0, 3), max_size=3)


@st.composite
def problems(draw):
    """(offer, wants as (count, suitable devices), rules)"""
    consumes = draw(st.lists(amounts, max_size=5))
    devices = range(len(consumes))
    some = st.sets(st.sampled_from(devices)) if consumes else st.just(set())
    left = {c: draw(st.integers(0, 4)) for c in "abc"}
    wants = draw(st.lists(st.tuples(st.integers(1, 2), some), min_size=1, max_size=3))
    values = draw(st.lists(st.sampled_from([None, 1, 2]), min_size=len(consumes), max_size=len(consumes)))
    members = frozenset((want, 0) for want in draw(st.sets(st.sampled_from(range(len(wants))))))
    # Distinct values are only kept for one device of each want: no oracle for several.
    rules = [Rule(values, members, draw(st.booleans()) and all(count == 1 for count, _ in wants))]
    shared = sorted(draw(some))
    left |= {device: draw(st.integers(0, 4)) for device in shared}
    parts = {device: [device] for device in shared}
    offer = Offer(consumes, left, draw(some), parts, draw(some) & parts.keys())
    return offer, wants, draw(st.sampled_from([rules, []]))


def takes(offer: Offer, want: int, device: int) -> dict | None:
    """Of a shared device the first want takes one part, the second two, and the third can take none."""
    if device not in offer.parts:
        return {}
    return None if want == 2 else {device: want + 1}


def used_of(offer: Offer, chosen: list[tuple[int, int]]) -> Counter | None:
    """What all of this takes of each counter, None where one cannot be."""
    used: Counter = Counter()
    for want, device in chosen:
        if (taken := takes(offer, want, device)) is None:
            return None
        used.update(taken)
    for device in {device for _, device in chosen} - offer.begun:
        used.update(offer.consumes[device])
    return used


def allowed(offer: Offer, chosen: list[tuple[int, int]], rules: list[Rule]) -> bool:
    if (used := used_of(offer, chosen)) is None:
        return False
    values = [rule.values[device] for rule in rules for want, device in chosen if (want, 0) in rule.members]
    if any(value is None for value in values):
        return False
    kinds = len(set(values))
    agreed = all((kinds == len(values)) if rule.distinct else (kinds <= 1) for rule in rules)
    return agreed and all(offer.left[c] >= n for c, n in used.items())


def first_of_all(offer: Offer, wants: list, rules: list[Rule]) -> list[tuple[int, int]] | None:
    """Every choice, in the order of the search."""
    free = [sorted(suitable - offer.taken) for _, suitable in wants]
    for choice in product(*(combinations(f, count) for f, (count, _) in zip(free, wants, strict=True))):
        chosen = [(want, device) for want, devices in enumerate(choice) for device in devices]
        whole = [device for _, device in chosen if device not in offer.parts]
        different = len(set(whole)) == len(whole)
        if different and allowed(offer, chosen, rules):
            return chosen
    return None


@given(problems())
def test_it_finds_the_first_of_all_solutions(problem):
    offer, wants, rules = problem
    options = [
        Option(count, suitable.__contains__, takes=partial(takes, offer, want))
        for want, (count, suitable) in enumerate(wants)
    ]
    found = first_fit(offer, [Want([option]) for option in options], rules)
    expected = first_of_all(offer, wants, rules)
    assert (None if found is None else [(pick.want, pick.device) for pick in found]) == expected


@given(problems(), st.data())
def test_no_counter_is_ever_overdrawn(problem, data):
    offer, wants, rules = problem
    modes = [data.draw(st.sampled_from([None, count])) for count, _ in wants]
    options = [
        [
            Option(2, lambda device: True, takes=partial(takes, offer, want)),
            Option(mode, suitable.__contains__, takes=partial(takes, offer, want)),
        ]
        for want, (mode, (_, suitable)) in enumerate(zip(modes, wants, strict=True))
    ]
    try:
        found = first_fit(offer, [Want(one) for one in options], rules)
    except NoAnswer:
        return
    used = used_of(offer, [(pick.want, pick.device) for pick in found or ()])
    assert used is not None
    assert all(offer.left[c] >= n for c, n in used.items())
    assert not {pick.device for pick in found or ()} & set(offer.taken)
    whole = [pick.device for pick in found or () if pick.device not in offer.parts]
    assert len(set(whole)) == len(whole)


def test_what_cannot_be_completed_is_taken_back():
    # The first want would like 0, which the second needs.
    wants = [Want([Option(1, lambda d: True)]), Want([Option(1, lambda d: d == 0)])]
    picks = first_fit(Offer([{}, {}], {}), wants)
    assert [pick.device for pick in picks or ()] == [1, 0]


def test_a_claim_has_so_many_devices_and_no_more():
    offer = Offer([{} for _ in range(80)], {})
    half = Want([Option(MOST // 2 + 1, lambda d: True)])
    assert first_fit(offer, [half, half]) is None
    assert first_fit(offer, [half, Want(half.options, claim=1)]) is not None


def test_a_search_without_end_is_given_up():
    offer = Offer([{"a": 1} for _ in range(40)], {"a": 40})
    wants = [Want([Option(10, lambda d: True)]), Want([Option(1, lambda d: False)])]
    with pytest.raises(NoAnswer):
        first_fit(offer, wants)


def test_what_is_not_reached_is_not_asked_about():
    def suits(device: int) -> bool:
        if device == 1:
            raise NoAnswer("asked")
        return True

    picks = first_fit(Offer([{}, {}], {}), [Want([Option(1, suits)])])
    assert [pick.device for pick in picks or ()] == [0]
    with pytest.raises(NoAnswer):
        first_fit(Offer([{}, {}], {}, {0}), [Want([Option(1, suits)])])


def test_of_one_want_only_the_last_of_distinct_values_is_remembered():
    # As in the allocator, which keeps one value for each request.
    rule = Rule(["x", "y", "x"], frozenset({(0, 0)}), distinct=True)
    picks = first_fit(Offer([{}, {}, {}], {}), [Want([Option(3, lambda d: True)])], [rule])
    assert [pick.device for pick in picks or ()] == [0, 1, 2]


def test_who_watches_has_what_others_have_but_not_twice():
    offer = Offer([{}, {}], {}, frozenset({0}))
    watching, having = Option(1, lambda device: True, watches=True), Option(1, lambda device: True)
    wants = [Want([watching]), Want([watching]), Want([watching], claim=1)]
    found = first_fit(offer, wants)
    assert found is not None
    assert [pick.device for pick in found] == [0, 1, 0]
    # Within one search nobody has a device that is watched already, as in the allocator.
    assert first_fit(offer, [Want([watching]), Want([watching]), Want([having], claim=1)]) is None
