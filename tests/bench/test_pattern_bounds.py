"""Bounds by the pattern LP are the optimum over every pattern."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bench.packing.pattern_bounds import bound
from tests.examples import examples
from tests.packing.cost.test_pattern_lp import four, multisets, sizes_of


def lp_of_stock(sizes, values, demand, states, numbers, cpu, total):
    """The optimum over all patterns of GPUs in several states, which share their CPU."""
    columns = [(s, p) for s, free in enumerate(states) for p in multisets(sizes, free)]
    held = np.array([p for _, p in columns]).T
    gpus = np.arange(len(states))[:, None] == [s for s, _ in columns]
    rows = np.vstack([held, gpus, (cpu @ held)[None]])
    solution = linprog(-(values @ held), A_ub=rows, b_ub=[*demand, *numbers, total], method="highs")
    return -solution.fun


@settings(max_examples=examples(60))
@given(
    sizes_of,
    four,
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.integers(0, 40),
)
def test_gpus_in_any_states_that_share_their_cpu(sizes, weights, stock, cpu, total):
    sizes, demand = np.array(sizes), np.array(weights[: len(sizes)]) / 4
    values, cpu = sizes.mean(axis=1) / 8, np.array(cpu[: len(sizes)])
    states, numbers = np.array(stock)[:, :2], np.array(stock)[:, 2].astype(float)
    limited = bound(sizes, values, demand, 8, states, numbers, cpu, total)
    exact = lp_of_stock(sizes, values, demand, states, numbers, cpu, total)
    assert limited == pytest.approx(exact, abs=1e-5)
    assert limited >= exact - 1e-6
    free = bound(sizes, values, demand, 8, states, numbers)
    assert free == pytest.approx(lp_of_stock(sizes, values, demand, states, numbers, 0 * cpu, 0), abs=1e-6)
