"""The search for devices, compared with a search through all choices."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.dra.allocator import (
    MAX_DEVICES_PER_CLAIM,
    AvailableDevices,
    SearchAborted,
    SearchConstraint,
    SearchRequest,
    SearchSubRequest,
    allocate,
)

counters = st.sampled_from(["a", "b", "c"])
amounts = st.dictionaries(counters, st.integers(0, 3), max_size=3)


@st.composite
def problems(draw):
    """(available, requests as (count, suitable devices), constraints)"""
    consumes = draw(st.lists(amounts, max_size=5))
    devices = range(len(consumes))
    some = st.sets(st.sampled_from(devices)) if consumes else st.just(set())
    left = {c: draw(st.integers(0, 4)) for c in "abc"}
    requests = draw(st.lists(st.tuples(st.integers(1, 2), some), min_size=1, max_size=3))
    values = draw(st.lists(st.sampled_from([None, 1, 2]), min_size=len(consumes), max_size=len(consumes)))
    members = frozenset((request, 0) for request in draw(st.sets(st.sampled_from(range(len(requests))))))
    # Distinct values are only kept for one device of each request: no oracle for several.
    constraints = [
        SearchConstraint(values, members, draw(st.booleans()) and all(count == 1 for count, _ in requests))
    ]
    shared = sorted(draw(some))
    left |= {device: draw(st.integers(0, 4)) for device in shared}
    parts = {device: [device] for device in shared}
    available = AvailableDevices(consumes, left, draw(some), parts, draw(some) & parts.keys())
    return available, requests, draw(st.sampled_from([constraints, []]))


def capacity(available: AvailableDevices, request: int, device: int) -> dict | None:
    """Of a shared device the first request consumes 1, the second 2, and the third cannot have it."""
    if device not in available.capacity_counters:
        return {}
    return None if request == 2 else {device: request + 1}


def used_of(available: AvailableDevices, chosen: list[tuple[int, int]]) -> Counter | None:
    """What these choices consume of each counter, None if one of them is not possible."""
    used: Counter = Counter()
    for request, device in chosen:
        if (taken := capacity(available, request, device)) is None:
            return None
        used.update(taken)
    for device in {device for _, device in chosen} - available.partially_consumed:
        used.update(available.consumption[device])
    return used


@given(problems(), st.data())
def test_no_counter_is_ever_overdrawn(problem, data):
    available, requests, constraints = problem
    modes = [data.draw(st.sampled_from([None, count])) for count, _ in requests]
    options = [
        [
            SearchSubRequest(2, lambda device: True, capacity=partial(capacity, available, request)),
            SearchSubRequest(mode, suitable.__contains__, capacity=partial(capacity, available, request)),
        ]
        for request, (mode, (_, suitable)) in enumerate(zip(modes, requests, strict=True))
    ]
    try:
        found = allocate(available, [SearchRequest(one) for one in options], constraints)
    except SearchAborted:
        return
    used = used_of(available, [(one.request, one.device) for one in found or ()])
    assert used is not None
    assert all(available.remaining[c] >= n for c, n in used.items())
    assert not {one.device for one in found or ()} & set(available.allocated)
    whole = [one.device for one in found or () if one.device not in available.capacity_counters]
    assert len(set(whole)) == len(whole)


def test_a_claim_has_at_most_32_devices():
    available = AvailableDevices([{} for _ in range(80)], {})
    half = SearchRequest([SearchSubRequest(MAX_DEVICES_PER_CLAIM // 2 + 1, lambda d: True)])
    assert allocate(available, [half, half]) is None
    assert allocate(available, [half, SearchRequest(half.subrequests, claim=1)]) is not None


def test_an_endless_search_is_aborted():
    available = AvailableDevices([{"a": 1} for _ in range(40)], {"a": 40})
    requests = [
        SearchRequest([SearchSubRequest(10, lambda d: True)]),
        SearchRequest([SearchSubRequest(1, lambda d: False)]),
    ]
    with pytest.raises(SearchAborted):
        allocate(available, requests)


def test_admin_access_to_allocated_devices_but_not_twice():
    available = AvailableDevices([{}, {}], {}, frozenset({0}))
    admin, normal = (
        SearchSubRequest(1, lambda device: True, admin_access=True),
        SearchSubRequest(1, lambda device: True),
    )
    requests = [SearchRequest([admin]), SearchRequest([admin]), SearchRequest([admin], claim=1)]
    found = allocate(available, requests)
    assert found is not None
    assert [one.device for one in found] == [0, 1, 0]
    # Within one search a device with admin access is not free for others, as in Kubernetes' allocator.
    assert (
        allocate(
            available,
            [SearchRequest([admin]), SearchRequest([admin]), SearchRequest([normal], claim=1)],
        )
        is None
    )
