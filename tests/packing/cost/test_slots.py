"""Prices of slots: the formula, the scale, and what must not depend on how types are told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.filling import build_fleet
from packing.cost.demand import Mix
from packing.cost.kernel_args import nodes_of
from packing.cost.slots import FEWEST, SCARCITY, Slots
from packing.fleet.fleet import Fleet
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import WHOLE, Request, Shares

WIDTHS = st.lists(st.integers(1, 8), min_size=1, max_size=4)
KINDS = st.lists(
    st.tuples(
        st.sampled_from([100, 250, 500, 700, WHOLE]), st.sampled_from([1, 1, 2, 4, 8]), st.integers(1, 9)
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda kind: kind[:2],
)


def empty_fleet(widths: list[int]) -> Fleet:
    nodes = [NodeSpec(f"n{i}", 0, 0, (Gpu(WHOLE, divisible=True),) * width) for i, width in enumerate(widths)]
    return build_fleet(nodes)


def mix_of(kinds: list[tuple[int, int, int]]) -> Mix:
    requests = tuple(Request(shares=Shares(count, milli, memory_milli=milli)) for milli, count, _ in kinds)
    total = sum(weight for *_, weight in kinds)
    return Mix(requests, tuple(weight / total for *_, weight in kinds))


def priced(fleet: Fleet, mix: Mix, turnover: float = 0.0) -> tuple[list[float], list[float]]:
    """Prices and slots of each type of the mix."""
    slots = Slots(fleet, mix)
    slots.recount(nodes_of(fleet))
    prices = slots.prices(fleet.arrays.free_gpu(), turnover)
    return prices[: len(mix.requests)].tolist(), slots.counts.totals[: len(mix.requests)].tolist()


@given(widths=WIDTHS, kinds=KINDS, turnover=st.floats(0, 1))
def test_prices_are_those_of_the_formula_and_the_slots_are_worth_the_free_gpu(widths, kinds, turnover):
    fleet, mix = empty_fleet(widths), mix_of(kinds)
    prices, slots = priced(fleet, mix, turnover)
    raw = []
    for (milli, count, _), frequency, free in zip(kinds, mix.frequency, slots, strict=True):
        gpus = count * milli / WHOLE
        raw.append(frequency * gpus ** (1 + turnover) / (gpus * max(free, FEWEST)) ** SCARCITY)
    worth = math.fsum(price * free for price, free in zip(raw, slots, strict=True))
    scale = sum(widths) / worth if worth else 0.0
    assert prices == pytest.approx([scale * price for price in raw], rel=1e-4)
    if worth:
        assert np.dot(prices, slots) == pytest.approx(sum(widths), rel=1e-4)


@given(widths=WIDTHS, kinds=KINDS, data=st.data())
def test_a_type_that_is_split_into_two_equal_ones_costs_the_same(widths, kinds, data):
    fleet, mix = empty_fleet(widths), mix_of(kinds)
    at = data.draw(st.integers(0, len(kinds) - 1))
    part = data.draw(st.floats(0.1, 0.9))
    frequency = list(mix.frequency)
    whole = frequency[at]
    frequency[at] = part * whole
    split = Mix((*mix.requests, mix.requests[at]), (*frequency, whole - part * whole))
    before, after = priced(fleet, mix)[0], priced(fleet, split)[0]
    assert after[at] + after[-1] == pytest.approx(before[at], rel=1e-4)
    rest = [price for t, price in enumerate(after[:-1]) if t != at]
    assert rest == pytest.approx([price for t, price in enumerate(before) if t != at], rel=1e-4)


@given(kinds=KINDS, width=st.integers(1, 8), turnover=st.sampled_from([0, 0.5, 1]))
def test_where_slots_fill_as_much_gpu_a_type_is_worth_its_frequency_or_the_gpus_it_loses(
    kinds, width, turnover
):
    """Sizes that divide the node leave no rest, so their slots fill it alike."""
    kinds = [(milli, count, x) for milli, count, x in kinds if 1000 % milli == 0 and width % count == 0]
    if not kinds:
        return
    mix = mix_of(kinds)
    prices, slots = priced(empty_fleet([width] * 3), mix, turnover)
    even = [
        (price * free, frequency * (milli * count / WHOLE) ** turnover)
        for (milli, count, _), price, free, frequency in zip(kinds, prices, slots, mix.frequency, strict=True)
        if free * milli * count == pytest.approx(3 * width * WHOLE)
    ]
    for worth, frequency in even:
        assert worth * even[0][1] == pytest.approx(even[0][0] * frequency, rel=1e-3)
