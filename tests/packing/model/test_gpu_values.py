"""What GPUs are worth: the catalog's order, and numbers that an operator gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing.model.gpu_catalog import UNKNOWN_VALUE, GpuValues, models, number_for

BY_PRICE = [
    *["T4", "A10G", "L4", "A30", "L40", "A100 SXM4 40GB", "A100 SXM4 80GB", "H100 PCIe 80GB"],
    *["H100 SXM5 80GB", "H200 SXM5 141GB", "B200 SXM 180GB", "GB300"],
]


def test_the_catalog_orders_models_as_their_prices_do():
    values = [GpuValues().of(name, "") for name in BY_PRICE]
    assert values == sorted(values)
    assert GpuValues().of("A100 SXM4 80GB", "") == pytest.approx(1)


def test_every_model_of_the_catalog_has_a_value():
    assert all(0.1 < GpuValues().of(model.name, "") < 10 for model in models())


def test_an_unknown_model_is_worth_as_much_as_an_a100():
    assert GpuValues().of(None, "") == GpuValues().of("no such model", "X") == UNKNOWN_VALUE == 1


def test_of_several_names_the_longest_counts():
    numbers = {"H100": 4.0, "h100 sxm5": 5.0, "T4": 0.3}
    assert number_for(numbers, "H100 SXM5 80GB", "NVIDIA-H100-80GB-HBM3") == 5
    assert number_for(numbers, None, "Tesla-T4") == 0.3
    assert number_for(numbers, "H100 PCIe 80GB", "") == 4
    assert number_for(numbers, "A100 SXM4 80GB", "") is None


@given(st.floats(0.01, 100))
def test_the_unit_of_given_numbers_does_not_count(unit: float):
    given_values = GpuValues({"H100 SXM5": 4 * unit, "T4": 0.4 * unit})
    h100, t4 = (given_values.of(name, "") for name in ("H100 SXM5 80GB", "T4"))
    assert h100 / t4 == pytest.approx(10)
    assert t4 < 1 < h100
    assert given_values.of("A100 SXM4 80GB", "") == pytest.approx(1)


def test_a_given_number_stands_for_a_model_that_the_catalog_does_not_know():
    values = GpuValues({"A100": 2.0, "Gaudi3": 6.0})
    assert values.of(None, "Intel-Gaudi3") / values.of("A100 SXM4 80GB", "") == pytest.approx(3)
